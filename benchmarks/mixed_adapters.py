"""How much slower is a batch whose documents have different adapters than one with a single adapter?

    python benchmarks/mixed_adapters.py [--method prefix-tuning] [--length 512] [--lora]

The same documents go through the default model with one adapter, and with as many as asked, document i with adapter
i modulo their number; the two alternate. The last column is the first one's time in the other's: 1 is as fast.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig
from prefixprop.benchmarking.timing import measure_in_turns
from prefixprop.models import load_default
from prefixprop.models.gpu import hold_frozen_in_bfloat16

METHODS: dict[str, Any] = {"prefix-propagation": PrefixPropagationConfig, "prefix-tuning": PrefixTuningConfig}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--method", choices=METHODS, help="both if left out")
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--length", type=int, default=512, help="tokens of each document")
    parser.add_argument("--rows", type=int, default=8, help="prefix length j")
    parser.add_argument("--lora", action="store_true", help="with a LoRA part of rank 8 in each adapter")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = Table("method", "one adapter, ms", f"{given.adapters} adapters, ms", "speed beside one adapter")
    for method in [given.method] if given.method else METHODS:
        one, many = times(method, given, device)
        table.add_row(method, f"{1000 * one:.1f}", f"{1000 * many:.1f}", f"{one / many:.3f}")
    Console().print(f"{given.documents} documents of {given.length} tokens, j = {given.rows}, on {device}", table)


def times(method: str, given: argparse.Namespace, device: str) -> tuple[float, float]:
    """Median seconds of a pass with one adapter, and with many."""
    model, names = adapted(method, given)
    model = model.to(device).eval()
    if device == "cuda":  # as a run's model is held for predictions
        hold_frozen_in_bfloat16(model.requires_grad_(False))
    tokens = torch.randint(10, 1000, (given.documents, given.length), device=device)
    owners = [names[place % len(names)] for place in range(given.documents)]

    @torch.inference_mode()
    def run(**chosen: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return model(input_ids=tokens, attention_mask=torch.ones_like(tokens), **chosen)

    timings = measure_in_turns({"one": run, "many": lambda: run(adapter_names=owners)}, device, given.repeats)
    return timings["one"].median, timings["many"].median


def adapted(method: str, given: argparse.Namespace) -> tuple[Any, list[str]]:
    """The default model with the adapters, and their names."""
    factory, _ = load_default()
    names = [f"adapter {number}" for number in range(given.adapters)]
    model: Any = factory("SEQ_CLS", num_labels=2)
    for name in names:
        lora = LoraConfig(r=8, init_lora_weights=False) if given.lora else None
        config = METHODS[method](task_type="SEQ_CLS", num_virtual_tokens=given.rows, lora=lora)
        if name == names[0]:
            model = get_peft_model(model, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
    return model, names


if __name__ == "__main__":
    main()
