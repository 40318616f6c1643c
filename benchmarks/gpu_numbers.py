"""How far the Triton backend is from float64, beside Hugging Face's attention and plain PyTorch; see check_gpu."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from prefixprop import PrefixPropagationConfig, attention
from prefixprop.attention import backends
from prefixprop.backbones import find_backbone
from prefixprop.tuners.reader_bank import ReaderBank, new_reader
from prefixprop.tuners.reading import text_to_read

SLACK, FLOAT32_LIMIT = 1.2, 1e-5
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LONGFORMER_LINEARS = (
    "query", "key", "value", "query_global", "key_global", "value_global",
    "attention.output.dense", "intermediate.dense", "layer.1.output.dense",
)  # fmt: skip
# What is trained beside a frozen Longformer whose layers are computed in one piece.
ADAPTERS: dict[str, Any] = {
    "LoRA": lambda: lora(target_modules=list(LONGFORMER_LINEARS)),
    "prefix-propagation + LoRA": lambda: PrefixPropagationConfig(lora=lora(target_modules=list(LONGFORMER_LINEARS))),
    "exp": lambda: PrefixPropagationConfig(kernel="exp", alpha=0.5),
    "exp, α per layer": lambda: PrefixPropagationConfig(kernel="exp", alpha=0.5, alpha_mode="layer"),
    "rbf, α per head": lambda: PrefixPropagationConfig(kernel="rbf", alpha=0.5, alpha_mode="head"),
    "poly, α of queries": lambda: PrefixPropagationConfig(kernel="poly", alpha=0.5, alpha_mode="query"),
    "linear, 40 rows": lambda: PrefixPropagationConfig(kernel="linear", alpha=0.5, num_virtual_tokens=40),
}


def lora(**options: Any) -> LoraConfig:
    """With weights at random, so that all of them get a gradient."""
    return LoraConfig(r=8, init_lora_weights=False, **options)


@dataclass(frozen=True)
class Case:
    """Documents of these lengths in a batch; in Longformer the first tokens are global, others at this distance.

    Without padding and global tokens there are no masks either.
    """

    lengths: tuple[int, ...]
    family: str = "longformer"
    window: int = 128
    heads: int = 4
    size: int = 64
    left: bool = False
    first: int = 1
    every: int = 0

    def __str__(self) -> str:
        side = "left" if self.left else "right"
        everywhere = f"{self.first} global" + (f", each {self.every}th" if self.every else "")
        kind = everywhere if self.family == "longformer" else self.family
        return f"{self.lengths} {side}, window {self.window}, {self.heads} × {self.size}, {kind}"


CASES = (
    Case((777,)),
    Case((1000, 613)),
    Case((1000, 613), left=True),
    Case((501, 37, 499), window=64, size=32),
    Case((333, 256), window=512, size=32, heads=12),
    Case((1025,), size=128, heads=2),
    Case((700, 411), size=128, heads=3, left=True, first=9),
    Case((900, 450), first=0),
    Case((900, 450), first=40, every=29),
    Case((300, 1), every=1),
    Case((640, 640), first=0),
    Case((777,), family="modernbert"),
    Case((1024, 1024), family="modernbert"),
    Case((1000, 613, 1), family="modernbert"),
    Case((1000, 613), family="modernbert", left=True, window=256, size=32),
    Case((700, 411), family="modernbert", size=128, heads=3),
)
OF_FAMILY: dict[str, Any] = {
    "longformer": lambda window: {"attention_window": [window, window // 2]},
    "modernbert": lambda window: {
        "local_attention": window,
        "layer_types": ["full_attention", "sliding_attention"],
        **{f"{name}_token_id": number for number, name in enumerate(("pad", "cls", "sep", "bos", "eos"))},
    },
}


def build_encoder(case: Case) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        case.family,
        hidden_size=case.heads * case.size,
        num_attention_heads=case.heads,
        num_hidden_layers=2,
        intermediate_size=2 * case.heads * case.size,
        vocab_size=100,
        max_position_embeddings=max(case.lengths) + case.window + 2,
        **OF_FAMILY[case.family](case.window),
    )
    model = AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter in layers_of(model).parameters():
            if parameter.dim() > 1:  # the usual weights make attention so flat that mistakes hide
                parameter.normal_(std=1 / parameter.shape[1] ** 0.5)
    return model.cuda()


def layers_of(model: Any) -> Any:
    return model.encoder if hasattr(model, "encoder") else model.layers


def inputs_of(case: Case) -> dict[str, Tensor]:
    longest = max(case.lengths)
    place = torch.arange(longest)[None]
    seen = place < torch.tensor(case.lengths)[:, None]
    everywhere = (place < case.first).expand_as(seen)
    if case.every:
        everywhere = everywhere | (place % case.every == 0)
    seen, everywhere = (seen.flip(1), everywhere.flip(1)) if case.left else (seen, everywhere)
    masks = {"attention_mask": seen.long()}
    if case.family == "longformer":
        masks["global_attention_mask"] = (everywhere & seen).long()
    if seen.all() and not (case.family == "longformer" and everywhere.any()):
        masks = {}
    states = torch.randn(len(case.lengths), longest, case.heads * case.size)
    return {name: tensor.cuda() for name, tensor in (masks | {"inputs_embeds": states}).items()}


def results(model: Any, inputs: dict[str, Tensor], direction: Tensor, backend: str | None) -> dict[str, Tensor]:
    """Output and gradients of the states, of real tokens alone, and the encoder's gradients as one vector."""
    if backend is not None:
        attention.install(model, backend=backend)
    states = inputs["inputs_embeds"].to(model.dtype).requires_grad_()
    real = inputs.get("attention_mask", torch.ones(states.shape[:2], device=states.device)).bool()
    output = model(**(inputs | {"inputs_embeds": states})).last_hidden_state[real]
    leaves = [states, *layers_of(model).parameters()]
    gradients = torch.autograd.grad((output * direction[real].to(model.dtype)).sum(), leaves, allow_unused=True)
    of_states, *of_weights = (
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    )
    if backend is not None:
        attention.uninstall(model)
    weights = torch.cat([gradient.double().flatten() for gradient in of_weights])
    return {"output": output.detach().double(), "states": of_states[real].double(), "weights": weights}


