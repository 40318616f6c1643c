"""The ways to compute attention (backends), and which of them this machine can use."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from prefixprop.choices import BACKENDS

HAS_TRITON = importlib.util.find_spec("triton") is not None
LEAST_CAPABILITY = (8, 0)  # Ampere: what Triton supports, and the first with bfloat16
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton on the CPU: slow, for tests


def check_backend(name: str) -> None:
    """Raise if there is no backend of this name, or if this machine lacks what it needs."""
    if name not in ("auto", *BACKENDS):
        raise ValueError(f"backend={name!r} is unknown; choose one of auto, {', '.join(BACKENDS)}.")
    if name != "auto" and (reason := why_not(name)) is not None:
        raise ValueError(f"backend={name!r} needs {reason}; this machine has: auto, sdpa.")


def why_not(name: str, device: torch.device | None = None) -> str | None:
    """What this machine, or `device`, lacks for a backend; None if it can be used."""
    if name == "sdpa":
        return None
    if not HAS_TRITON:
        return "the package triton, which PyTorch for CUDA brings along (pip install triton)"
    return None if INTERPRETED or is_modern_gpu(device) else "an NVIDIA GPU of compute capability 8.0 or later"


@cache
def is_modern_gpu(device: torch.device | None = None) -> bool:
    """Whether `device`, or this machine's default GPU, is an NVIDIA GPU of the Ampere generation or later."""
    has_gpu = torch.cuda.is_available() and (device is None or device.type == "cuda")
    return has_gpu and torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


class Backend(NamedTuple):
    """The functions of one backend. Those that compute several steps at once are None where a backend has none."""

    longformer_attention: Callable[..., tuple[Tensor, ...]]
    modernbert_attention: Callable[..., Tensor]
    geglu: Callable[..., Tensor]  # the second half of a ModernBERT layer
    longformer_layer: Callable[..., Tensor | None] | None = None
    modernbert_layer: Callable[..., Tensor | None] | None = None
    residual_output: Callable[..., Tensor] | None = None  # what follows attention and feed-forward in Longformer
    # For readers: their attention, and what follows it in a frozen layer (Longformer's is BERT's).
    attend_to_text: Callable[..., Tensor] | None = None
    longformer_leave: Callable[..., Tensor | None] | None = None
    modernbert_leave: Callable[..., Tensor | None] | None = None


def choose(name: str | None, device: torch.device) -> Backend:
    """The backend of this name, or for `auto` and None the best one, for tensors on `device`."""
    if name == "triton" and (reason := why_not(name, device)) is not None:
        raise RuntimeError(
            f"The attention backend 'triton' needs {reason}, and the model is on {device}; move the model, or call "
            "prefixprop.attention.install(model, backend='auto')."
        )
    is_plain = name == "sdpa" or (
        name != "triton" and (device.type != "cuda" or why_not("triton", device) is not None)
    )
    return _plain() if is_plain else _triton()


# Imported when they are asked for: they use the names above, and the second one needs Triton.


@cache
def _plain() -> Backend:
    from prefixprop.attention import modernbert, sliding_window

    return Backend(sliding_window.longformer_self_attention, modernbert.rotary_attention, modernbert.geglu)


@cache
def _triton() -> Backend:
    from prefixprop.attention.triton import block, geglu, longformer, modernbert, reading, rotary_attention

    return Backend(
        longformer.longformer_self_attention,
        rotary_attention.rotary_attention,
        geglu.geglu,
        longformer.longformer_layer,
        modernbert.modernbert_layer,
        longformer.residual_output,
        reading.attend_to_text,
        partial(block.leave_layer, longformer.leave_of),
        partial(block.leave_layer, modernbert.leave_of),
    )
