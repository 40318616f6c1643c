"""All pictures that a set of runs has the data for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefixprop.evaluation import confusion_counts, reliability
from prefixprop.reporting.choose.comparisons import Comparison, Contender
from prefixprop.reporting.figures.calibration_course import plot_calibration_course
from prefixprop.reporting.figures.canvas import saved
from prefixprop.reporting.figures.confusion import plot_confusion
from prefixprop.reporting.figures.lengths import plot_lengths, train_lengths
from prefixprop.reporting.figures.method_styles import picture_name
from prefixprop.reporting.figures.rates import plot_learning_rates
from prefixprop.reporting.figures.reliability import plot_reliability
from prefixprop.reporting.figures.seeds import plot_seeds
from prefixprop.reporting.file_names import file_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LENGTHS = "Lengths of the train documents of every task; the line is the median."
ENDINGS = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class Picture:
    """A figure with what it shows, in words; `name` is a file's name without its ending."""

    name: str
    caption: str
    figure: Figure

    def save(self, folder: Path) -> list[Path]:
        """Write it in every format, and return the paths."""
        paths = [folder / f"{self.name}{ending}" for ending in ENDINGS]
        for path in paths:
            saved(self.figure, path)
        return paths


def pictures(comparisons: Sequence[Comparison], tell: Callable[[str], None]) -> Iterator[Picture]:
    """Draw one after the other; `tell` gets what keeps a picture from being drawn, such as lacking predictions."""
    try:
        lengths = plot_lengths(comparisons)
        for comparison in comparisons:
            if not train_lengths(comparison):
                lack = "no run that stands for a method has kept the lengths of its documents"
                tell(f"No lengths of the documents of {comparison.title}: {lack}.")
    except ValueError as error:
        lengths = None
        tell(f"No picture of the documents' lengths: {error}")
    if lengths is not None:
        yield Picture("document-lengths", _LENGTHS, lengths)
    for number, comparison in enumerate(comparisons, start=1):
        prefix = f"{number}-{comparison.settings.data_name}"
        for name, caption, figure in _of_all_methods(comparison):
            if figure is not None:
                yield Picture(file_name(f"{prefix}-{name}"), f"{comparison.title}: {caption}", figure)
        for place, contender in enumerate(comparison.contenders, start=1):
            try:
                yield from _of_one_run(comparison, contender, f"{prefix}-{place}")
            except (ValueError, OSError) as error:
                tell(f"No reliability diagram and confusion matrix of {contender.name}: {error}")


def _of_all_methods(comparison: Comparison) -> Iterator[tuple[str, str, Figure | None]]:
    measure = "accuracy" if comparison.labels is None else "micro-F1"
    for split in comparison.splits:
        caption = f"{measure} on {split} of every seed; the line is the mean."
        yield f"seeds-{split}", caption, plot_seeds(comparison, split)
    caption = "calibration error on dev over training; mean and range over seeds."
    yield "ece-over-training", caption, plot_calibration_course(comparison)
    caption = "sensitivity to the learning rate; lines join means over seeds."
    yield "learning-rates", caption, plot_learning_rates(comparison)


def _of_one_run(comparison: Comparison, contender: Contender, prefix: str) -> Iterator[Picture]:
    """The pictures of one seed, because the mean of several would be of no model."""
    split = comparison.splits[-1]
    run = contender.best.with_predictions(split)[0]
    before = run.predictions(split)
    if run.temperature is None:
        raise ValueError(f"{run.path} has no temperature.")
    after, labels = before.with_temperature(run.temperature), before.known_labels
    what = f"{comparison.title}, {contender.name}, seed {run.settings.seed}, {split}"
    title = f"{comparison.title}, {split}, seed {run.settings.seed}\n{picture_name(comparison, contender)}"
    yield Picture(
        file_name(f"{prefix}-reliability"),
        f"{what}: reliability before and after scaling.",
        plot_reliability(
            reliability(before.probabilities, labels),
            reliability(after.probabilities, labels),
            temperature=run.temperature.value,
            title=title,
        ),
    )
    if before.label_names is not None:
        counts = confusion_counts(before.probabilities, labels)
        figure = plot_confusion(counts, before.label_names, title=title)
        yield Picture(file_name(f"{prefix}-confusion"), f"{what}: which label is taken for which.", figure)
