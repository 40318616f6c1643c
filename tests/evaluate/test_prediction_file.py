from __future__ import annotations

import errno
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixprop.evaluate import PredictionSet, read_predictions, stored_predictions, write_predictions

NAMES = ("sport", "art & café", "law")
LINE = {
    "id": "a",
    "label": "sport",
    "predicted": "law",
    "classes": ["sport", "art", "law"],
    "logits": [0.0, 0.0, 0.6931471805599453],
}
LATER = {name: value for name, value in LINE.items() if name != "classes"}
QUESTION = LATER | {"candidates": ["sport", "art", "law"]}


def classifier() -> PredictionSet:
    logits = np.random.default_rng(0).normal(size=(4, 3)) * 5
    logits[1, 2] = -np.inf
    return PredictionSet(("1", "zwei", "\ud800", ""), (0, None, 2, 1), logits, label_names=NAMES)


def questions() -> PredictionSet:
    candidates = [["Oslo", "Rome"], ["red", "green", "green", "blue"], ["one"]]
    logits = [[0.1, 0.2], [1.5, -3e8, 1.25, -np.inf], [7.0]]
    return PredictionSet.of_candidates(["q1", "q2", "q3"], [1, None, 0], logits, candidates)


@pytest.mark.parametrize("predictions", [classifier(), questions()], ids=["classifier", "questions"])
def test_what_is_written_comes_back_to_the_last_bit(tmp_path: Path, predictions: PredictionSet) -> None:
    path = tmp_path / "run" / "dev.jsonl"
    write_predictions(path, predictions)
    read = read_predictions(path)
    assert read.ids == predictions.ids
    assert read.labels == predictions.labels
    assert read.label_names == predictions.label_names
    assert read.candidates == predictions.candidates
    np.testing.assert_array_equal(read.logits, predictions.logits)
    np.testing.assert_array_equal(read.probabilities, predictions.probabilities)
    content = path.read_bytes()
    write_predictions(path, read)
    assert path.read_bytes() == content


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=6))
def test_every_float_survives(tmp_path_factory: pytest.TempPathFactory, logits: list[float]) -> None:
    path = tmp_path_factory.getbasetemp() / "floats.jsonl"
    names = tuple(f"class {number}" for number in range(len(logits)))
    write_predictions(path, PredictionSet(("a",), (None,), np.array([logits]), label_names=names))
    assert read_predictions(path).logits.tobytes() == np.array([logits]).tobytes()


def test_lines_say_what_they_mean(tmp_path: Path) -> None:
    logits = np.log([[0.25, 0.75, 1e-300], [0.5, 0.25, 0.25]])
    logits[0, 2] = -np.inf
    predictions = PredictionSet(("a", "b"), (0, None), logits, label_names=NAMES)
    write_predictions(tmp_path / "dev.jsonl", predictions)
    text = (tmp_path / "dev.jsonl").read_text(encoding="utf-8")
    assert "art & café" in text
    first, second = map(json.loads, text.splitlines())
    assert list(first) == ["id", "label", "predicted", "classes", "logits"] and first["classes"] == list(NAMES)
    assert list(second) == ["id", "label", "predicted", "logits"], "named once"
    assert (first["id"], first["label"], first["predicted"]) == ("a", "sport", "art & café")
    assert first["logits"] == [np.log(0.25), np.log(0.75), None]
    assert (second["label"], second["predicted"]) == (None, "sport")

    write_predictions(tmp_path / "questions.jsonl", questions())
    question = json.loads((tmp_path / "questions.jsonl").read_text().splitlines()[0])
    assert question["candidates"] == ["Oslo", "Rome"]
    assert question["predicted"] == question["label"] == "Rome"


