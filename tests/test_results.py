"""The numbers of docs/results.md and of the README are those that `prefixprop report results/...` makes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from prefixprop.reporting import make_report

ROOT = Path(__file__).parents[1]
# What the documents call a row of the report: its method and its model.
NAMES = {
    ("fine-tuning", "embedded"): "fine-tuning",
    ("lora", "embedded"): "LoRA",
    ("prefix-tuning", "embedded"): "prefix-tuning",
    ("prefix-propagation", "embedded"): "prefix-propagation",
    ("prefix-propagation, exp kernel", "embedded"): "prefix-propagation, kernel exp, α = 0.007",
    ("prefix-tuning", "embedded-512"): "prefix-tuning, 512 tokens",
    ("head-only", "embedded"): "head only",
}
# Of a column in the documents: the table of the report, and its column there.
COLUMNS = {
    "dev micro-F1": ("dev: quality", "F1 micro, %"),
    "test micro-F1": ("test: quality", "F1 micro, %"),
    "test micro-F1, %": ("test: quality", "F1 micro, %"),
    "95 % interval on test": ("test: quality", "F1 micro, 95 % interval"),
    'test F1 of "hyperpartisan"': ("test: quality", "F1 binary, %"),
    "test ECE": ("test: calibration", "ECE"),
    "after scaling": ("test: calibration", "ECE after scaling"),
}


@cache
def reported() -> dict[str, list[dict[str, str]]]:
    """The rows of the tables of quality and calibration, by title."""
    report = make_report([ROOT / "results" / "hyperpartisan"])
    return {
        table.title.removeprefix("hyperpartisan, "): [
            dict(zip((column.title for column in table.columns), (cell.text for cell in row), strict=True))
            for row in table.rows
        ]
        for table in report.measured
        if table.title.endswith(("quality", "calibration"))
    }


def documented(path: Path) -> list[dict[str, str]]:
    """The rows of the first table of methods."""
    lines = [line.strip("| ").split(" | ") for line in path.read_text(encoding="utf-8").splitlines()]
    start = next(number for number, cells in enumerate(lines) if cells[0] == "method")
    rows = []
    for cells in lines[start + 2 :]:
        if len(cells) == 1:
            return rows
        rows.append(dict(zip(lines[start], (cell.strip("* ") for cell in cells), strict=True)))
    return rows


@pytest.mark.parametrize("name", ["docs/results.md", "README.md"])
def test_documents_say_what_the_report_says(name: str) -> None:
    rows = documented(ROOT / name)
    assert len(rows) >= 6
    compared = 0
    for row in rows:
        for title, (table, column) in COLUMNS.items():
            if title not in row:
                continue
            (found,) = (
                line[column] for line in reported()[table] if NAMES[line["Method"], line["Model"]] == row["method"]
            )
            # The documents give some means without their deviation.
            assert found == row[title] or found.split(" ± ")[0] == row[title], (row["method"], title)
            compared += 1
    assert compared >= 3 * len(rows)
