"""Sorting runs: which were judged on the same documents, and which differ in nothing but the seed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.report.choose.method_rows import data_key, method_rows, row_key, searched_values
from prefixprop.runs.run import Run
from prefixprop.settings.run_settings import RunSettings


@dataclass(frozen=True)
class Trial:
    """Runs of the same settings, but for the seed and the fold."""

    runs: tuple[Run, ...]

    @property
    def settings(self) -> RunSettings:
        return self.runs[0].settings

    def values(self, part: str, measure: str) -> list[float]:
        """A measure of every run that has it, in the order of the seeds."""
        found = (run.metric(part, measure) for run in self.runs)
        return [value for value in found if value is not None]

    def mean(self, part: str, measure: str) -> float:
        """The mean of these values, below all others where there are none."""
        values = self.values(part, measure)
        return statistics.fmean(values) if values else float("-inf")

    def with_predictions(self, split: str) -> tuple[Run, ...]:
        """The runs that kept their predictions of a split; all of them where none did."""
        return tuple(run for run in self.runs if run.has_predictions(split)) or self.runs

    @property
    def dev_score(self) -> float:
        """The mean over seeds of the measure on dev that checkpoints are chosen by."""
        return self.mean("dev", self.settings.metric)


@dataclass(frozen=True)
class Contender:
    """One row of a table: a model tuned by a method, at the searched values that stand for it.

    The paper searches with one seed and repeats the best with more, so the values with the most seeds stand for the
    method, and of these the best of a cross-validation that judged them all, or else the best on dev; a lucky single
    run does not.

    Attributes:
        model: The name of the model.
        method: The method, with its kernel, and with settings that only this row of the method has.
        trials: All values that were tried, those that stand for the method first.
        folds: The runs of a cross-validation by the values they tried, the best of them first; they help to choose
            and are no results.
    """

    model: str
    method: str
    trials: tuple[Trial, ...]
    folds: tuple[Trial, ...] = ()

    @property
    def best(self) -> Trial:
        return self.trials[0]

    @property
    def name(self) -> str:
        return f"{self.method}, {self.model}"


@dataclass(frozen=True)
class Comparison:
    """The runs that were judged on the same documents by the same protocol, the best row first."""

    title: str
    documents: dict[str, int]
    labels: tuple[str, ...] | None
    contenders: tuple[Contender, ...]

    @property
    def settings(self) -> RunSettings:
        return self.contenders[0].best.settings

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What stands for the method of every row."""
        return tuple(contender.best for contender in self.contenders)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.documents)

    @property
    def judged_on(self) -> str:
        """The split whose numbers stand first: test where there is one."""
        return self.splits[-1]

    @property
    def measure(self) -> str:
        """What the rows are compared by, as people call it."""
        return self.settings.metric.replace("micro_f1", "micro-F1")

    @property
    def lone_run(self) -> Run | None:
        """The only run, where there is but one."""
        return self.trials[0].runs[0] if sum(len(trial.runs) for trial in self.trials) == 1 else None

    @property
    def items(self) -> str:
        """What is judged, in the plural."""
        return "questions" if self.labels is None else "documents"

    @property
    def description(self) -> str:
        """Which documents they are, in a few words."""
        counts = " and ".join(f"{count:,} {split}" for split, count in self.documents.items())
        return f"{counts} {self.items}" + ("" if self.labels is None else f", {len(self.labels)} labels")

    def short_name(self, contender: Contender) -> str:
        """The method, and the model where it is not the usual one, without who made it."""
        if contender.model == self.usual_model:
            return contender.method
        return f"{contender.method}, {contender.model.rsplit('/', 1)[-1]}"

    @property
    def usual_model(self) -> str | None:
        """The model of more than half of the rows, if there is one."""
        model, count = Counter(row.model for row in self.contenders).most_common(1)[0]
        return model if 2 * count > len(self.contenders) else None

    @property
    def models(self) -> tuple[str, ...]:
        """Every model once, in the order of the rows."""
        return tuple(dict.fromkeys(contender.model for contender in self.contenders))

    @property
    def seed_counts(self) -> tuple[int, ...]:
        """How many seeds the rows have: every number once."""
        return tuple(sorted({len(trial.runs) for trial in self.trials}))


