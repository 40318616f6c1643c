"""What can go wrong in a run, in plain words; the command line prints these errors without a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from prefixprop.settings.run_settings import RunSettings, flag_of


class TrainingError(RuntimeError):
    """A run that cannot go on, with what to do about it."""


def is_out_of_memory(error: RuntimeError) -> bool:
    # PyTorch raises a plain RuntimeError where the CPU's memory is used up.
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextlib.contextmanager
def explained_memory_errors(remedy: str) -> Iterator[None]:
    """Turn "out of memory" into what can be changed about it."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"The device is out of memory{remedy}.") from error


def building_remedy(settings: RunSettings) -> str:
    """What can be changed where the model alone does not fit."""
    sizes = [name for name in ("lora_rank", "num_virtual_tokens") if name in settings.method_row.options]
    lower = "".join(f" or a {flag_of(name)} below {getattr(settings, name)}" for name in sizes)
    return f" before training starts: choose a smaller --model{lower}"


def training_remedy(settings: Any, at_once: int) -> str:
    """What can be changed where a step of `at_once` documents does not fit; settings of `train` or `lengthen`."""
    length, remedies = settings.max_length, []
    if at_once > 1:
        remedies.append(f"a --device-batch-size below {at_once} (the batch stays the same, by accumulation)")
    if not settings.gradient_checkpointing:
        remedies.append("--gradient-checkpointing")
    # A shorter document is another experiment, so only the first two can go on from the checkpoints.
    resumable = f"continue with --resume and {' or '.join(remedies)}, or " if remedies else ""
    return (
        f" (--device-batch-size {at_once}, --max-length {length}): {resumable}start again with a --max-length below "
        f"{length}"
    )
