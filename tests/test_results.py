"""The numbers of docs/results.md and of the README are those that `prefixprop report results/...` makes."""

from __future__ import annotations

import re
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
    ("prefix-propagation, exp kernel", "embedded"): "prefix-propagation, kernel exp",
    ("prefix-tuning", "embedded-512"): "prefix-tuning, 512 tokens",
    ("head-only", "embedded"): "head only",
}
DEV, FOLDS = "hyperpartisan", "hyperpartisan, last epoch"
# Of a column in the documents: the table of the report, and its column there.
COLUMNS = {
    "rate (dev)": (f"{DEV}, test: quality", "Learning rate"),
    "micro-F1 (dev)": (f"{DEV}, test: quality", "F1 micro, %"),
    "ECE (dev)": (f"{DEV}, test: calibration", "ECE"),
    "rate (folds)": (f"{FOLDS}, test: quality", "Learning rate"),
    "micro-F1 (folds)": (f"{FOLDS}, test: quality", "F1 micro, %"),
    "test micro-F1, %": (f"{FOLDS}, test: quality", "F1 micro, %"),
    "95 % interval (folds)": (f"{FOLDS}, test: quality", "F1 micro, 95 % interval"),
    "ECE (folds)": (f"{FOLDS}, test: calibration", "ECE"),
    "test ECE": (f"{FOLDS}, test: calibration", "ECE"),
    "scaled ECE (folds)": (f"{FOLDS}, test: calibration", "ECE after scaling"),
    "after scaling": (f"{FOLDS}, test: calibration", "ECE after scaling"),
}


@cache
def reported() -> dict[str, list[dict[str, str]]]:
    """The rows of all tables, by title."""
    report = make_report([ROOT / "results" / "hyperpartisan", ROOT / "results" / "hyperpartisan-clean"])
    return {
        table.title: [
            dict(zip((column.title for column in table.columns), (cell.text for cell in row), strict=True))
            for row in table.rows
        ]
        for table in report.measured
    }


def row_of(table: str, name: str) -> dict[str, str] | None:
    found = [row for row in reported()[table] if NAMES[row["Method"], row.get("Model", "embedded")] == name]
    assert len(found) <= 1
    return found[0] if found else None


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
            found = row_of(table, row["method"])
            # The documents give some means without their deviation.
            expected = ("\u2014",) if found is None else (found[column], found[column].split(" \u00b1 ")[0])
            assert row[title] in expected, (row["method"], title)
            compared += 1
    assert compared >= 3 * len(rows)


@pytest.mark.parametrize(
    ("table", "method", "said"),
    [
        (FOLDS, "prefix-propagation", "+0.9 points on test (p = 0.053)"),
        (DEV, "prefix-propagation", "\u22121.5 on test (p = 0.82)"),
        (FOLDS, "fine-tuning", "by 2.0 points (p = 0.001)"),
    ],
)
def test_p_values(table: str, method: str, said: str) -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert said in re.sub(r"\s+", " ", text)
    rows = reported()[f"{table}, embedded: better than prefix-tuning? Over seeds"]
    (row,) = (row for row in rows if (row["Method"], row["Split"]) == (method, "test"))
    difference, p = re.findall(r"[\d.]+", said)
    assert row["Micro-F1 difference, points"].lstrip("+-") == difference
    assert float(row["p, Student's t"]) == pytest.approx(float(p), abs=0.005)
