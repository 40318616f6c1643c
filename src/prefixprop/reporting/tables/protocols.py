"""The same documents judged by two protocols, side by side: the paper's, and that of the last epoch.

The paper chooses learning rate and epoch on dev (Appendix A); a cross-validation on train chooses without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prefixprop.reporting.choose.comparisons import Comparison, Contender, documents_key
from prefixprop.reporting.choose.protocol import keeps_last_epoch
from prefixprop.reporting.file_names import file_name
from prefixprop.reporting.tables.measures import ECE, headline
from prefixprop.reporting.tables.table import (
    ABSENT,
    Column,
    Filled,
    Table,
    name_columns,
    ranked,
    setting_cell,
    table_of_columns,
)

# A row, by its model and its method.
_Row = tuple[str, str]

_ON_DEV, _EPOCH_ON_DEV = "chosen on dev", "epoch chosen on dev"
_BY_FOLDS, _LAST_EPOCH = "chosen by cross-validation", "last epoch"
_EXPLAINED = {
    _ON_DEV: "the learning rate and the epoch were chosen on dev, as in the paper",
    _EPOCH_ON_DEV: "the learning rate was chosen by cross-validation on train, the epoch on dev",
    _BY_FOLDS: "the learning rate was chosen by cross-validation on train, and the last epoch is judged",
    _LAST_EPOCH: "the last epoch is judged",
}


def protocol_tables(comparisons: Iterable[Comparison]) -> list[Table]:
    """A table for all documents that were judged by both protocols."""
    by_documents: dict[Any, list[Comparison]] = {}
    for comparison in comparisons:
        key = documents_key(comparison.contenders[0].best.runs[0])
        by_documents.setdefault(key, []).append(comparison)
    # A comparison is all that there is on its documents by its protocol, so there are no more than two.
    pairs = [sorted(found, key=_is_last) for found in by_documents.values() if len(found) == 2]
    return [_table(pair, number) for number, pair in enumerate(pairs, start=1)]


def _is_last(comparison: Comparison) -> bool:
    return keeps_last_epoch(comparison.settings)


def _table(comparisons: Sequence[Comparison], number: int) -> Table:
    first = comparisons[0]
    split = first.splits[-1]
    rows = sorted({_row(contender) for comparison in comparisons for contender in comparison.contenders})
    columns = name_columns([method for _, method in rows], [model for model, _ in rows])
    for comparison in comparisons:
        columns += _columns_of(comparison, rows, split)
    protocols = [_protocol(comparison) for comparison in comparisons]
    notes = [
        f"{first.documents[split]:,} {split} {first.items}; mean ± standard deviation over seeds; best bold, second "
        "best underlined.",
        *(f"{_capital(protocol)}: {_EXPLAINED[protocol]}." for protocol in protocols),
    ]
    if len(models := sorted({model for model, _ in rows})) == 1:
        notes.append(f"Model: {models[0]}.")
    name = f"protocols-{number}-{file_name(first.settings.data_name)}"
    return ranked(table_of_columns(name, f"{first.title}: protocols", columns, notes))


def _row(contender: Contender) -> _Row:
    return contender.model, contender.method


def _columns_of(comparison: Comparison, rows: Sequence[_Row], split: str) -> list[Filled]:
    found = {_row(contender): contender.best for contender in comparison.contenders}
    trials = [found.get(row) for row in rows]
    start, measure = _capital(_protocol(comparison)), headline(comparison.settings.metric)
    rates = [ABSENT if trial is None else setting_cell(trial.settings.learning_rate) for trial in trials]
    scores = [ABSENT if trial is None else measure.cell(trial, split) for trial in trials]
    intervals = [ABSENT if trial is None else measure.interval(trial, split) for trial in trials]
    errors = [ABSENT if trial is None else ECE.cell(trial, split) for trial in trials]
    return [
        (Column(f"{start}: learning rate"), rates),
        (Column(f"{start}: {measure.title}", measure.better), scores),
        (Column(f"{start}: {measure.interval_title}"), intervals),
        (Column(f"{start}: {ECE.title}", ECE.better), errors),
    ]


def _protocol(comparison: Comparison) -> str:
    by_folds = all(contender.folds for contender in comparison.contenders)
    if _is_last(comparison):
        return _BY_FOLDS if by_folds else _LAST_EPOCH
    return _EPOCH_ON_DEV if by_folds else _ON_DEV


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
