"""The measures that tables show: where `metrics.json` has them, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefixprop.report.choose.comparisons import Trial
from prefixprop.report.tables.table import Better, Column, interval_cell, number_cell


@dataclass(frozen=True)
class Measure:
    """A measure of a run, by its name in `metrics.json`; `calibrated` ones are those after temperature scaling."""

    title: str
    name: str
    decimals: int
    scale: float
    better: Better
    calibrated: bool = False

    def column(self, trials: Sequence[Trial], split: str) -> Column:
        """Its mean and standard deviation over the runs of every trial."""
        part = f"{split}_calibrated" if self.calibrated else split
        found = [trial.values(part, self.name) for trial in trials]
        return Column(self.title, [number_cell(values, self.decimals, self.scale) for values in found], self.better)

    def interval_column(self, trials: Sequence[Trial], split: str) -> Column:
        """The 95 % interval of its mean over the runs of every trial."""
        found = [trial.values(split, self.name) for trial in trials]
        cells = [interval_cell(values, self.decimals, self.scale) for values in found]
        return Column(f"{self.title.removesuffix(', %')}, 95 % interval", cells)


_PERCENT = (1, 100.0, Better.HIGHER)
# By the measure that a task is judged by. Every document has one label, so that accuracy is micro-F1 again.
QUALITY = {
    "micro_f1": (
        Measure("P macro, %", "macro_precision", *_PERCENT),
        Measure("R macro, %", "macro_recall", *_PERCENT),
        Measure("F1 micro, %", "micro_f1", *_PERCENT),
        Measure("F1 binary, %", "binary_f1", *_PERCENT),
    ),
    "accuracy": (Measure("Accuracy, %", "accuracy", *_PERCENT),),
}
_ERROR = (3, 1.0, Better.LOWER)
ECE = Measure("ECE", "ece", *_ERROR)
CALIBRATION = (
    ECE,
    Measure("ECE after scaling", "ece", *_ERROR, calibrated=True),
    Measure("Adaptive ECE", "adaptive_ece", *_ERROR),
    Measure("MCE", "mce", *_ERROR),
    Measure("Brier", "brier", *_ERROR),
    Measure("NLL", "nll", *_ERROR),
    Measure("NLL after scaling", "nll", *_ERROR, calibrated=True),
)


def headline(metric: str) -> Measure:
    """The measure of quality that a task is judged by, by its name.

    >>> headline("micro_f1").title
    'F1 micro, %'
    """
    return next(measure for measure in QUALITY[metric] if measure.name == metric)
