"""Rows whose labels are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prefixprop.data import Document, Row, read_rows
from prefixprop.data.cache import entries
from prefixprop.data.labelled_rows import Columns, build_task, label_documents


def rows(*values: dict[str, object]) -> list[Row]:
    return [Row(f"a.jsonl:{number}", value) for number, value in enumerate(values, start=1)]


def test_labels_are_those_given() -> None:
    found = label_documents(rows({"text": "A", "label": "tax"}, {"text": "B", "label": 1}), Columns(), ["1", "tax"])
    assert found == (Document("1", "A", 1), Document("2", "B", 0))
    (prepared,) = label_documents(rows({"text": "A", "label": "1"}), Columns(), ["1", "tax"], prepare=str.lower)
    assert prepared.text == "a"


def test_other_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a.jsonl:1: the label 'law' is unknown; the labels are art, tax\."):
        label_documents(rows({"text": "A", "label": "law"}), Columns(), ["art", "tax"])


def loud(text: str) -> str:
    return text.upper()


def test_what_cannot_be_told_apart_by_its_name_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXPROP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.csv").write_text("text,label\nOne,a\nTwo,b\n")

    def build(prepare: Callable[[str], str]) -> list[str]:
        files = {split: read_rows([tmp_path / "a.csv"]) for split in ("train", "dev")}
        return [document.text for document in build_task("mine", files, Columns(), prepare).train]

    for number in (1, 2):
        assert build(lambda text: f"{text} {number}") == [f"One {number}", f"Two {number}"]  # noqa: B023
    assert build(str.lower) == ["one", "two"] and entries() == []
    assert build(loud) == build(loud) == ["ONE", "TWO"] and len(entries()) == 1
    assert build(str) == ["One", "Two"] and len(entries()) == 2
