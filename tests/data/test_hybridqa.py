"""HybridQA's rows: questions with a support for each candidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixprop.data import QuestionTask, load_task

QUESTION = {"id": "q", "query": "which hills ?", "candidates": ["Oslo", "Rome"], "answer": "Rome"}


def write(folder: Path, **changes: Any) -> Path:
    for split in ("train", "dev", "test"):
        record = QUESTION | {"supports": ["a fjord", "seven hills"]} | changes
        (folder / f"{split}.jsonl").write_text(json.dumps(record))
    return folder


def test_the_three_files_are_read(tmp_path: Path) -> None:
    task = load_task("hybridqa", write(tmp_path))
    assert isinstance(task, QuestionTask) and task.name == "hybridqa"
    assert task.dev[0].answer == 1 and len(task.train) == len(task.test) == 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"supports": ["a fjord"]}, "2 candidates and 1 supports, but every row has one"), ({"answer": "Lima"}, "Lima")],
)
def test_what_is_no_question_about_rows(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_task("hybridqa", write(tmp_path, **changes))


def test_without_files_the_error_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="build the files from clones of"):
        load_task("hybridqa")
    with pytest.raises(FileNotFoundError, match=r"there is no train.*build the files"):
        load_task("hybridqa", tmp_path)
