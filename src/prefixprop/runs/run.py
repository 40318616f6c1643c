"""A finished run, in its directory or in an archive: its settings and its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from prefixprop.evaluate import PredictionSet, Temperature
from prefixprop.runs.directory import DOCUMENTS
from prefixprop.settings.run_settings import SETTINGS, RunSettings

SPLITS = ("dev", "test")
# These differ between machines; the labels and the number of documents say which documents they are.
_WHERE_DOCUMENTS_ARE = (
    "data_dir",
    "train_files",
    "dev_files",
    "test_files",
    "max_dev_documents",
    "max_test_documents",
)
DECISIVE_SETTINGS = tuple(
    name for name, declared in SETTINGS.items() if not declared.resumable and name not in _WHERE_DOCUMENTS_ARE
)


@dataclass(frozen=True)
class Run:
    """A finished run, as read from its directory or archive."""

    path: Path
    settings: RunSettings
    metrics: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] | None = None
    search_only: bool = False  # its sweep used it to choose a value, and chose another
    read_predictions: Mapping[str, Callable[[], PredictionSet]] = field(default_factory=dict)  # by split
    read_lengths: Callable[[], tuple[int, ...]] = tuple

    def metric(self, part: str, name: str) -> float | None:
        """One number of `metrics.json`, such as `metric("test", "micro_f1")`; None if the run does not have it."""
        return as_number(self.metrics.get(part, {}).get(name))

    def baseline(self, split: str, name: str) -> float | None:
        """A number of the linear model that was fitted on the run's documents; None if there is none."""
        return as_number(self.metrics.get("baseline", {}).get(split, {}).get(name))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the run was evaluated on."""
        return tuple(split for split in SPLITS if self.metric(split, "accuracy") is not None)

    @property
    def documents(self) -> dict[str, int]:
        """How many documents it was evaluated on, by split."""
        return {split: int(self.metric(split, "documents") or 0) for split in self.splits}

    @property
    def identity_of_documents(self) -> tuple[Any, ...]:
        """What runs on the same documents have in common."""
        return self.names_of_files, self.fingerprint_of_files, self.labels, tuple(self.documents.items())

    @property
    def fingerprint_of_files(self) -> str | None:
        """Distinguishes the user's documents from others, as in files of the same names; None if not known."""
        are_own = self.names_of_files or not self.settings.has_source
        return str(self.environment[DOCUMENTS]) if are_own and DOCUMENTS in self.environment else None

    @property
    def names_of_files(self) -> tuple[str, ...]:
        """The names of the user's own files, without their folders."""
        settings = self.settings
        return tuple(Path(file).name for file in (*settings.train_files, *settings.dev_files, *settings.test_files))

    @property
    def device(self) -> str:
        return str(self.environment.get("device") or "unknown")

    @property
    def temperature(self) -> Temperature | None:
        """The temperature fitted on dev; None if the metrics lack it."""
        value = as_number(self.metrics.get("temperature"))
        return None if value is None or value <= 0 else Temperature(value)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each training document has, before it is cut; empty if the run did not store them."""
        return self.read_lengths()

    def has_predictions(self, split: str) -> bool:
        """Whether the predictions of a split are stored; an archive does not have them for all runs."""
        return split in self.read_predictions

    def predictions(self, split: str) -> PredictionSet:
        """The run's uncalibrated predictions of a split; `ValueError` if they are not stored."""
        if split not in self.read_predictions:
            raise ValueError(f"{self.path} has no predictions of {split}.")
        return self.read_predictions[split]()


def as_number(value: Any) -> float | None:
    """The value as a float if it is a finite number, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
