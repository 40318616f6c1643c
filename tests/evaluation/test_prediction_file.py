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

from prefixprop.evaluation import (
    PredictionSet,
    read_predictions,
    stored_predictions,
    write_compact_predictions,
    write_predictions,
)

NAMES = ("sport", "art & café", "law")
LINE = {
    "id": "a",
    "label": "sport",
    "predicted": "law",
    "probabilities": {"sport": 0.25, "art": 0.25, "law": 0.5},
    "logits": [0.0, 0.0, 0.6931471805599453],
}
QUESTION = LINE | {"candidates": ["sport", "art", "law"], "probabilities": [0.25, 0.25, 0.5]}
COMPACT = {name: value for name, value in LINE.items() if name != "probabilities"}


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
    assert list(first) == ["id", "label", "predicted", "probabilities", "logits"]
    assert (first["id"], first["label"], first["predicted"]) == ("a", "sport", "art & café")
    assert first["probabilities"] == pytest.approx({"sport": 0.25, "art & café": 0.75, "law": 0})
    assert first["logits"] == [np.log(0.25), np.log(0.75), None]
    assert (second["label"], second["predicted"]) == (None, "sport")

    write_predictions(tmp_path / "questions.jsonl", questions())
    question = json.loads((tmp_path / "questions.jsonl").read_text().splitlines()[0])
    assert question["candidates"] == ["Oslo", "Rome"]
    assert question["predicted"] == question["label"] == "Rome"
    assert question["probabilities"] == pytest.approx([0.47502, 0.52498], abs=1e-5)


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


@pytest.mark.parametrize("base", [LINE, QUESTION], ids=["classifier", "question"])
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
        ({"predicted": "cooking"}, "predicted is 'cooking', but must be one of"),
        ({"predicted": "art"}, "'art' is not the most probable class"),
        ({"probabilities": [0.25, 0.25, 0.5]}, "probabilities must be an object"),
        ({"probabilities": {"sport": 1.0}}, "at least two classes"),
        ({"probabilities": {"sport": 0.25, "law": 0.75}}, "2 classes have 2 probabilities and 3 logits"),
        (
            {"probabilities": {"sport": 0.25, "art": "0.25", "law": 0.5}},
            "probabilities must be finite numbers, got '0",
        ),
        ({"probabilities": {"sport": 0.2, "art": 0.2, "law": 0.6}}, "not the softmax of the logits"),
        (
            {"probabilities": {"law": 0.25, "art": 0.25, "sport": 0.5}, "predicted": "sport"},
            "the classes are 'law', ",
        ),
        ({"logits": [0.0, 0.0, float("nan")]}, "logits must be finite numbers, got nan"),
        ({"logits": [0.0, 0.0, float("inf")]}, "logits must be finite numbers, got inf"),
        ({"logits": [0.0, 0.0, True]}, "logits must be finite numbers, got True"),
        ({"logits": [0, 0, 10**400]}, "logits must be finite numbers, got 1000"),
        ({"logits": [None, None, None]}, "logits must be a list of numbers"),
        ({"logits": 3}, "logits must be a list of numbers"),
        ({"logits": [0.0, 0.0]}, "3 classes have 3 probabilities and 2 logits"),
        (QUESTION | {"id": "b"}, "lines with and without candidates are mixed"),
        (QUESTION | {"candidates": []}, "candidates must be a list of at least one string"),
        (QUESTION | {"candidates": ["sport", "art", 3]}, "candidates must be a list of at least one string"),
        (QUESTION | {"probabilities": {"sport": 1}}, "probabilities must be a list"),
        (QUESTION | {"probabilities": [0.5, 0.5]}, "3 classes have 2 probabilities and 3 logits"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "dev.jsonl"
    lines = [LINE | {"id": "first"}, LINE | changes, LINE | {"id": "last"}]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    with pytest.raises(ValueError, match=complaint) as caught:
        read_predictions(path)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize("field", list(LINE))
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps({name: value for name, value in LINE.items() if name != field}))
    with pytest.raises(ValueError, match=f"dev.jsonl:1: the field '{field}' is missing; there are '"):
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


