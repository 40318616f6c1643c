"""The fast Longformer attention beside Hugging Face's, in one run: forward and training step, time and peak memory.

    python benchmarks/attention.py                      # the embedded model's size
    python benchmarks/attention.py --size base          # longformer-base's size, random weights

The backbone is frozen; a step goes back to the embeddings, as a prefix method's does. On a GPU the model is in
bfloat16, on the CPU in float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LongformerConfig, LongformerModel
from transformers.utils import logging

from prefixprop import attention

from timing import measure

SIZES = {
    "mini": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
# examples, tokens, global tokens, dropout
CASES = {
    "cpu": [(1, 512, 9, 0.0), (4, 512, 9, 0.0), (1, 4096, 9, 0.0), (1, 4096, 9, 0.1)],
    "cuda": [(8, 4096, 9, 0.0), (8, 4096, 9, 0.1), (8, 4096, 200, 0.0), (32, 512, 9, 0.0), (2, 16384, 9, 0.0)],
}


def build(size: str, longest: int, dropout: float, device: str) -> Any:
    torch.manual_seed(0)
    config = LongformerConfig(
        **SIZES[size],
        vocab_size=50_265,
        max_position_embeddings=longest + 2,
        attention_window=512,
        attention_probs_dropout_prob=dropout,
        hidden_dropout_prob=dropout,
    )
    model = LongformerModel(config, add_pooling_layer=False).requires_grad_(False).to(device)
    return (model.to(torch.bfloat16) if device == "cuda" else model).train(dropout > 0)


def measure_case(size: str, case: tuple[int, int, int, float], device: str, repeats: int) -> dict[str, Any]:
    batch, length, everywhere, dropout = case
    model = build(size, length, dropout, device)
    tokens = torch.randint(5, 50_000, (batch, length), device=device)
    mask = torch.zeros_like(tokens)
    mask[:, :everywhere] = 1
    embedded = model.get_input_embeddings()(tokens).requires_grad_()

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=tokens, global_attention_mask=mask)

    def step() -> None:
        model(inputs_embeds=embedded, global_attention_mask=mask).last_hidden_state.sum().backward()

    result: dict[str, Any] = {"batch": batch, "length": length, "global": everywhere, "dropout": dropout}
    for name, run in (("forward", forward), ("step", step)):
        theirs, their_peak = measure(run, device, repeats)
        attention.install(model)
        ours, our_peak = measure(run, device, repeats)
        attention.uninstall(model)
        result[name] = {"hugging_face_s": theirs, "ours_s": ours, "ratio": theirs / ours}
        result[name] |= {"hugging_face_gib": their_peak, "ours_gib": our_peak}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="mini")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    logging.set_verbosity_error()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = [measure_case(options.size, case, device, options.repeats) for case in CASES[device]]

    table = Table(title=f"Longformer {options.size}, window 512, {device}: Hugging Face → prefixprop")
    columns = ("examples × tokens", "global", "dropout", "forward", "ratio", "step", "ratio", "step memory")
    for column in columns:
        table.add_column(column, justify="right")
    for result in results:
        cells = [f"{result['batch']} × {result['length']}", str(result["global"]), str(result["dropout"])]
        for name in ("forward", "step"):
            times = result[name]
            cells += [f"{times['hugging_face_s']:.3f} → {times['ours_s']:.3f} s", f"{times['ratio']:.1f}"]
        step = result["step"]
        peak = f"{step['hugging_face_gib']:.1f} → {step['ours_gib']:.1f} GiB" if device == "cuda" else "-"
        table.add_row(*cells, peak)
    Console(width=140).print(table)
    if options.json:
        options.json.write_text(json.dumps({"device": device, "size": options.size, "results": results}, indent=1))


if __name__ == "__main__":
    main()
