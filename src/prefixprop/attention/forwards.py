"""Replaces the forward of a single module, and puts it back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Undo = Callable[[], None]


def replace_forward(module: Any, replacement: Callable[..., Any]) -> Undo:
    """Let `replacement(original, module, ...)` stand for this one module's forward."""
    before = vars(module).get("forward")
    # Not `module.forward = ...`, for which `Module` takes its time: batches of many adapters do this for each.
    vars(module)["forward"] = partial(replacement, module.forward, module)
    # Not a closure: a deep copy of the model must undo its own change, not this model's.
    return partial(_restore_forward, module, before)


def _restore_forward(module: Any, before: Callable[..., Any] | None) -> None:
    if before is None:
        del vars(module)["forward"]
    else:
        vars(module)["forward"] = before
