"""The fingerprint of a data set, by which a run knows its documents again, and what their number decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefixprop.data import ClassificationTask, draw_sample, load_files
from prefixprop.data.documents import Document, StoredDocuments
from prefixprop.settings.documents import choose_epochs, fingerprint
from prefixprop.settings.run_settings import RunSettings

TEXTS = ["one", " \n", 'naïve "café"', "half \ud83d", "five", "six"]


@pytest.fixture
def task(tmp_path: Path) -> ClassificationTask:
    records = [{"id": number, "text": text, "label": "ab"[number % 2]} for number, text in enumerate(TEXTS)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return load_files([tmp_path / "train.jsonl"])


def test_the_fingerprint_stays_the_same(task: ClassificationTask) -> None:
    assert fingerprint(task) == "ca29005ad257b9f4"


def test_documents_on_the_disk_and_in_memory_have_the_same(task: ClassificationTask) -> None:
    in_memory = replace(task, train=tuple(task.train), dev=tuple(task.dev))
    assert fingerprint(in_memory) == fingerprint(task)


def test_every_part_of_the_documents_has_its_own(task: ClassificationTask) -> None:
    parts = [
        task,
        replace(task, train=draw_sample(task.train, 3, seed=0)),
        replace(task, train=draw_sample(task.train, 3, seed=1)),
        replace(task, dev=()),
        replace(task, dev=(), test=task.dev),
        replace(task, train=task.train[::-1]),
    ]
    assert len({fingerprint(part) for part in parts}) == len(parts)


def test_a_second_start_does_not_read_the_texts(task: ClassificationTask, monkeypatch: pytest.MonkeyPatch) -> None:
    known = fingerprint(task)

    def refuse(self: StoredDocuments, index: int) -> None:
        raise AssertionError("a text was read")

    monkeypatch.setattr(StoredDocuments, "__getitem__", refuse)
    assert fingerprint(task) == known


@pytest.mark.parametrize(
    ("documents", "limit", "given", "epochs"),
    [(999, None, None, 10), (1000, None, None, 5), (5000, 999, None, 10), (5000, 2000, None, 5), (5000, None, 3, 3)],
)
def test_many_documents_get_fewer_epochs(documents: int, limit: int | None, given: int | None, epochs: int) -> None:
    train = tuple(Document(str(number), "text", number % 2) for number in range(documents))
    task = ClassificationTask("mine", ("a", "b"), train, dev=(), test=())
    settings = RunSettings(max_train_documents=limit, epochs=given)
    for one in (settings, replace(settings, folds=5, fold=0)):
        assert choose_epochs(one, task) == epochs
