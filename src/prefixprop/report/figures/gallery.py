"""All pictures that a set of runs has the data for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefixprop.evaluate import confusion_counts, reliability
from prefixprop.report.choose.comparisons import Comparison, Contender
from prefixprop.report.figures.canvas import saved
from prefixprop.report.figures.confusion import plot_confusion
from prefixprop.report.figures.lengths import plot_lengths
from prefixprop.report.figures.methods import plot_calibration_course, plot_learning_rates, plot_seeds
from prefixprop.report.figures.reliability import plot_reliability
from prefixprop.report.file_names import file_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The page has every picture as SVG.
ENDINGS = (".png", ".pdf")


@dataclass(frozen=True)
class Picture:
    """A figure with what it shows, in words; `name` is a file's name without its ending.

    `section` is the heading under which the page has it, and `fold` what the page folds it away under, if anything.
    """

    name: str
    caption: str
    figure: Figure
    section: str
    fold: str = ""

    def save(self, folder: Path) -> list[Path]:
        """Write it in every format, and return the paths."""
        paths = [folder / f"{self.name}{ending}" for ending in ENDINGS]
        for path in paths:
            saved(self.figure, path)
        return paths


def pictures(comparisons: Sequence[Comparison], report_problem: Callable[[str], None]) -> Iterator[Picture]:
    """Draw one after the other; `report_problem` gets what keeps some of them from being drawn."""
    groups = [("No picture of the documents' lengths", _of_lengths(comparisons))]
    for number, comparison in enumerate(comparisons, start=1):
        prefix = f"{number}-{comparison.settings.data_name}"
        groups.append((f"Not all pictures of {comparison.title}", _of_all_methods(comparison, prefix)))
        for row, contender in enumerate(comparison.contenders, start=1):
            drawn = _of_one_run(comparison, contender, f"{prefix}-{row}")
            groups.append((f"No reliability diagram of {contender.name}", drawn))
    for problem, group in groups:
        try:
            yield from group
        except (ValueError, OSError) as error:
            report_problem(f"{problem}: {error}")


def _of_lengths(comparisons: Sequence[Comparison]) -> Iterator[Picture]:
    figure = plot_lengths(comparisons)
    if figure is not None:
        caption = "Lengths of the train documents of every task; the line is the median."
        section = comparisons[0].title if len(comparisons) == 1 else "Documents"
        yield Picture("document-lengths", caption, figure, section, "Lengths of documents")


def _of_all_methods(comparison: Comparison, prefix: str) -> Iterator[Picture]:
    drawn = []
    for split in reversed(comparison.splits):
        caption = f"{comparison.measure} on {split} of every seed; the line is the mean, the bar its 95 % interval."
        drawn.append((f"seeds-{split}", caption, plot_seeds(comparison, split)))
    caption = "calibration error on dev over training; mean and range over seeds."
    drawn.append(("ece-over-training", caption, plot_calibration_course(comparison)))
    caption = "sensitivity to the learning rate; lines join means over seeds."
    drawn.append(("learning-rates", caption, plot_learning_rates(comparison)))
    for name, caption, figure in drawn:
        if figure is not None:
            fold = "" if name == f"seeds-{comparison.judged_on}" else "More pictures"
            title = file_name(f"{prefix}-{name}")
            yield Picture(title, f"{comparison.title}: {caption}", figure, comparison.title, fold)


def _of_one_run(comparison: Comparison, contender: Contender, prefix: str) -> Iterator[Picture]:
    """The pictures of one seed, because the mean of several would be of no model."""
    split = comparison.judged_on
    place = comparison.title, "" if comparison.lone_run is not None else "One run of each method"
    run = contender.best.with_predictions(split)[0]
    before = run.predictions(split)
    if run.temperature is None:
        raise ValueError(f"{run.path} has no temperature.")
    after, labels = before.with_temperature(run.temperature), before.known_labels
    what = f"{comparison.title}, {contender.name}, seed {run.settings.seed}, {split}"
    title = f"{comparison.title}, {split}, seed {run.settings.seed}\n{comparison.short_name(contender)}"
    yield Picture(
        file_name(f"{prefix}-reliability"),
        f"{what}: reliability before and after scaling.",
        plot_reliability(
            reliability(before.probabilities, labels),
            reliability(after.probabilities, labels),
            temperature=run.temperature.value,
            title=title,
        ),
        *place,
    )
    if before.label_names is not None and comparison.lone_run is not None:
        counts = confusion_counts(before.probabilities, labels)
        figure = plot_confusion(counts, before.label_names, title=title)
        yield Picture(file_name(f"{prefix}-confusion"), f"{what}: which label is taken for which.", figure, *place)
