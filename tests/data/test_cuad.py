"""CUAD: which contracts and clauses are read, and what is said where the file is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixprop.data import ClassificationTask, load_task


def test_contracts_with_clauses_that_are_not_too_rare(tmp_path: Path) -> None:
    rows = [
        {"id": f"c{n}", "name": f"Agreement {n}", "text": f"text {n}", "labels": ["Insurance"] * (n % 2)}
        for n in range(40)
    ]
    rows[0]["labels"] = ["Cap On Liability", "Source Code Escrow"]
    rows[1]["labels"] = ["Cap On Liability"]
    (tmp_path / "contracts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load_task("cuad", tmp_path)
    assert isinstance(task, ClassificationTask) and task.several_labels
    assert task.label_names == ("Cap On Liability", "Insurance")  # one contract in forty has the third
    assert len(task.train) == 40 and not task.dev and not task.test
    assert task.train[0].id == "c0" and task.label_array(task.train).sum(axis=0).tolist() == [2, 19]


@pytest.mark.parametrize(
    ("folder", "complaint"), [(None, r"have to be built: pass --data-dir"), (".", "there are no contracts")]
)
def test_without_the_file_the_error_says_how_to_make_it(tmp_path: Path, folder: str | None, complaint: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=f"{complaint}.*the site says how"):
        load_task("cuad", None if folder is None else tmp_path)
