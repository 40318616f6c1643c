"""What the paper reports: its Tables 2 and 3 and its run-time table, as data and as tables to show.

"Prefix-Propagation: Parameter-Efficient Tuning for Long Sequences" (ACL 2023). Longformer is Longformer-base and
RoBERTa is RoBERTa-base. Hyperpartisan is reported on dev, the others on test (caption of Table 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prefixprop.report.tables.table import Column, Table, plain_cell, text_column

PAPER = "What the paper reports (not measured here)"
_FOLD = "Its tables"


@dataclass(frozen=True)
class PaperMethod:
    """A row of the paper's tables."""

    title: str
    method: str
    family: str


PROPAGATION = PaperMethod("Prefix-Propagation", "prefix-propagation", "longformer")
TUNING = PaperMethod("Prefix-Tuning", "prefix-tuning", "longformer")
FINE_TUNING = PaperMethod("Fine-Tuning", "fine-tuning", "longformer")
ROBERTA_TUNING = PaperMethod("RoBERTa PT", "prefix-tuning", "roberta")
PAPER_METHODS = (ROBERTA_TUNING, TUNING, PROPAGATION, FINE_TUNING)

TASK_TITLES = {
    "wikihop": "WikiHop", "arxiv": "ArXiv", "newsgroups": "20-newsgroups", "hyperpartisan": "Hyperpartisan"
}  # fmt: skip
REPORTED_SPLITS = {"wikihop": "test", "arxiv": "test", "newsgroups": "test", "hyperpartisan": "dev"}

# Table 2: percent of parameters tuned (the head is not counted).
TUNED_PERCENT = {ROBERTA_TUNING: 0.1, TUNING: 0.1, PROPAGATION: 0.05, FINE_TUNING: 100.0}

# Table 2: the measures of each task, with values in percent. Its caption calls the F1 of Hyperpartisan micro, but
# the released code computes that of the positive class, and P and R fit it.
_CLASSES = ("macro_precision", "macro_recall", "micro_f1")
MEASURES = {
    "wikihop": ("accuracy",),
    "arxiv": _CLASSES,
    "newsgroups": _CLASSES,
    "hyperpartisan": ("macro_precision", "macro_recall", "binary_f1"),
}
_TABLE_2: dict[str, dict[PaperMethod, tuple[float, ...]]] = {
    "wikihop": {ROBERTA_TUNING: (11.7,), TUNING: (38.9,), PROPAGATION: (42.2,), FINE_TUNING: (74.0,)},
    "arxiv": {
        ROBERTA_TUNING: (79.4, 79.6, 79.8),
        TUNING: (81.5, 81.7, 82.7),
        PROPAGATION: (83.1, 83.1, 83.3),
        FINE_TUNING: (83.1, 82.9, 83.3),
    },
    "newsgroups": {
        ROBERTA_TUNING: (67.9, 67.0, 68.2),
        TUNING: (68.9, 68.4, 69.7),
        PROPAGATION: (70.1, 69.7, 71.0),
        FINE_TUNING: (71.8, 71.2, 72.3),
    },
    "hyperpartisan": {
        ROBERTA_TUNING: (70.4, 59.2, 64.1),
        TUNING: (78.3, 73.8, 75.3),
        PROPAGATION: (86.4, 77.7, 81.8),
        FINE_TUNING: (87.8, 76.2, 81.5),
    },
}

# Table 3: ECE, without temperature scaling.
_ECE = {
    "arxiv": {ROBERTA_TUNING: 0.056, TUNING: 0.075, PROPAGATION: 0.042, FINE_TUNING: 0.099},
    "hyperpartisan": {ROBERTA_TUNING: 0.228, TUNING: 0.153, PROPAGATION: 0.093, FINE_TUNING: 0.138},
    "newsgroups": {ROBERTA_TUNING: 0.123, TUNING: 0.117, PROPAGATION: 0.122, FINE_TUNING: 0.212},
}

# Run-time table (appendix): seconds for 8,000 random sequences of 4,096 tokens on a GTX 1080 Ti, and percent more
# than without an adapter.
INFERENCE_SECONDS = (("No PEFT", 2192, 0.0), ("Prefix-Tuning", 2239, 2.1), ("Prefix-Propagation", 2196, 0.2))


def paper_value(task: str | None, split: str, row: PaperMethod, measure: str) -> float | None:
    """What the paper reports for a task's split, in its units, by our name of the measure; None if it does not.

    >>> paper_value("arxiv", "test", PROPAGATION, "micro_f1")
    83.3
    """
    if task is None or REPORTED_SPLITS.get(task) != split:
        return None
    if measure == "ece":
        return _ECE.get(task, {}).get(row)
    measures = MEASURES[task]
    return _TABLE_2[task][row][measures.index(measure)] if measure in measures else None


def find_paper_method(method: str, kernel: str | None, model: str) -> PaperMethod | None:
    """The paper's row of a method on a model of the same family; None where the paper has none."""
    family = _family(model)
    if kernel is not None:
        return None
    return next((row for row in PAPER_METHODS if (row.method, row.family) == (method, family)), None)


def _family(model: str) -> str | None:
    name = model.lower()
    return next((family for family in ("longformer", "roberta") if family in name), None)


_SHORT = {"macro_precision": "P", "macro_recall": "R", "micro_f1": "F1", "binary_f1": "F1", "accuracy": "Acc"}


def paper_tables() -> list[Table]:
    """Tables 2 and 3 and the run-time table; every column but the method is marked as the paper's."""
    return [_main_results(), _calibration(), _inference_time()]


def _main_results() -> Table:
    columns = [
        text_column("Method", [row.title for row in PAPER_METHODS]),
        _paper_column("Tuned, %", [TUNED_PERCENT[row] for row in PAPER_METHODS], 2),
    ]
    for task, title in TASK_TITLES.items():
        for measure in MEASURES[task]:
            columns.append(_paper_column(f"{title} {_SHORT[measure]}, %", _values(task, measure), 1))
    note = "Test, but dev for Hyperpartisan, where it is the mean of 5 runs. RoBERTa PT is prefix-tuning on RoBERTa."
    return Table("paper-table-2", "The paper's Table 2: main results", columns, (note,), section=PAPER, fold=_FOLD)


def _calibration() -> Table:
    errors = [_paper_column(f"{TASK_TITLES[task]} ECE", _values(task, "ece"), 3) for task in _ECE]
    columns = [text_column("Method", [row.title for row in PAPER_METHODS]), *errors]
    return Table("paper-table-3", "The paper's Table 3: calibration", columns, section=PAPER, fold=_FOLD)


def _inference_time() -> Table:
    columns = [
        text_column("Method", [name for name, _, _ in INFERENCE_SECONDS]),
        _paper_column("Time, s", [seconds for _, seconds, _ in INFERENCE_SECONDS], 0),
        _paper_column("More than No PEFT, %", [percent for *_, percent in INFERENCE_SECONDS], 1),
    ]
    note = (
        "Prediction of 8,000 sequences of 4,096 tokens on a GTX 1080 Ti. Runs record their training time, which is "
        "something else; `benchmarks/runtime.py` measures this one."
    )
    return Table("paper-run-time", "The paper's run-time table", columns, (note,), section=PAPER, fold=_FOLD)


def _values(task: str, measure: str) -> list[float | None]:
    return [paper_value(task, REPORTED_SPLITS[task], row, measure) for row in PAPER_METHODS]


def _paper_column(title: str, values: Iterable[float | None], decimals: int) -> Column:
    return Column(title, [plain_cell(value, decimals) for value in values], from_paper=True)
