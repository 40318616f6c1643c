"""Tasks by their names: arXiv, CUAD, HybridQA, and what is said where files are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from prefixprop.data import ClassificationTask, Document, QuestionTask, load_task


@pytest.mark.parametrize(
    ("task", "files", "kind", "complaint"),
    [
        ("newsgroup", None, ValueError, "Unknown task 'newsgroup'; choose one of hyperpartisan, newsgroups, arxiv"),
        ("arxiv", None, ConnectionError, r"arxiv-classification \(no_ref\) cannot be .* --data-dir FOLDER with"),
        ("arxiv", ["dev"], FileNotFoundError, r"there is no train\. The folder must hold .*label_name"),
        ("arxiv", ["train"], FileNotFoundError, r"there is no dev\. The folder must hold .*label_name"),
        ("cuad", None, ValueError, r"have to be built: pass --data-dir.*the site says how"),
        ("cuad", [], FileNotFoundError, r"there are no contracts\. .*the site says how"),
        ("elife", None, ValueError, r"--data-dir FOLDER with train\.jsonl\.xz.*`prefixprop build-elife CLONE"),
        ("elife", [], FileNotFoundError, r"there is no train\. .*`prefixprop build-elife CLONE FOLDER`"),
        ("hybridqa", None, ValueError, "build the files from clones of"),
        ("hybridqa", [], FileNotFoundError, "there is no train.*build the files"),
        ("newsgroups", [], FileNotFoundError, r"20-newsgroups is not here\. .*20news-bydate-train.*label_name"),
        ("wikihop", None, ValueError, r"WikiHop is not on a hub: download QAngaroo .*--data-dir"),
        ("wikihop", ["train"], FileNotFoundError, r"there is no dev\.json or dev\.jsonl here; download QAngaroo"),
    ],
)
def test_what_is_missing_and_where_to_get_it(
    tmp_path: Path, task: str, files: list[str] | None, kind: type[Exception], complaint: str
) -> None:
    for name in files or ():
        (tmp_path / f"{name}.jsonl").touch()
    with pytest.raises(kind, match=complaint):
        load_task(task, None if files is None else tmp_path)


PAPERS: list[dict[str, Any]] = [
    {"id": "9901.1", "title": "Rings", "text": "On rings.", "label": 1, "label_name": "math.AC"},
    {"id": "9901.2", "title": "Eyes", "text": "Seeing far.", "label": 0, "label_name": "cs.CV"},
]


def write(path: Path, papers: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(paper) + "\n" for paper in papers))


def test_a_folder_with_names_of_labels_and_ids(tmp_path: Path) -> None:
    text = "".join(str(number % 10) for number in range(30_010))
    write(tmp_path / "train.jsonl", [*PAPERS, PAPERS[0] | {"id": "9901.3", "text": text}])
    write(tmp_path / "validation.jsonl", PAPERS[:1])
    task = load_task("arxiv", str(tmp_path))
    assert task.name == "arxiv"
    assert task.label_names == ("cs.CV", "math.AC")  # by number, not by first appearance
    assert task.train[:2] == (Document("9901.1", "On rings.", 1), Document("9901.2", "Seeing far.", 0))
    assert task.dev == task.train[:1] and task.test == () and task.train[2].text == text[:30_000]


@pytest.mark.parametrize("labels", [[3, 1], ["cs.CV", "cs.AI"]])
def test_parquet_with_nothing_but_text_and_label(tmp_path: Path, labels: list[Any]) -> None:
    table = pyarrow.table({"text": ["one", "two"], "label": labels})
    for split in ("train", "dev", "test"):
        pyarrow.parquet.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    task = load_task("arxiv", tmp_path)
    assert task.label_names == tuple(str(label) for label in sorted(labels))
    assert task.train == task.dev == task.test == (Document("1", "one", 1), Document("2", "two", 0))


def test_from_the_hub_in_the_configuration_without_references(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["b", "a"])})
    table = datasets.Dataset.from_dict({"text": ["x" * 30_001, "y"], "label": [1, 0]}, features=features)

    def load_dataset(*arguments: str) -> datasets.DatasetDict:
        asked.append(arguments)
        return datasets.DatasetDict(train=table, validation=table, test=table)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load_task("arxiv")
    assert asked == [("ccdv/arxiv-classification", "no_ref")]
    assert task.label_names == ("b", "a")
    assert task.dev == (Document("1", "x" * 30_000, 1), Document("2", "y", 0))


def test_contracts_with_clauses_that_are_not_too_rare(tmp_path: Path) -> None:
    rows = [{"id": f"c{n}", "text": f"text {n}", "labels": ["Insurance"] * (n % 2)} for n in range(40)]
    rows[0]["labels"] = ["Cap On Liability", "Source Code Escrow"]
    rows[1]["labels"] = ["Cap On Liability"]
    write(tmp_path / "contracts.jsonl", rows)
    task = load_task("cuad", tmp_path)
    assert isinstance(task, ClassificationTask) and task.several_labels
    assert task.label_names == ("Cap On Liability", "Insurance")  # one contract in forty has the third
    assert len(task.train) == 40 and not task.dev and not task.test
    assert task.train[0].id == "c0" and task.label_array(task.train).sum(axis=0).tolist() == [2, 19]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"supports": ["a fjord"]}, "2 candidates and 1 supports, but every row has one"),
        ({"answer": "Lima"}, "Lima"),
    ],
)
def test_questions_about_rows(tmp_path: Path, changes: dict[str, Any], complaint: str | None) -> None:
    question = {"id": "q", "query": "which hills ?", "candidates": ["Oslo", "Rome"], "answer": "Rome"}
    for split in ("train", "dev", "test"):
        write(tmp_path / f"{split}.jsonl", [question | {"supports": ["a fjord", "seven hills"]} | changes])
    if complaint is not None:
        with pytest.raises(ValueError, match=complaint):
            load_task("hybridqa", tmp_path)
        return
    task = load_task("hybridqa", tmp_path)
    assert isinstance(task, QuestionTask) and task.name == "hybridqa"
    assert task.dev[0].answer == 1 and len(task.train) == len(task.test) == 1
