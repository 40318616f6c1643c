"""The processes of one training, as `accelerate launch` and `torchrun` start them."""

from __future__ import annotations

import os


def process_count() -> int:
    """How many processes train together, as `accelerate launch` and `torchrun` tell."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process is the one that writes and speaks."""
    return os.environ.get("RANK", "0") == "0"
