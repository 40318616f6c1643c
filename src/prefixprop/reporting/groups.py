"""Sorting runs: which were judged on the same documents, and which differ in nothing but the seed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefixprop.reporting.protocol import PROTOCOL_SETTINGS, is_on_fold, keeps_last_epoch
from prefixprop.reporting.runs import DECISIVE_SETTINGS, Run
from prefixprop.training import RunSettings

# These are searched on dev before the seeds are run (Section 4 and Appendix A of the paper), so they do not make
# another method.
SEARCHED = ("learning_rate", "alpha")
_SHOWN_ANYWAY = ("task", "hub_dataset", "hub_config", "model", "method", "kernel", "seed")
_FIXED = tuple(name for name in DECISIVE_SETTINGS if name not in (*SEARCHED, *_SHOWN_ANYWAY, *PROTOCOL_SETTINGS))


@dataclass(frozen=True)
class Trial:
    """Runs of the same settings, but for the seed."""

    runs: tuple[Run, ...]

    @property
    def settings(self) -> RunSettings:
        return self.runs[0].settings

    def values(self, part: str, measure: str) -> list[float]:
        """A measure of every run that has it, in the order of the seeds."""
        found = (run.measure(part, measure) for run in self.runs)
        return [value for value in found if value is not None]

    def with_predictions(self, split: str) -> tuple[Run, ...]:
        """The runs that kept their predictions of a split; all of them where none did, to tell of their lack."""
        return tuple(run for run in self.runs if run.has_predictions(split)) or self.runs

    @property
    def dev_score(self) -> float:
        """The mean over seeds of the measure on dev that checkpoints are chosen by."""
        values = self.values("dev", self.settings.metric)
        return statistics.fmean(values) if values else float("-inf")


@dataclass(frozen=True)
class Contender:
    """One row of a table: a model tuned by a method, at the searched values that stand for it.

    The paper searches with one seed and repeats the best with more, so the values with the most seeds stand for the
    method, and of these the best on dev; a lucky single run does not.

    Attributes:
        model: The name of the model.
        method: The method, with its kernel, and with settings that other rows of the same method have otherwise.
        trials: All values that were tried, those that stand for the method first.
        folds: The runs of a cross-validation by the values they tried; they help to choose and are no results.
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
    """The runs that were judged on the same documents by the same protocol."""

    title: str
    documents: dict[str, int]
    labels: tuple[str, ...] | None
    contenders: tuple[Contender, ...]

    @property
    def settings(self) -> RunSettings:
        return self.contenders[0].best.settings

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.documents)

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
        """The method alone where all rows have the same model."""
        return contender.method if len({other.model for other in self.contenders}) == 1 else contender.name

    @property
    def models(self) -> tuple[str, ...]:
        """Every model once, in the order of the rows."""
        return tuple(dict.fromkeys(contender.model for contender in self.contenders))

    @property
    def has_several_seeds(self) -> bool:
        return any(len(contender.best.runs) > 1 for contender in self.contenders)


def compare(runs: Iterable[Run]) -> tuple[Comparison, ...]:
    """Sort runs into comparisons, their rows and their trials, all in a fixed order.

    Runs on folds go to the rows that they helped to choose, and make no rows of their own.
    """
    by_documents: dict[Any, list[Run]] = {}
    on_folds: dict[Any, list[Run]] = {}
    for run in runs:
        if is_on_fold(run.settings):
            on_folds.setdefault(_row_key(run), []).append(run)
        else:
            by_documents.setdefault(_documents_key(run), []).append(run)
    found = [_comparison(together, on_folds) for together in by_documents.values()]
    titles = [comparison.title for comparison in found]
    # Two sets of documents of one name, such as a sample and the whole, are told apart by their numbers.
    found = [
        replace(one, title=f"{one.title} ({one.description})") if titles.count(one.title) > 1 else one
        for one in found
    ]
    return tuple(sorted(found, key=lambda comparison: comparison.title))


def _documents_key(run: Run) -> Any:
    settings = run.settings
    return settings.data_name, settings.hub_config, run.identity_of_documents, keeps_last_epoch(settings)


def _row_key(run: Run) -> Any:
    """What the runs of a row have in common with those on folds, whose documents and epochs may be others."""
    settings = run.settings
    shown = settings.data_name, settings.hub_config, settings.model, _method_name(settings)
    return (*shown, _fixed_values(run))


def _fixed_values(run: Run) -> tuple[Any, ...]:
    return tuple(getattr(run.settings, name) for name in _FIXED)


def _comparison(runs: Sequence[Run], on_folds: Mapping[Any, Sequence[Run]]) -> Comparison:
    model_names = _model_names(runs)
    rows: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        rows.setdefault((model_names[run.settings.model], _method_name(run.settings)), []).append(run)
    contenders: list[Contender] = []
    for (model, method), together in sorted(rows.items()):
        contenders += _contenders(model, method, together, on_folds)
    first = runs[0]
    protocol = ", last epoch" if keeps_last_epoch(first.settings) else ""
    return Comparison(first.settings.data_name + protocol, first.documents, first.labels, tuple(contenders))


def _contenders(
    model: str, method: str, runs: Sequence[Run], on_folds: Mapping[Any, Sequence[Run]]
) -> list[Contender]:
    """A row, or several where runs differ in settings that are not searched on dev."""
    by_settings: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        by_settings.setdefault(_fixed_values(run), []).append(run)
    contenders = []
    for values, together in by_settings.items():
        told = [
            f"{name.replace('_', ' ')} {value}"
            for place, (name, value) in enumerate(zip(_FIXED, values, strict=True))
            if any(other[place] != value for other in by_settings)
        ]
        folds = _trials(on_folds.get(_row_key(together[0]), ()))
        contenders.append(Contender(model, ", ".join([method, *told]), _trials(together), folds))
    return contenders


def _trials(runs: Sequence[Run]) -> tuple[Trial, ...]:
    by_value: dict[tuple[Any, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.settings.seed):
        by_value.setdefault(_searched_values(run.settings), []).append(run)
    trials = [Trial(tuple(together)) for together in by_value.values()]
    return tuple(sorted(trials, key=lambda trial: (len(trial.runs), trial.dev_score), reverse=True))


def _searched_values(settings: RunSettings) -> tuple[Any, ...]:
    # Without a kernel there is no alpha, whatever the settings say.
    return settings.learning_rate, settings.alpha if settings.kernel else None


def _method_name(settings: RunSettings) -> str:
    if not (settings.is_prefix_method and settings.kernel):
        return settings.method
    mode = "" if settings.alpha_mode == "fixed" else f", alpha per {settings.alpha_mode}"
    return f"{settings.method}, {settings.kernel} kernel{mode}"


def _model_names(runs: Sequence[Run]) -> dict[str, str]:
    """Models without the folders they lie in, unless only these tell them apart."""
    models = {run.settings.model for run in runs}
    short = {model: model if not Path(model).is_absolute() else Path(model).name for model in models}
    return {model: name if list(short.values()).count(name) == 1 else model for model, name in short.items()}
