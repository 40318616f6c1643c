"""How long an epoch over short documents takes, with steps recorded as CUDA graphs and without.

    python benchmarks/short_documents.py --data-dir FOLDER

Prefix-propagation on 20-newsgroups with the default model: the second epoch of two runs that differ in nothing else,
and the loss of each, which should be the same. Needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback

from prefixprop.models import gpu
from prefixprop.train import RunSettings, train


class EpochTimes(TrainerCallback):
    """Seconds of each epoch's steps, and its loss."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.started = 0.0

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])


def epoch(settings: RunSettings, most_tokens: int) -> EpochTimes:
    usual, times = gpu.MOST_TOKENS, EpochTimes()
    gpu.MOST_TOKENS = most_tokens
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(settings, Path(folder) / "run", callbacks=[times], tell=lambda note: None)
    finally:
        gpu.MOST_TOKENS = usual
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="20-newsgroups")
    parser.add_argument("--documents", type=int, help="of train; all if left out")
    parser.add_argument("--device-batch-size", type=int, default=32)
    options = parser.parse_args()
    settings = RunSettings(
        task="newsgroups", data_dir=options.data_dir, max_train_documents=options.documents, epochs=2,
        learning_rate=1e-3, device_batch_size=options.device_batch_size, max_dev_documents=100,
        max_test_documents=100, keep_weights=False, floor=False,
    )  # fmt: skip
    table = Table("steps", "seconds of an epoch", "loss of epochs 1 and 2")
    for name, most_tokens in (("started one by one", 0), ("recorded", gpu.MOST_TOKENS)):
        times = epoch(settings, most_tokens)
        table.add_row(name, f"{times.seconds[1]:.1f}", ", ".join(f"{loss:.4f}" for loss in times.losses))
    Console().print(table)


if __name__ == "__main__":
    main()
