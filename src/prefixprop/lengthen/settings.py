"""What `prefixprop lengthen` can be told; the defaults are those of Longformer's authors where they state any."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.run_settings import PRECISIONS

USUAL_STEPS = 2000  # Beltagy et al. (2020): most of what 65,000 steps gain

# These change how long training takes, not what it ends with.
_FREE_WHEN_RESUMED = ("device_batch_size", "gradient_checkpointing", "checkpoint_seconds")


@dataclass(frozen=True)
class LengthenSettings:
    """How an encoder is lengthened and trained.

    Attributes:
        model: The encoder to start from: one of the package, of the hub, or in a folder.
        text: Files of documents.
        text_column: The column of their text.
        max_length: The longest document that the new encoder reads, in tokens.
        attention_window: How many neighbours a token sees, half of them on either side.
        steps: How many steps are trained; `USUAL_STEPS` if `minutes` is not given either.
        minutes: How long is trained, in place of `steps`.
        batch_size: Rows of `max_length` tokens in a step.
        device_batch_size: Rows that a device computes at once.
        learning_rate: The peak of the rate, which rises for a share of `warmup` and then falls to 0.
        teach_cls: Whether [CLS], global, also learns what the original says of the document's chunks, and its words.
        freeze_embeddings: Whether the embeddings of words stay as they are.
    """

    model: str
    text: tuple[str, ...]
    text_column: str = "text"
    max_length: int = 4096
    attention_window: int = 512
    steps: int | None = None
    minutes: float | None = None
    batch_size: int = 64
    device_batch_size: int = 8
    learning_rate: float = 3e-5
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    teach_cls: bool = False
    freeze_embeddings: bool = False
    precision: str = "auto"
    gradient_checkpointing: bool = False
    checkpoint_seconds: float = 300.0
    seed: int = 1

    @property
    def total_steps(self) -> int | None:
        """How many steps there will be; None if the clock decides."""
        return self.steps if self.steps is not None or self.minutes is not None else USUAL_STEPS

    def check(self, processes: int = 1) -> None:
        """Raise `SettingsError` for values that cannot work."""
        least = {
            "max_length": 16,
            "attention_window": 2,
            "steps": 1,
            "batch_size": 1,
            "device_batch_size": 1,
            "seed": 0,
            "weight_decay": 0,
            "checkpoint_seconds": 0,
        }
        problems = [
            f"--{name.replace('_', '-')}: {getattr(self, name)} is below {low}, the least that works."
            for name, low in least.items()
            if getattr(self, name) is not None and getattr(self, name) < low
        ]
        problems += [
            f"--{name.replace('_', '-')}: {value:g} is not above 0."
            for name in ("minutes", "learning_rate", "max_grad_norm")
            if (value := getattr(self, name)) is not None and not value > 0
        ]
        problems += [f"--text: {file} is not a file." for file in self.text if not Path(file).is_file()]
        if not 0 <= self.warmup < 1:
            problems.append(f"--warmup: {self.warmup:g} is not a share of training, from 0 to below 1.")
        if self.steps is not None and self.minutes is not None:
            problems.append("--steps and --minutes both say when training ends; give one of them.")
        if self.precision not in PRECISIONS:
            problems.append(f"--precision: {self.precision!r} is unknown; choose one of {', '.join(PRECISIONS)}.")
        if self.batch_size % (self.device_batch_size * processes):
            together = f" on each of {processes} devices" if processes > 1 else ""
            problems.append(
                f"--batch-size: {self.batch_size} rows cannot be divided in parts of --device-batch-size "
                f"{self.device_batch_size}{together}; change one of them."
            )
        if not self.text:
            problems.append("--text: give at least one file of documents.")
        if problems:
            raise SettingsError(problems)

    def decisive(self) -> dict[str, Any]:
        """The settings that a resumed training must share with its beginning."""
        names = [field.name for field in fields(self) if field.name not in _FREE_WHEN_RESUMED]
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in names}
