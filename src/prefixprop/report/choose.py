"""Which runs are compared: those judged on the same documents, each method at the values that represent it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from prefixprop.runs.find import DECISIVE_SETTINGS, Run
from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import SETTINGS, RunSettings

LEFT_OUT = "held-out"  # the documents of folds that a run was judged on; its files call them dev
# These make no other method: the first two are searched before the seeds are run (Section 4 and Appendix A of the
# paper), the next are shown anyway, and the last are how a run was judged.
_OPEN = "learning_rate alpha task hub_dataset hub_config model method kernel seed fold folds keep"
_FIXED = tuple(name for name in DECISIVE_SETTINGS if name not in _OPEN.split())
Item = TypeVar("Item")


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """The items by key, all in the order in which they come."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def set_name(split: str) -> str:
    """A split as a noun: `the test set`, or `held-out documents`."""
    return "held-out documents" if split == LEFT_OUT else f"the {split} set"


def stored_name(split: str) -> str:
    """What a run's files call the split."""
    return "dev" if split == LEFT_OUT else split


def documents_of(run: Run) -> dict[str, int]:
    """How many documents the run was judged on, by split; held-out documents are not called a dev set."""
    own = "dev" if run.metrics.get("judged_on", "dev") == "dev" else LEFT_OUT
    return {own if split == "dev" else split: count for split, count in run.documents.items()}


@dataclass(frozen=True)
class Row:
    """One row of a table: a model tuned by a method; its runs differ in nothing but the seed and the fold."""

    model: str | None  # TF-IDF has none
    method: str  # with its kernel
    # Settings that are not the defaults, where another row of the method has them otherwise.
    own: tuple[tuple[str, Any], ...]
    runs: tuple[Run, ...]  # in the order of their seeds
    tried: int = 1  # how many learning rates, or pairs of that and alpha, the row was chosen from
    by_folds: bool = False  # whether a cross-validation chose, not the dev set

    @property
    def name(self) -> str:
        return ", ".join([self.method, *(f"{name.replace('_', ' ')} {value}" for name, value in self.own)])

    @property
    def settings(self) -> RunSettings:
        return self.runs[0].settings

    @property
    def searched(self) -> tuple[float | None, float | None]:
        """The learning rate, and alpha; without a kernel there is none, whatever the settings say."""
        return _searched(self.settings)

    def values(self, split: str, metric: str, calibrated: bool = False) -> list[float]:
        """A metric of every run that was judged on the split."""
        part = stored_name(split) + ("_calibrated" if calibrated else "")
        found = (run.metric(part, metric) for run in self.runs if split in documents_of(run))
        return [value for value in found if value is not None]

    def mean(self, split: str) -> float:
        """The mean of the metric that the task is judged by, below all others where no run has it."""
        return statistics.fmean(self.values(split, self.settings.metric) or [float("-inf")])

    @property
    def dev_score(self) -> float:
        return max(self.mean("dev"), self.mean(LEFT_OUT))

    def differences(self, other: Row) -> int:
        """How many settings another row has otherwise, apart from its method and what is searched."""
        pairs = zip(_fixed_values(self.runs[0]), _fixed_values(other.runs[0]), strict=True)
        return sum(own != theirs for own, theirs in pairs)

    def with_predictions(self, split: str) -> tuple[Run, ...]:
        """The runs that kept their predictions of a split; all of them where none did."""
        return tuple(run for run in self.runs if run.has_predictions(stored_name(split))) or self.runs


@dataclass(frozen=True)
class Comparison:
    """The runs that were judged on the same documents by the same protocol, the best row first."""

    title: str
    documents: dict[str, int]  # by split; the numbers of the last stand first: those of the test set if there is one
    labels: tuple[str, ...] | None
    rows: tuple[Row, ...]

    @property
    def settings(self) -> RunSettings:
        return self.rows[0].settings

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for row in self.rows for run in row.runs)

    @property
    def judged_on(self) -> str:
        return list(self.documents)[-1]

    @property
    def items(self) -> str:
        """What is judged, in the plural."""
        return "questions" if self.labels is None else "documents"

    @property
    def models(self) -> set[str]:
        return {row.model for row in self.rows if row.model is not None}

    def name(self, row: Row) -> str:
        """The method of a row, and its model where there are several."""
        return row.name if len(self.models) < 2 or row.model is None else f"{row.name}, {row.model}"


def compare(runs: Iterable[Run]) -> tuple[Comparison, ...]:
    """Sort runs into comparisons and their rows, all in a fixed order.

    Runs on folds help to choose the values of a row, and make no rows of their own.
    """
    by_kind = grouped(runs, lambda run: run.settings.fold is not None)
    on_folds = grouped(by_kind.get(True, ()), row_key)
    by_documents = grouped(by_kind.get(False, ()), _judged)
    # Runs that have no dev set, or no epochs, stand beside others on the same test set.
    for key in [key for key in by_documents if None in key]:
        beside = next((other for other in by_documents if other != key and _covers(other, key)), None)
        if beside is not None:
            by_documents[beside] += by_documents.pop(key)
    found = []
    for together in by_documents.values():
        counts = {split: count for run in together for split, count in documents_of(run).items()}
        documents = {split: counts[split] for split in ("dev", LEFT_OUT, "test") if split in counts}
        rows = sorted(_chosen(rows_of(together), on_folds), key=lambda row: -row.mean(list(documents)[-1]))
        found.append(Comparison(protocol_title(together[0].settings), documents, together[0].labels, tuple(rows)))
    by_title = grouped(sorted(found, key=lambda one: one.settings.train_files), lambda one: one.title)
    return tuple(
        one if len(same) == 1 else replace(one, title=f"{title}, no. {number}")
        for title, same in sorted(by_title.items())
        for number, one in enumerate(same, start=1)
    )


