"""Tasks by their names, and arXiv's papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from prefixprop.data import Document, load_task


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(ValueError, match="Unknown task 'newsgroup'; choose one of hyperpartisan, newsgroups, arxiv"):
        load_task("newsgroup")


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


@pytest.mark.parametrize("absent", ["train", "dev"])
def test_a_folder_without_train_or_dev(tmp_path: Path, absent: str) -> None:
    write(tmp_path / f"{'dev' if absent == 'train' else 'train'}.jsonl", PAPERS)
    with pytest.raises(FileNotFoundError, match=rf"there is no {absent}\. The folder must hold .*label_name"):
        load_task("arxiv", tmp_path)


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


def test_without_the_network_the_error_asks_for_a_folder() -> None:
    with pytest.raises(ConnectionError, match=r"arxiv-classification \(no_ref\) cannot be .* --data-dir FOLDER with"):
        load_task("arxiv")