def test_rounding_never_changes_what_is_predicted(tmp_path: Path) -> None:
    logits = np.array([[1.234567, -0.00001], [0.123442, 0.123444], [0.5, 0.5], [-np.inf, 2.00004]])
    predictions = PredictionSet(("a", "b", "c", "d"), (0, 1, 0, 1), logits, label_names=NAMES[:2])
    write_compact_predictions(tmp_path / "dev.jsonl", predictions, decimals=4)
    read = read_predictions(tmp_path / "dev.jsonl")
    expected = [[1.2346, 0.0], [0.123442, 0.123444], [0.5, 0.5], [-np.inf, 2.0]]
    np.testing.assert_array_equal(read.logits, expected)
    lines = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["predicted"] for line in lines] == [NAMES[0], NAMES[1], NAMES[0], NAMES[1]]
    content = (tmp_path / "dev.jsonl").read_bytes()
    write_compact_predictions(tmp_path / "dev.jsonl", read, decimals=4)
    assert (tmp_path / "dev.jsonl").read_bytes() == content


@pytest.mark.parametrize("predictions", [classifier(), questions()], ids=["classifier", "questions"])
@pytest.mark.parametrize("name", ["dev.jsonl", "dev.jsonl.gz"])
def test_the_compact_form_is_read_like_the_other(tmp_path: Path, predictions: PredictionSet, name: str) -> None:
    write_compact_predictions(tmp_path / name, predictions, decimals=3)
    read = read_predictions(tmp_path / name)
    assert (read.ids, read.labels) == (predictions.ids, predictions.labels)
    assert (read.label_names, read.candidates) == (predictions.label_names, predictions.candidates)
    np.testing.assert_array_equal(read.logits, predictions.logits.round(3))
    np.testing.assert_allclose(read.probabilities, predictions.probabilities, rtol=0, atol=0.00025)
    # In the other form the rounded predictions are the same again.
    write_predictions(tmp_path / "full.jsonl", read)
    np.testing.assert_array_equal(read_predictions(tmp_path / "full.jsonl").logits, read.logits)


def test_compact_lines_have_no_more_than_is_needed(tmp_path: Path) -> None:
    write_compact_predictions(tmp_path / "dev.jsonl", classifier(), decimals=3)
    first, second, *_ = map(json.loads, (tmp_path / "dev.jsonl").read_text(encoding="utf-8").splitlines())
    assert list(first) == ["id", "label", "predicted", "classes", "logits"] and first["classes"] == list(NAMES)
    assert list(second) == ["id", "label", "predicted", "logits"]
    assert (second["id"], second["label"], second["logits"][2]) == ("zwei", None, None)
    assert second["predicted"] == NAMES[int(classifier().logits[1].argmax())]
    write_compact_predictions(tmp_path / "questions.jsonl", questions(), decimals=3)
    for line in map(json.loads, (tmp_path / "questions.jsonl").read_text().splitlines()):
        assert list(line) == ["id", "label", "predicted", "candidates", "logits"]


@pytest.mark.parametrize(
    ("first", "second", "place", "complaint"),
    [
        ({}, {}, 1, "the field 'probabilities' is missing"),
        ({"classes": "law"}, {}, 1, "the classes that the first line names must be a list of at least 2 strings"),
        ({"classes": ["law"]}, {}, 1, "the classes that the first line names must be a list of at least 2 strings"),
        ({"classes": ["sport", "law", "law"]}, {}, 1, "the classes that the first line names must differ"),
        ({"classes": ["sport", "law"]}, {}, 1, "2 classes have 3 logits"),
        ({"classes": ["sport", "art", "law"]}, {"logits": [0.0, 1.0]}, 2, "3 classes have 2 logits"),
        ({"classes": ["sport", "art", "law"]}, {"predicted": "art"}, 2, "'art' is not the most probable class"),
        ({"classes": ["sport", "art", "law"]}, {"label": "tax"}, 2, "label is 'tax', but must be one of 'sport', "),
        ({"classes": ["sport", "art", "law"]}, QUESTION | {"id": "b"}, 2, "lines with and without candidates"),
        ({"candidates": ["sport", "art", "law"]}, {}, 2, "the field 'probabilities' is missing"),
        ({"candidates": ["sport", "law"]}, {}, 1, "2 classes have 3 logits"),
        (LINE, {}, 2, "the field 'probabilities' is missing"),
    ],
)
def test_errors_in_compact_lines(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], place: int, complaint: str
) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(f"{json.dumps(COMPACT | first)}\n{json.dumps(COMPACT | {'id': 'b'} | second)}\n")
    with pytest.raises(ValueError, match=complaint) as caught:
        read_predictions(path)
    assert str(caught.value).startswith(f"{path}:{place}: ")