def cross_validations(runs: Iterable[Run]) -> list[Comparison]:
    """The runs on folds of the same data, with a row for every value that was tried."""
    on_folds = [run for run in runs if run.settings.fold is not None and "dev" in documents_of(run)]
    found = []
    for together in grouped(on_folds, lambda run: (data_key(run), run.settings.folds, run.settings.keep)).values():
        rows, first = sorted(rows_of(together), key=_place), together[0]
        found.append(Comparison(protocol_title(first.settings), first.documents, first.labels, tuple(rows)))
    return sorted(found, key=lambda one: (one.title, one.settings.folds))


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """A row for every model, method, setting and searched value of these runs."""
    models, rows = _model_names(runs), []
    by_method = grouped(runs, lambda run: (_model_of(run, models), method_name(run.settings)))
    for (model, method), of_method in sorted(by_method.items()):
        columns = zip(_FIXED, zip(*map(_fixed_values, of_method), strict=True), strict=True)
        differing = [name for name, values in columns if any(value != values[0] for value in values)]
        # Runs do not record the model's limit, which is the default of `max_length`: the longest stands for it.
        longest = max(run.settings.max_length or 0 for run in of_method)
        by_seed = sorted(of_method, key=lambda run: run.settings.seed)
        for same in grouped(by_seed, lambda run: (_fixed_values(run), _searched(run.settings))).values():
            settings = same[0].settings
            defaults = {name: _default(settings, name) for name in differing} | {"max_length": longest}
            values = [(name, getattr(settings, name)) for name in differing]
            own = tuple((name, value) for name, value in values if value != defaults[name])
            rows.append(Row(model or None, method, own, tuple(same)))
    return rows


def row_key(run: Run) -> Any:
    """What the runs of a row have in common with those on folds that chose its values."""
    settings = run.settings
    return data_key(run), settings.model, method_name(settings), settings.keep, _fixed_values(run)


def data_key(run: Run) -> Any:
    """What runs on the same data have in common, whichever of its documents they were judged on."""
    settings = run.settings
    return settings.data_name, settings.hub_config, run.names_of_files, run.fingerprint_of_files, run.labels


def protocol_title(settings: RunSettings) -> str:
    """The name of the data, with the protocol where it is not the paper's."""
    return settings.data_name + (", last epoch" if settings.keep == "last" else "")


def _chosen(rows: Sequence[Row], on_folds: Mapping[Any, Sequence[Run]]) -> Iterator[Row]:
    """Of rows that differ in searched values, the one that stands for the method.

    The paper searches with one seed and repeats the best with more, so it is the one with most seeds, and of these
    the best of a cross-validation that judged all, or else the best on the dev set; among equals what a sweep chose.
    """
    for same in grouped(rows, lambda row: row_key(row.runs[0])).values():
        by_number = grouped(on_folds.get(row_key(same[0].runs[0]), ()), lambda run: run.settings.folds)
        scores = {row.searched: row.dev_score for row in rows_of(max(by_number.values(), key=len, default=[]))}
        by_folds = bool(scores) and all(row.searched in scores for row in same)
        judged = [scores[row.searched] if by_folds else row.dev_score for row in same]
        kept = [sum(not run.search_only for run in row.runs) for row in same]
        merits = list(zip((len(row.runs) for row in same), judged, kept, strict=True))
        best = same[merits.index(max(merits))]
        yield replace(best, tried=len(scores) if by_folds else len(same), by_folds=by_folds)


def _judged(run: Run) -> tuple[Any, ...]:
    """What the runs of a comparison have in common; None is what a run does not have."""
    documents = documents_of(run)
    *_, judged_on = documents.items()
    keep = None if run.settings.method_row.is_mix else run.settings.keep
    return data_key(run), judged_on, documents.get("dev"), keep


def _covers(key: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(theirs in (own, None) for own, theirs in zip(key, other, strict=True))


def _place(row: Row) -> Any:
    return row.model or "", row.name, [value or 0 for value in row.searched]


def _searched(settings: RunSettings) -> tuple[float | None, float | None]:
    return settings.learning_rate, settings.alpha if settings.kernel else None


def _fixed_values(run: Run) -> tuple[Any, ...]:
    return tuple(getattr(run.settings, name) for name in _FIXED)


def _default(settings: RunSettings, name: str) -> Any:
    """What the setting would be if it had not been given; that may depend on the task and on other settings."""
    untouched: dict[str, Any] = {name: SETTINGS[name].default}
    return getattr(resolve(replace(settings, **untouched)), name)


def method_name(settings: RunSettings) -> str:
    """The method, with its kernel."""
    if not (settings.is_prefix_method and settings.kernel):
        return settings.method_row.name
    mode = "" if settings.alpha_mode == "fixed" else f", alpha per {settings.alpha_mode}"
    return f"{settings.method_row.name}, {settings.kernel} kernel{mode}"


def _model_of(run: Run, names: Mapping[str, str]) -> str:
    return "" if run.settings.method == "tfidf" else names[run.settings.model]


def _model_names(runs: Sequence[Run]) -> dict[str, str]:
    """Models without the folders they lie in, unless only these tell them apart."""
    models = {run.settings.model for run in runs}
    short = {model: model if not Path(model).is_absolute() else Path(model).name for model in models}
    return {model: name if list(short.values()).count(name) == 1 else model for model, name in short.items()}
