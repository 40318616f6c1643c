"""The paper's own tables, in full, to be shown apart from what was measured."""

from __future__ import annotations

from prefixprop.reporting.tables.paper_values import (
    INFERENCE_SECONDS,
    PAPER_METHODS,
    REPORTED_SPLITS,
    TASK_TITLES,
    TUNED_PERCENT,
    paper_value,
)
from prefixprop.reporting.tables.table import Cell, Column, Table, plain_cell

_SHORT = {"macro_precision": "P", "macro_recall": "R", "micro_f1": "F1", "binary_f1": "F1", "accuracy": "Acc"}


def paper_tables() -> list[Table]:
    """Tables 2 and 3 and the run-time table; every column but the method is marked as the paper's."""
    return [_main_results(), _calibration(), _inference_time()]


def _main_results() -> Table:
    wanted = [(task, measure) for task in TASK_TITLES for measure in _measures(task)]
    titles = ["Tuned, %", *(f"{TASK_TITLES[task]} {_SHORT[measure]}, %" for task, measure in wanted)]
    rows = []
    for row in PAPER_METHODS:
        values = [paper_value(task, REPORTED_SPLITS[task], row, measure) for task, measure in wanted]
        rows.append((Cell(row.title), plain_cell(TUNED_PERCENT[row], 2), *(plain_cell(value, 1) for value in values)))
    note = "Test, but dev for Hyperpartisan, where it is the mean of 5 runs. RoBERTa PT is prefix-tuning on RoBERTa."
    return Table("paper-table-2", "The paper's Table 2: main results", _columns(titles), tuple(rows), (note,))


def _measures(task: str) -> tuple[str, ...]:
    if task == "wikihop":
        return ("accuracy",)
    return ("macro_precision", "macro_recall", "binary_f1" if task == "hyperpartisan" else "micro_f1")


def _calibration() -> Table:
    tasks = ("arxiv", "hyperpartisan", "newsgroups")
    rows = tuple(
        (
            Cell(row.title),
            *(plain_cell(paper_value(task, REPORTED_SPLITS[task], row, "ece"), 3) for task in tasks),
        )
        for row in PAPER_METHODS
    )
    titles = [f"{TASK_TITLES[task]} ECE" for task in tasks]
    return Table("paper-table-3", "The paper's Table 3: calibration", _columns(titles), rows)


def _inference_time() -> Table:
    rows = tuple(
        (Cell(name), plain_cell(seconds, 0), plain_cell(percent, 1)) for name, seconds, percent in INFERENCE_SECONDS
    )
    note = (
        "Prediction of 8,000 sequences of 4,096 tokens on a GTX 1080 Ti. Runs record their training time, which is "
        "another thing; `prefixprop bench runtime` measures this one."
    )
    columns = _columns(["Time, s", "More than No PEFT, %"])
    return Table("paper-run-time", "The paper's run-time table", columns, rows, (note,))


def _columns(titles: list[str]) -> tuple[Column, ...]:
    return (Column("Method", is_text=True), *(Column(title, from_paper=True) for title in titles))
