# How the long encoders of the package were made, on one NVIDIA H200 in 17 minutes of training. Since then the script
# that cleans the text was tidied, and masks and the teacher's pieces are drawn in another way, so that a rerun gives
# like encoders, not the same. The rate is between the two best of five short trials, each with one seed.
# Run it in a clone of this repository, in a folder with room for 10 GB.
set -eu

for repository in JohanMadsen/02807_Project rcdm-uga/Gutenberg_Text elifesciences/elife-article-xml; do
    git clone --depth 1 "https://github.com/$repository" "clones/$(basename "$repository")"
done
python recipes/long_text.py --wikipedia clones/02807_Project --gutenberg clones/Gutenberg_Text \
    --elife clones/elife-article-xml --output text

lengthen() {
    prefixprop lengthen roberta-mini-512 $(printf -- "--text %s " text/part-*.jsonl.xz) --freeze-embeddings \
        --batch-size 16 --device-batch-size 16 --learning-rate 8e-4 "$@"
}
lengthen --output encoders/longformer-mini-4096 --minutes 8 --teach-cls
lengthen --output encoders/longformer-mini-4096-mlm --minutes 8.8

for name in longformer-mini-4096 longformer-mini-4096-mlm; do
    python recipes/pack_encoder.py "encoders/$name" "src/prefixprop/models/assets/$name" --text text/heldout.jsonl.xz
done
