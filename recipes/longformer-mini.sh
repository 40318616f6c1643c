# How the long encoders of the package were made, on one NVIDIA H200. The second is older: the script that cleans the
# text was tidied since, and masks are drawn in another way. A clock ends training. So a rerun gives like encoders, not
# the same. Rates were chosen after short trials at others, each with one seed.
# Run it in a clone of this repository, in a folder with room for 10 GB.
set -eu

for repository in JohanMadsen/02807_Project rcdm-uga/Gutenberg_Text elifesciences/elife-article-xml; do
    git clone --depth 1 "https://github.com/$repository" "clones/$(basename "$repository")"
done
python recipes/long_text.py --wikipedia clones/02807_Project --gutenberg clones/Gutenberg_Text \
    --elife clones/elife-article-xml --output text

lengthen() {
    prefixprop lengthen roberta-mini-512 $(printf -- "--text %s " text/part-*.jsonl.xz) --freeze-embeddings \
        --batch-size 16 --device-batch-size 16 "$@"
}
lengthen --output encoders/longformer-mini-4096 --learning-rate 6e-4 --minutes 6 --teach-cls
lengthen --output encoders/longformer-mini-4096-mlm --learning-rate 8e-4 --minutes 8.8

# How much is kept was chosen on left-out train documents, by a linear classifier on the frozen [CLS].
pack() { python recipes/pack_encoder.py "encoders/$1" "src/prefixprop/models/assets/$1" "$2" "$3"; }
pack longformer-mini-4096 --keep 0.5
pack longformer-mini-4096-mlm --text text/heldout.jsonl.xz
