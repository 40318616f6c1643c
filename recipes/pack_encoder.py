"""Pack an encoder that `prefixprop lengthen roberta-mini-512 --freeze-embeddings` made, as the package ships it.

    python recipes/pack_encoder.py FOLDER src/prefixprop/models/assets/longformer-mini-4096 --text held-out.jsonl

The package holds roberta-mini-512, and of a long encoder made from it only what training changed: every matrix as its
difference, in four bits, every other weight as it is. With --keep 0.75 the weights go back a quarter of the way to
those of roberta-mini-512 (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models"): what training forgot, on
text unlike its own, comes back before what it taught is lost. With --text it prints the loss of masked tokens in
these documents with the weights as trained and as packed.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LongformerForMaskedLM
from transformers.utils import logging

from prefixprop.attention import install
from prefixprop.data.cache import RaggedArray
from prefixprop.data.rows import read_rows, text_of
from prefixprop.data.tokens import contents
from prefixprop.lengthen.encoder import Objective
from prefixprop.lengthen.text import PackedRows, mask
from prefixprop.models.embedded import DIFFERENCES, GROUP, add_difference, lengthened_original, load_tokenizer

ROWS = 12
SCALES_TRIED = torch.linspace(0.6, 1.0, 33)


def pack(difference: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix in four bits, two values in a byte, and a scale for every `GROUP` values of a row.

    The scale is the one that leaves the smallest squared error, not the one that reaches the largest value.
    """
    groups = difference.unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(dim=-1, keepdim=True) / 7
    best = torch.full_like(largest, math.inf)
    chosen, values = torch.zeros_like(largest), torch.zeros_like(groups)
    for share in SCALES_TRIED:
        scale = (largest * share).half().float()
        rounded = (groups / scale.clamp_min(1e-12)).round().clamp(-8, 7)
        error = (rounded * scale - groups).square().sum(dim=-1, keepdim=True)
        better = error < best
        best, chosen = torch.where(better, error, best), torch.where(better, scale, chosen)
        values = torch.where(better, rounded, values)
    nibbles = (values.flatten(-2) + 8).to(torch.uint8)
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4, chosen.squeeze(-1).half()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `prefixprop lengthen` wrote")
    parser.add_argument("output", type=Path, help="the folder of the packed encoder")
    parser.add_argument("--keep", type=float, default=1.0, metavar="SHARE", help="of what training changed")
    parser.add_argument("--text", type=Path, help="held-out documents to compute the loss on")
    options = parser.parse_args()
    logging.set_verbosity_error()
    trained = load_file(options.folder / "model.safetensors")
    prefix = "longformer."
    weights = {name.removeprefix(prefix): tensor for name, tensor in trained.items() if name.startswith(prefix)}
    original = lengthened_original().state_dict()
    weights = {name: torch.lerp(original[name], tensor, options.keep) for name, tensor in weights.items()}
    packed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if "_global." in name:
            continue  # copies
        if torch.equal(tensor, original[name]):
            continue
        if tensor.ndim == 2 and "token_type" not in name:
            packed[name], packed[f"{name}_scale"] = pack(tensor - original[name])
        else:
            packed[name] = tensor
    if "embeddings.word_embeddings.weight" in packed:
        parser.error(f"{options.folder}: its word embeddings were trained; use --freeze-embeddings")
    options.output.mkdir(parents=True, exist_ok=True)
    save_file(packed, options.output / DIFFERENCES)
    size = (options.output / DIFFERENCES).stat().st_size
    restored = add_difference(lengthened_original(), options.output / DIFFERENCES).state_dict()
    error = sum((restored[name] - tensor).square().sum() for name, tensor in weights.items())
    change = sum((original[name] - tensor).square().sum() for name, tensor in weights.items())
    print(f"{size / 1e6:.2f} MB; error {math.sqrt(error / change):.2%} of what training changed")
    if options.text is not None:
        model = LongformerForMaskedLM.from_pretrained(options.folder)
        print(f"as trained: {bits(model, options.text):.3f} bits per token")
        model.longformer.load_state_dict(restored)
        print(f"as packed:  {bits(model, options.text):.3f} bits per token")


@torch.no_grad()
def bits(model: LongformerForMaskedLM, text: Path) -> float:
    """Cross-entropy of masked tokens, in bits, over rows of 4,096 tokens."""
    install(model.eval())
    tokenizer = load_tokenizer(4096)
    documents = list(contents((text_of(row, "text") for row in read_rows([text])), tokenizer))
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(0))
    lists = RaggedArray(np.concatenate(documents), np.cumsum([0, *map(len, documents)]))
    rows = PackedRows(lists, order.numpy(), 4096, tokenizer)
    total = 0.0
    for number in range(ROWS):
        masked = mask([rows.row(number * (rows.count() // ROWS))[None]], tokenizer, [[number]])
        batch = {name: torch.from_numpy(array) for name, array in masked.items()}
        total += Objective(model)(**batch).tokens.item()
    return total / ROWS / math.log(2)


if __name__ == "__main__":
    main()
