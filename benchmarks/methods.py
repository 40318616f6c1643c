"""A forward and a training step of every method, beside Hugging Face's attention where it can compute the same.

    python benchmarks/methods.py --size base --dropout 0.1
    python benchmarks/methods.py --adapters 8 --batch 32 --length 512

Prefixes have 8 virtual tokens, LoRA has rank 8. With --adapters, instead: how fast a batch is predicted whose
documents have that many different adapters, beside the same batch with one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

from prefixprop import ParameterCount, PrefixPropagationConfig, PrefixTuningConfig, count_parameters
from prefixprop.attention import install
from prefixprop.backbones import family_in
from prefixprop.models.gpu import hold_frozen_in_bfloat16

import measuring
from measuring import DEVICE, OURS, THEIRS

WHOLE_MODEL, LORA = "whole model", "LoRA"
# The configuration of a prefix and its options; LoRA stands for its own configuration.
PREFIXES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "propagation": (PrefixPropagationConfig, {}),
    "propagation, gate": (PrefixPropagationConfig, {"gate": True}),
    "kernel exp": (PrefixPropagationConfig, {"kernel": "exp"}),
    "kernel rbf, α per head": (PrefixPropagationConfig, {"kernel": "rbf", "alpha_mode": "head"}),
    "prefix-tuning": (PrefixTuningConfig, {}),
    "prefix-tuning, gate": (PrefixTuningConfig, {"gate": True}),
    "propagation and LoRA": (PrefixPropagationConfig, {"lora": LORA}),
    "prefix-tuning and LoRA": (PrefixTuningConfig, {"lora": LORA}),
}
METHODS = (WHOLE_MODEL, LORA, *PREFIXES)
MIXED = ("propagation", "prefix-tuning", "propagation and LoRA", "prefix-tuning and LoRA")


def main() -> None:
    parser = measuring.make_parser(__doc__, repeats=3, batch=8)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--adapters", type=int, metavar="N", help="compare N adapters in a batch with one")
    options = parser.parse_args()
    if options.adapters:
        results = [measure_mixed(method, options) for method in MIXED]
        rows = [{name: str(value) for name, value in result.items()} for result in results]
    else:
        results = [result for method in METHODS for result in measure(method, options)]
        trained = {method: f"{count(method, options.model, options.size).trainable:,}" for method in METHODS}
        rows = [
            {"trained": result["method"], "parameters": trained[result["method"]], **measuring.compared_cells(result)}
            for result in results
        ]
    measuring.publish(options, "adapters" if options.adapters else "methods", rows, results=results)


def measure(method: str, options: Any) -> list[dict[str, Any]]:
    config = measuring.encoder_config(options.model, options.size, options.length, options.dropout)
    base = measuring.frozen_encoder(config)
    models = {}
    if method not in PREFIXES:  # these compute with our attention alone
        models[THEIRS] = with_method(method, measuring.twin_of(base)).train(options.dropout > 0)
    models[OURS] = with_method(method, base).train(options.dropout > 0)
    install(models[OURS], backend=options.backend)
    inputs = measuring.random_inputs(options.batch, options.length, 9 if options.model == "longformer" else 0)
    compared = measuring.compare_passes(models, inputs, measuring.step, options.repeats)
    return [{"method": method, **each} for each in compared]


def with_method(method: str, model: Any) -> Any:
    """The model with what the method trains."""
    return model.requires_grad_() if method == WHOLE_MODEL else get_peft_model(model, adapter(method, model))


def adapter(method: str, model: Any, **options: Any) -> Any:
    targets = list(family_in(model).lora_targets)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=targets)
    if method == LORA:
        return lora
    config, given = PREFIXES[method]
    options |= {name: lora if value == LORA else value for name, value in given.items()}
    return config(num_virtual_tokens=8, **options)


def count(method: str, model: str, size: str) -> ParameterCount:
    """The parameters of an encoder of 4,096 tokens with the method, by shapes alone."""
    with torch.device("meta"):
        config = measuring.encoder_config(model, size, 4096)
        encoder = AutoModelForSequenceClassification.from_config(config).base_model.requires_grad_(False)
        return count_parameters(with_method(method, encoder))


def measure_mixed(method: str, options: Any) -> dict[str, Any]:
    """Predictions with one adapter, and with as many as asked, document i with adapter i modulo their number."""
    torch.manual_seed(0)
    config = measuring.encoder_config(options.model, options.size, options.length, num_labels=2)
    model: Any = AutoModelForSequenceClassification.from_config(config)
    adapters = {f"adapter {each}": adapter(method, model, task_type="SEQ_CLS") for each in range(options.adapters)}
    first, *others = adapters
    model = get_peft_model(model, adapters[first], adapter_name=first)
    for name in others:
        model.add_adapter(name, adapters[name])
    model = model.to(DEVICE).eval()
    if measuring.ON_GPU:  # as a run's model is held for predictions
        hold_frozen_in_bfloat16(model.requires_grad_(False))
    inputs = measuring.random_inputs(options.batch, options.length)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    owners = [list(adapters)[place % len(adapters)] for place in range(options.batch)]

    @torch.inference_mode()
    def run(**chosen: Any) -> Any:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=measuring.ON_GPU):
            return model(**inputs, **chosen)

    runs = {"one adapter": run, f"{options.adapters} adapters": lambda: run(adapter_names=owners)}
    timings = measuring.measure_in_turns(runs, options.repeats)
    one, many = timings.values()
    return {"method": method, **timings, "speed beside one": round(one.over(many) or 0, 3)}


if __name__ == "__main__":
    main()
