"""Rows whose labels are given."""

from __future__ import annotations

import pytest

from prefixprop.tasks import Document, Row
from prefixprop.tasks.labelled_rows import Columns, label_documents


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
