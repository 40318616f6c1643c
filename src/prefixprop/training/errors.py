"""What can go wrong in a run, in words for people; the command line prints these without a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class TrainingError(RuntimeError):
    """A run that cannot go on, with what to do about it."""


# PyTorch raises a plain RuntimeError where the CPU's memory is used up.
_CPU_MEMORY = "DefaultCPUAllocator"


@contextlib.contextmanager
def explained_memory_errors(device_batch_size: int, max_length: int, gradient_checkpointing: bool) -> Iterator[None]:
    """Turn "out of memory" into what can be changed about it."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or _CPU_MEMORY in str(error)):
            raise
        remedies = [f"a --device-batch-size below {device_batch_size} (the batch stays the same, by accumulation)"]
        if device_batch_size == 1:
            remedies = []
        if not gradient_checkpointing:
            remedies.append("--gradient-checkpointing")
        # A shorter document is another experiment, so only the first two can go on from the checkpoints.
        resumable = f"go on with --resume and {' or '.join(remedies)}, or " if remedies else ""
        raise TrainingError(
            f"The device's memory is used up (--device-batch-size {device_batch_size}, --max-length {max_length}): "
            f"{resumable}start again with a --max-length below {max_length}."
        ) from error
