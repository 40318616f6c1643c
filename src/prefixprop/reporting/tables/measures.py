"""The measures that tables show: where `metrics.json` has them, and how they are written."""

from __future__ import annotations

from dataclasses import dataclass

from prefixprop.reporting.choose.comparisons import Trial
from prefixprop.reporting.tables.table import Better, Cell, interval_cell, number_cell


@dataclass(frozen=True)
class Measure:
    """A measure of a run, by its name in `metrics.json`; `calibrated` ones are those after temperature scaling."""

    title: str
    name: str
    decimals: int
    scale: float
    better: Better
    calibrated: bool = False

    @property
    def interval_title(self) -> str:
        return f"{self.title.removesuffix(', %')}, 95 % interval"

    def cell(self, trial: Trial, split: str) -> Cell:
        """Its mean and standard deviation over the runs."""
        part = f"{split}_calibrated" if self.calibrated else split
        return number_cell(trial.values(part, self.name), self.decimals, self.scale)

    def interval(self, trial: Trial, split: str) -> Cell:
        """The 95 % interval of its mean over the runs."""
        return interval_cell(trial.values(split, self.name), self.decimals, self.scale)


_PERCENT = (1, 100.0, Better.HIGHER)
QUALITY = (
    Measure("P macro, %", "macro_precision", *_PERCENT),
    Measure("R macro, %", "macro_recall", *_PERCENT),
    Measure("F1 micro, %", "micro_f1", *_PERCENT),
    Measure("F1 binary, %", "binary_f1", *_PERCENT),
    Measure("Accuracy, %", "accuracy", *_PERCENT),
)
ECE = Measure("ECE", "ece", 3, 1.0, Better.LOWER)
CALIBRATION = (
    ECE,
    Measure("ECE after scaling", "ece", 3, 1.0, Better.LOWER, calibrated=True),
    Measure("Adaptive ECE", "adaptive_ece", 3, 1.0, Better.LOWER),
    Measure("MCE", "mce", 3, 1.0, Better.LOWER),
    Measure("Brier", "brier", 3, 1.0, Better.LOWER),
    Measure("NLL", "nll", 3, 1.0, Better.LOWER),
    Measure("NLL after scaling", "nll", 3, 1.0, Better.LOWER, calibrated=True),
)


def headline(metric: str) -> Measure:
    """The measure of quality that a task is judged by, by its name.

    >>> headline("micro_f1").title
    'F1 micro, %'
    """
    return next(measure for measure in QUALITY if measure.name == metric)