def compare(case: Case, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Errors by tensor and implementation."""
    model = build_encoder(case).to(dtype)
    inputs = inputs_of(case)
    inputs["inputs_embeds"] = inputs["inputs_embeds"].to(dtype)
    direction = torch.randn_like(inputs["inputs_embeds"])
    exact = results(copy.deepcopy(model).double(), inputs, direction, "sdpa")
    errors: dict[str, dict[str, float]] = {name: {} for name in exact}
    for who, backend in (("Hugging Face", None), ("sdpa", "sdpa"), ("triton", "triton")):
        for name, tensor in results(model, inputs, direction, backend).items():
            errors[name][who] = distance(tensor, exact[name], dtype)
    return errors


def is_close_enough(error: dict[str, float], dtype: torch.dtype) -> bool:
    ours, theirs = error["triton"], error["Hugging Face"]
    if dtype == torch.float32:
        return ours <= FLOAT32_LIMIT
    if math.isnan(error["sdpa"]):
        return False
    # Hugging Face's gradients are NaN for some padding; then there is nothing to compare, but ours must be a number.
    return not math.isnan(ours) if math.isnan(theirs) else ours <= SLACK * theirs


def check_numbers(console: Console) -> bool:
    table = Table("case", "type", "of", "Hugging Face", "sdpa", "triton", "", title="Distance from float64")
    checks: dict[str, Any] = {str(case): partial(compare, case) for case in CASES}
    checks |= {f"frozen, {name}": partial(compare_adapted, name) for name in ADAPTERS}
    checks |= {"frozen, LoRA's products with dropout": compare_dropped}
    checks |= {f"frozen, readers, {family}": partial(compare_readers, family) for family in READ}
    all_fine = True
    for (name, check), dtype in product(checks.items(), DTYPES):
        for of, error in check(dtype).items():
            # Plain PyTorch computes a kernel's part in float32: as near as a single number is rounded will do.
            in_its_place = {"Hugging Face": max(error["sdpa"], torch.finfo(dtype).eps)}
            fine = is_close_enough(in_its_place | error, dtype)
            all_fine &= fine
            numbers = (f"{error[who]:.1e}" if who in error else "-" for who in ("Hugging Face", "sdpa", "triton"))
            table.add_row(name, str(dtype).removeprefix("torch."), of, *numbers, "ok" if fine else "TOO FAR")
    console.print(table)
    return all_fine


READ = ("longformer", "roberta", "modernbert")


def distance(found: Tensor, exact: Tensor, dtype: torch.dtype) -> float:
    if dtype == torch.float32:
        return float((found.double() - exact).abs().max() / exact.abs().max())
    return float((found.double() - exact).norm() / exact.norm())


def adapted_results(model: Any, inputs: dict[str, Tensor], direction: Tensor, backend: str) -> dict[str, Tensor]:
    """Output of real tokens, and the gradients of all that learns, as one vector for each kind."""
    attention.install(model, backend=backend)
    model.zero_grad()
    real = inputs["attention_mask"].bool()
    output = model(**(inputs | {"inputs_embeds": inputs["inputs_embeds"].to(model.dtype)})).last_hidden_state[real]
    (output * direction[real].to(model.dtype)).sum().backward()
    results = {"output": output.detach()}
    for kind in ("lora_A", "lora_B", "prefix", "alpha"):
        named = [(name, leaf) for name, leaf in model.named_parameters() if leaf.requires_grad and kind in name]
        if named:
            assert all(leaf.grad is not None for _, leaf in named), named
            results[kind] = torch.cat([leaf.grad.double().flatten() for _, leaf in named])
    return results


def compare_adapted(name: str, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Of several models together: an α per layer is two numbers, and how they are rounded is luck."""
    found: dict[str, list[Tensor]] = {}
    for seed in range(4):
        for key, tensor in adapted_once(name, dtype, seed).items():
            found.setdefault(key, []).append(tensor)
    together = {key: torch.cat([tensor.flatten() for tensor in tensors]) for key, tensors in found.items()}
    kinds = [key.removeprefix("exact ") for key in together if key.startswith("exact ")]
    return {
        kind: {
            who: distance(together[f"{who} {kind}"], together[f"exact {kind}"], dtype) for who in ("sdpa", "triton")
        }
        for kind in kinds
    }


def adapted_once(name: str, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    case = Case((700, 411), first=3)
    model = get_peft_model(build_encoder(case).requires_grad_(False), ADAPTERS[name]()).cuda().eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for leaf in model.parameters():
            if leaf.requires_grad:
                leaf.add_(0.1 * torch.randn_like(leaf))
    model, inputs = model.to(dtype), inputs_of(case)
    inputs["inputs_embeds"] = inputs["inputs_embeds"].to(dtype)
    direction = torch.randn_like(inputs["inputs_embeds"])
    ways = {"exact": (copy.deepcopy(model).double(), "sdpa"), "sdpa": (model, "sdpa"), "triton": (model, "triton")}
    return {
        f"{who} {kind}": tensor.double()
        for who, (which, backend) in ways.items()
        for kind, tensor in adapted_results(which, inputs, direction, backend).items()
    }


def compare_readers(family: str, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """A bank of readers on a frozen encoder, two documents of which one is padded."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        hidden_size=256,
        num_attention_heads=4,
        num_hidden_layers=2,
        intermediate_size=512,
        vocab_size=100,
        max_position_embeddings=1030,
        num_labels=3,
        **(OF_FAMILY[family](128) if family in OF_FAMILY else {}),
    )
    model = AutoModelForSequenceClassification.from_config(config).requires_grad_(False).eval().to(dtype)
    ids = torch.randint(5, 100, (2, 700))
    mask = (torch.arange(700) < torch.tensor([[700], [411]])).long()
    made = find_backbone(model)
    readers = [new_reader(made, 3, 3, seed) for seed in range(30)]
    readers = [reader._replace(prefix=10 * reader.prefix) for reader in readers]

    def results(model: Any, backend: str) -> dict[str, Tensor]:
        backbone = find_backbone(model)
        if family != "roberta":
            attention.install(model, backend)
        bank = ReaderBank(backbone, readers).to(model.device, model.dtype)
        bank.backbone.backend = lambda device: backends.choose(backend, device)
        text = text_to_read(backbone, {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)})
        logits = bank(text)
        logits.square().sum().backward()
        assert bank.prefix.grad is not None
        return {"logits": logits.detach().cpu(), "gradient of prefixes": bank.prefix.grad.cpu()}

    exact = results(copy.deepcopy(model).double(), "sdpa")
    ways = {backend: results(copy.deepcopy(model).cuda(), backend) for backend in ("sdpa", "triton")}
    return {of: {who: distance(way[of], exact[of].double(), dtype) for who, way in ways.items()} for of in exact}


def compare_dropped(dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """The kernels of LoRA's side path under dropout, beside PyTorch with the same masks."""
    from prefixprop.attention.triton import lora
    from prefixprop.attention.triton.shared import draw_dropout_seeds, levels

    count, pieces, rank, width, dropout = 3001, 3, 16, 768, 0.1
    rows, down = (
        torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((count, width), (pieces, rank, width))
    )
    upstream = torch.randn(count, pieces * rank, device="cuda", dtype=dtype)
    seeds = draw_dropout_seeds((count, pieces * width), rows, dropout)
    keep_threshold, keep_scale = levels(dropout)
    kept = (seeds[0][None, :, None] ^ seeds[1].view(pieces, 1, width)) * -1640531535 >= keep_threshold

    def plain(dtype: torch.dtype) -> dict[str, Tensor]:
        mask = kept.to(dtype) * keep_scale
        by_piece = upstream.to(dtype).view(count, pieces, rank).transpose(0, 1)
        dropped = rows.to(dtype) * mask
        return {
            "down": (dropped @ down.to(dtype).transpose(1, 2)).transpose(0, 1).flatten(1),
            "gradient of A": by_piece.transpose(1, 2) @ dropped,
            "gradient of rows": ((by_piece @ down.to(dtype)) * mask).sum(dim=0),
        }

    back = torch.zeros_like(rows)
    lora.add_lora_gradient(upstream, down, *seeds, dropout, back)
    ours = {
        "down": lora.lora_down_with_dropout(rows, down, *seeds, dropout),
        "gradient of A": lora.lora_down_gradient(upstream, rows, down, *seeds, dropout),
        "gradient of rows": back,
    }
    exact, in_type = plain(torch.float64), plain(dtype)
    return {
        of: {"sdpa": distance(in_type[of], exact[of], dtype), "triton": distance(ours[of], exact[of], dtype)}
        for of in exact
    }