def test_full_disk_keeps_the_old_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dev.jsonl"
    write_predictions(path, classifier())

    def full_disk(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        write_predictions(path, questions())
    assert read_predictions(path).ids == classifier().ids
    assert [entry.name for entry in tmp_path.iterdir()] == ["dev.jsonl"]


def test_only_json_lines_are_written(tmp_path: Path) -> None:
    for name in ("dev.json", "dev.json.gz"):
        with pytest.raises(ValueError, match=r"a name that ends in \.jsonl or \.jsonl\.gz"):
            write_predictions(tmp_path / name, classifier())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("base", [LINE, QUESTION], ids=["classes", "question"])
def test_lines_of_other_programs_are_read(tmp_path: Path, base: dict[str, Any]) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps(base | {"seconds": 3}) + "\n\n" + json.dumps(base | {"id": "b", "label": None}))
    read = read_predictions(path)
    assert read.ids == ("a", "b") and read.labels == (0, None)
    assert read.class_names(0) == ("sport", "art", "law")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"id": 7}, "the id must be a string, got 7"),
        ({"id": "first"}, r"the id 'first' is already that of .*dev\.jsonl:1"),
        ({"label": "cooking"}, "label is 'cooking', but must be one of 'sport', 'art', 'law'"),
        ({"label": 0}, "label is 0, but must be one of"),
        ({"label": ["sport"]}, r"label is \['sport'\], but must be one of"),
        ({"classes": "law"}, "classes must be a list of at least 2 strings"),
        ({"classes": ["law"]}, "classes must be a list of at least 2 strings"),
        ({"classes": ["sport", "law", "law"]}, "the classes must differ"),
        ({"classes": ["law", "art", "sport"]}, "the classes are 'law', "),
        ({"logits": [0.0, 0.0, float("nan")]}, "logits must be finite numbers, got nan"),
        ({"logits": [0.0, 0.0, float("inf")]}, "logits must be finite numbers, got inf"),
        ({"logits": [0.0, 0.0, True]}, "logits must be finite numbers, got True"),
        ({"logits": [0, 0, 10**400]}, "logits must be finite numbers, got 1000"),
        ({"logits": [None, None, None]}, "logits must be a list of numbers"),
        ({"logits": 3}, "logits must be a list of numbers"),
        ({"logits": [0.0, 0.0]}, "3 classes have 2 logits"),
        (QUESTION | {"id": "b"}, "lines with and without candidates are mixed"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "dev.jsonl"
    lines = [LINE | {"id": "first"}, LATER | changes, LATER | {"id": "last"}]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    with pytest.raises(ValueError, match=complaint) as caught:
        read_predictions(path)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize("candidates", [[], ["sport", "art", 3], {"a": 1, "b": 2, "c": 3, "d": 4}])
def test_odd_candidates(tmp_path: Path, candidates: Any) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps(QUESTION | {"candidates": candidates}))
    with pytest.raises(
        ValueError, match=r"dev\.jsonl:1: (candidates must be a list of at least one string|4 classes)"
    ):
        read_predictions(path)


@pytest.mark.parametrize("field", ["id", "label", "logits", "classes"])
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps({name: value for name, value in LINE.items() if name != field}))
    with pytest.raises(ValueError, match=f"dev.jsonl:1: the field '{field}' is missing; the"):
        read_predictions(path)


def test_broken_and_empty_files(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    write_predictions(path, classifier())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"dev\.jsonl:4: broken JSON"):
        read_predictions(path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"dev\.jsonl:1: there are no predictions"):
        read_predictions(path)
    with pytest.raises(FileNotFoundError, match="absent"):
        read_predictions(tmp_path / "absent.jsonl")


def test_the_gzipped_form_is_read_where_the_plain_file_is_not_there(tmp_path: Path) -> None:
    plain, compressed = tmp_path / "dev.jsonl", tmp_path / "dev.jsonl.gz"
    write_predictions(compressed, classifier())
    assert compressed.read_bytes()[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff", "no name, no time, no system"
    for path in (plain, compressed):
        read = read_predictions(path)
        assert read.ids == classifier().ids
        np.testing.assert_array_equal(read.logits, classifier().logits)
    assert stored_predictions(plain) == compressed
    write_predictions(plain, questions())
    assert stored_predictions(plain) == plain and read_predictions(plain).candidates is not None
    assert stored_predictions(tmp_path / "test.jsonl") is None


def test_errors_in_a_gzipped_file_name_it_and_the_line(tmp_path: Path) -> None:
    compressed = tmp_path / "dev.jsonl.gz"
    compressed.write_bytes(gzip.compress((json.dumps(LINE) + "\n" + json.dumps({"id": "b"}) + "\n").encode()))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(compressed))}:2: the field 'label' is missing"):
        read_predictions(tmp_path / "dev.jsonl")
    compressed.write_bytes(gzip.compress(json.dumps(LINE).encode())[:-12])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(compressed))}:1: the gzip data is damaged"):
        read_predictions(tmp_path / "dev.jsonl")