def compare(runs: Iterable[Run]) -> tuple[Comparison, ...]:
    """Sort runs into comparisons, their rows and their trials, all in a fixed order.

    Runs on folds go to the rows that they helped to choose, judged at the same epoch, and make no rows of their own.
    """
    by_documents: dict[Any, list[Run]] = {}
    on_folds: dict[Any, list[Run]] = {}
    for run in runs:
        if run.settings.fold is not None:
            on_folds.setdefault(row_key(run), []).append(run)
        else:
            judged = data_key(run), tuple(run.documents.items()), run.settings.keep
            by_documents.setdefault(judged, []).append(run)
    found = [_comparison(together, on_folds) for together in by_documents.values()]
    # Documents of one name, such as a sample and the whole, are told apart by their numbers, or else by their files.
    found = _extended(found, [f" ({one.description})" for one in found])
    found.sort(key=lambda comparison: comparison.title)
    files = [" ".join(one.settings.train_files) for one in found]
    found = _extended(found, [f", {name}" if name else "" for name in files])
    titles = [one.title for one in found]
    numbers = [titles[: index + 1].count(title) for index, title in enumerate(titles)]
    return tuple(_extended(found, [f", no. {number}" for number in numbers]))


def _extended(comparisons: Sequence[Comparison], additions: Sequence[str]) -> list[Comparison]:
    """The comparisons, with something added to the titles that several of them have."""
    titles = Counter(comparison.title for comparison in comparisons)
    return [
        replace(comparison, title=comparison.title + addition) if titles[comparison.title] > 1 else comparison
        for comparison, addition in zip(comparisons, additions, strict=True)
    ]


def protocol_title(settings: RunSettings) -> str:
    """The name of the data, with the protocol where it is not the paper's.

    >>> protocol_title(RunSettings(task="arxiv", keep="last"))
    'arxiv, last epoch'
    """
    return settings.data_name + (", last epoch" if settings.keep == "last" else "")


def _comparison(runs: Sequence[Run], on_folds: Mapping[Any, Sequence[Run]]) -> Comparison:
    contenders = []
    for row in method_rows(runs):
        trials = trials_of(row.runs)
        folds = _folds_that_chose(on_folds.get(row_key(row.runs[0]), ()), trials)
        contenders.append(Contender(row.model, row.name, _by_folds(trials, folds), folds))
    first = runs[0]
    contenders.sort(key=lambda row: row.best.mean(first.splits[-1], first.settings.metric), reverse=True)
    return Comparison(protocol_title(first.settings), first.documents, first.labels, tuple(contenders))


def trials_of(runs: Sequence[Run]) -> tuple[Trial, ...]:
    """The runs of a row by their searched values: those with the most runs first, and of these the best on dev.

    Among equals that which a sweep chose.
    """
    by_value: dict[Any, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.settings.seed):
        by_value.setdefault(searched_values(run.settings), []).append(run)
    trials = [Trial(tuple(together)) for together in by_value.values()]
    return tuple(sorted(trials, key=_merit, reverse=True))


def _merit(trial: Trial) -> tuple[float, ...]:
    return len(trial.runs), trial.dev_score, sum(not run.search_only for run in trial.runs)


def _folds_that_chose(runs: Sequence[Run], trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The runs of a cross-validation that judged whatever was tried; of one number of folds alone."""
    by_number: dict[int | None, list[Run]] = {}
    for run in runs:
        by_number.setdefault(run.settings.folds, []).append(run)
    folds = trials_of(max(by_number.values(), key=len, default=[]))
    judged = {searched_values(trial.settings) for trial in folds}
    return folds if all(searched_values(trial.settings) in judged for trial in trials) else ()


def _by_folds(trials: Sequence[Trial], folds: Sequence[Trial]) -> tuple[Trial, ...]:
    """Those with the most runs first, and of these the best of the cross-validation; dev then chooses nothing."""
    if not folds:
        return tuple(trials)
    judged = [searched_values(trial.settings) for trial in folds]
    return tuple(sorted(trials, key=lambda trial: (-len(trial.runs), judged.index(searched_values(trial.settings)))))
