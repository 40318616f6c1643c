"""Compiles all kernels of a training step for an NVIDIA GPU, without one: `python compile_kernels.py 90 bfloat16 64`.

Arguments are the compute capability, the type and the size of a head. It is a process of its own, because Triton
decides at its import whether kernels are compiled or interpreted. A step runs on the CPU with kernels that are
compiled and not started, so its numbers mean nothing, but every kernel is asked for as on a GPU. Prints the kernels,
one per line, each with its shared memory in bytes.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_source

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig, attention
from prefixprop.attention import backends
from prefixprop.attention.triton import rotary_attention
from prefixprop.attention.triton.shared import TritonKernel

TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
    torch.uint8: "u8",
}
LAUNCH_OPTIONS = ("num_warps", "num_stages")
NAMED = ("BACKWARD", "DROPOUT", "ADD", "KERNEL", "ALPHA")  # other constants are sizes
compiled: dict[str, int] = {}  # shared memory of each


def compile_instead(
    kernel: TritonKernel, grid: tuple, tensors: tuple[Tensor, ...], numbers: tuple[int | float, ...], **constants: Any
) -> None:
    """Stands for TritonKernel.__call__."""
    function: Any = kernel.function
    options = {name: value for name, value in constants.items() if name in LAUNCH_OPTIONS}
    constants = {name: value for name, value in constants.items() if name not in LAUNCH_OPTIONS}
    names = [name for name in function.arg_names if name not in constants]
    types = [f"*{TYPES[tensor.dtype]}" for tensor in tensors]
    types += ["i32" if isinstance(number, int) else "fp32" for number in numbers]
    signature = dict(zip(names, types, strict=True))
    told = [f"{name}={constants[name]}" for name in NAMED if name in constants]
    key = " ".join([function.__name__, *told])
    if key in compiled:
        return
    aligned = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in names[: len(tensors)]}
    source = ASTSource(function, signature | dict.fromkeys(constants, "constexpr"), constants, aligned)
    made = compile_source(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options)
    compiled[key] = made.metadata.shared


def step(family: str, config: Any, dtype: torch.dtype, heads: int, size: int) -> None:
    """Forward and backward with dropout, then forward without; the whole model learns if there is no `config`."""
    of_family = {
        "longformer": {"attention_window": [64, 64]},
        "modernbert": {"attention_dropout": 0.1, "layer_types": ["sliding_attention", "full_attention"]},
    }
    shape = AutoConfig.for_model(
        family,
        vocab_size=50,
        hidden_size=heads * size,
        num_attention_heads=heads,
        num_hidden_layers=2,
        intermediate_size=64,
        max_position_embeddings=300,
        num_labels=2,
        **{f"{name}_token_id": number for number, name in enumerate(("cls", "pad", "sep", "bos", "eos"))},
        **of_family[family],
    )
    model = AutoModelForSequenceClassification.from_config(shape).to(dtype)
    model = model if config is None else get_peft_model(model, config)
    attention.install(model, "triton")
    inputs = {"input_ids": torch.randint(4, 50, (2, 200))}
    if family == "longformer":  # all rows of the last layer too
        inputs["global_attention_mask"] = (torch.arange(200)[None] == 0).long().expand(2, -1)
    model.train()(**inputs).logits.float().sum().backward()
    with torch.no_grad():
        model.eval()(**inputs)


def main() -> None:
    warnings.simplefilter("ignore")
    TritonKernel.__call__ = compile_instead
    backends.INTERPRETED = True  # nobody asks for a GPU then
    # PyTorch's flash attention has no CPU; what stands around it is compiled.
    rotary_attention.has_flash_attention = lambda *_: True
    rotary_attention.varlen_attn = lambda query, *_: query
    dtype, size = getattr(torch, sys.argv[2]), int(sys.argv[3])
    propagation = partial(PrefixPropagationConfig, task_type="SEQ_CLS", num_virtual_tokens=4)
    for family in ("longformer", "modernbert"):
        for config in (
            propagation(kernel="exp", lora=LoraConfig(r=8, lora_dropout=0.1)),
            PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
            None,
        ):
            step(family, config, dtype, heads=2, size=size)
    for options in (
        {"kernel": "rbf", "alpha_mode": "layer"},
        {"kernel": "poly", "alpha_mode": "query"},
        {"read_only": True},
    ):
        step("longformer", propagation(**options), dtype, heads=2, size=size)
    print("\n".join(f"{kernel}: {compiled[kernel]}" for kernel in sorted(compiled)))


if __name__ == "__main__":
    main()
