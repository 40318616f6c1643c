"""What the notes below the tables say: what dev chose, and what the columns mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixprop.report.choose.comparisons import Comparison, compare
from prefixprop.report.tables.results import protocol_notes
from prefixprop.runs.find import find_runs

from tiny_runs import make_results


def add(folder: Path, **settings: Any) -> Path:
    return make_results(folder / f"run{len(list(folder.iterdir()))}", **settings)


def comparisons_of(folder: Path) -> tuple[Comparison, ...]:
    return compare(find_runs([folder]).runs)


PAPERS = "The paper reports this split, "
OPTIMISTIC = "so its numbers are optimistic. Test chose nothing."


@pytest.mark.parametrize(
    ("keep", "with_folds", "note"),
    [
        ("best", False, f"but it also chose the learning rate and the epoch, {OPTIMISTIC}"),
        ("last", False, f"but it also chose the learning rate, {OPTIMISTIC}"),
        ("best", True, f"but it also chose the epoch, {OPTIMISTIC}"),
        (
            "last", True,
            "but here it chose nothing: a cross-validation on train chose the learning rate, and the epoch is the "
            "last.",
        ),
    ],
)  # fmt: skip
def test_the_note_says_what_dev_chose(tmp_path: Path, keep: str, with_folds: bool, note: str) -> None:
    add(tmp_path, keep=keep)
    add(tmp_path, keep=keep, task="arxiv", epochs=20)
    if with_folds:
        add(tmp_path, keep=keep, fold=0, folds=2)
        add(tmp_path, keep=keep, fold=0, folds=2, task="arxiv", epochs=20)
    other, papers = comparisons_of(tmp_path)
    assert protocol_notes(papers, "dev")[0] == PAPERS + note
    start = "Dev" + note.removeprefix("but it").removeprefix("but here it")
    assert protocol_notes(other, "dev")[0] == start
    assert not any("chose" in note for note in protocol_notes(papers, "test"))
