# How the long encoders of the package were made, on one NVIDIA H200. Since then the script that cleans the text was
# tidied; and masks were drawn in another way when the second one was made. So a rerun gives like encoders, not the
# same. Rates come from short trials, each with one seed.
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
lengthen --output encoders/longformer-mini-4096 --learning-rate 4e-4 --steps 9000 --teach-cls
lengthen --output encoders/longformer-mini-4096-mlm --learning-rate 8e-4 --minutes 8.8

for name in longformer-mini-4096 longformer-mini-4096-mlm; do
    python recipes/pack_encoder.py "encoders/$name" "src/prefixprop/models/assets/$name" --text text/heldout.jsonl.xz
done
