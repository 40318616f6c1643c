"""`PredictionSet` and its file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixprop.evaluate import (
    PredictionSet,
    Temperature,
    evaluate_predictions,
    fit_temperature,
    read_predictions,
    write_predictions,
)

TWO = {"ids": ("a", "b"), "labels": (0, 1), "logits": [[1.0, 0.0], [0.5, 0.25]], "label_names": ("no", "yes")}
QUESTIONS = {
    "ids": ("q1", "q2", "q3"),
    "labels": (1, 0, 0),
    "logits": [[0.0, 2.0], [1.0, 0.5, 0.25], [4.0]],
    "candidates": (("Oslo", "Rome"), ("red", "green", "blue"), ("one",)),
}
LINE = {"id": "a", "label": "sport", "classes": ["sport", "art", "law"], "logits": [0.0, 0.0, 0.5]}
LATER = {name: value for name, value in LINE.items() if name != "classes"}
QUESTION = LATER | {"candidates": ["sport", "art", "law"]}


def classifier() -> PredictionSet:
    logits = np.random.default_rng(0).normal(size=(4, 3)) * 5
    logits[1, 2] = -np.inf
    names = ("sport", "art & café", "law")
    return PredictionSet(("1", "zwei", "\ud800", ""), (0, None, 2, 1), logits, label_names=names)


def questions() -> PredictionSet:
    candidates = [["Oslo", "Rome"], ["red", "green", "green", "blue"], ["one"]]
    logits = [[0.1, 0.2], [1.5, -3e8, 1.25, -np.inf], [7.0]]
    return PredictionSet.of_candidates(["q1", "q2", "q3"], [1, None, 0], logits, candidates)


def several_labels() -> PredictionSet:
    logits = np.random.default_rng(1).normal(size=(3, 3))
    decisions = logits > 0.3
    return PredictionSet(("1", "2", "3"), ((0, 2), None, ()), logits, ("sport", "art", "law"), decisions=decisions)


def test_classification() -> None:
    predictions = PredictionSet(**TWO)
    np.testing.assert_allclose(predictions.probabilities[0], [np.e / (np.e + 1), 1 / (np.e + 1)])
    assert predictions.class_names(1) == ("no", "yes")
    assert predictions.evaluate() == evaluate_predictions(predictions.probabilities, [0, 1])
    with pytest.raises(ValueError, match="Document 'b' has no label"):
        PredictionSet(**TWO | {"labels": (0, None)}).evaluate()


def test_questions_of_different_lengths() -> None:
    predictions = PredictionSet.of_candidates(**QUESTIONS)
    assert predictions.logits.shape == (3, 3)
    np.testing.assert_allclose(predictions.probabilities[0], [1 / (1 + np.e**2), np.e**2 / (1 + np.e**2), 0])
    assert predictions.probabilities[2].tolist() == [1, 0, 0]
    assert predictions.class_names(0) == ("Oslo", "Rome")
    assert predictions.evaluate() == evaluate_predictions(predictions.probabilities, [1, 0, 0], questions=True)
    single = PredictionSet.of_candidates(["q"], [0], [[3.0]], [["only"]])
    assert single.probabilities.tolist() == [[1, 0]]


@pytest.mark.parametrize("predictions", [PredictionSet(**TWO), PredictionSet.of_candidates(**QUESTIONS)])
def test_temperature(predictions: PredictionSet) -> None:
    fitted = fit_temperature(predictions.logits, predictions.known_labels)
    calibrated = predictions.with_temperature(fitted)
    np.testing.assert_allclose(calibrated.probabilities, fitted.apply(predictions.logits))
    assert calibrated.ids == predictions.ids and calibrated.class_names(0) == predictions.class_names(0)
    unchanged = predictions.with_temperature(Temperature(1.0))
    np.testing.assert_allclose(unchanged.probabilities, predictions.probabilities)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ids": ("a",)}, "1 ids, but logits of 2 documents"),
        ({"labels": (0, 1, 1)}, "3 labels, but logits of 2 documents"),
        ({"label_names": ("no", "yes", "maybe")}, "3 label names, but logits of 2 classes"),
        ({"label_names": None}, "either label_names or candidates"),
        ({"candidates": (("x", "y"), ("x", "y"))}, "either label_names or candidates"),
        ({"logits": [[1.0, 0.0], [np.nan, 0.0]]}, "Logits must be finite"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PredictionSet(**TWO | changes)
    with pytest.raises(ValueError, match=r"3 candidates, but logits of shape \(1,\)"):
        PredictionSet.of_candidates(**QUESTIONS | {"logits": [[0.0, 2.0], [1.0], [4.0]]})


# --- its file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize("predictions", [classifier(), questions(), several_labels()])
def test_what_is_written_comes_back_to_the_last_bit(tmp_path: Path, predictions: PredictionSet, ending: str) -> None:
    path = tmp_path / "run" / f"dev.{ending}"
    write_predictions(path, predictions)
    read = read_predictions(path)
    for name in ("ids", "labels", "label_names", "candidates"):
        assert getattr(read, name) == getattr(predictions, name)
    np.testing.assert_array_equal(read.logits, predictions.logits)
    np.testing.assert_array_equal(read.decisions, predictions.decisions)
    content = path.read_bytes()
    write_predictions(path, read)
    assert path.read_bytes() == content


def test_lines_say_what_they_mean(tmp_path: Path) -> None:
    predictions = PredictionSet(("a", "b"), (0, None), [[0.5, 1.5, -np.inf], [2, 1, 1]], label_names=("x", "é", "z"))
    write_predictions(tmp_path / "dev.jsonl", predictions)
    assert (tmp_path / "dev.jsonl").read_text(encoding="utf-8") == (
        '{"id": "a", "label": "x", "predicted": "é", "documents": 2, "classes": ["x", "é", "z"], '
        '"logits": [0.5, 1.5, null]}\n{"id": "b", "label": null, "predicted": "x", "logits": [2.0, 1.0, 1.0]}\n'
    )
    write_predictions(tmp_path / "questions.jsonl", questions())
    _, _, last = map(json.loads, (tmp_path / "questions.jsonl").read_text().splitlines())
    assert last == {"id": "q3", "label": "one", "predicted": "one", "candidates": ["one"], "logits": [7.0]}


@pytest.mark.parametrize("base", [LINE, QUESTION], ids=["classes", "question"])
def test_lines_of_other_programs_are_read(tmp_path: Path, base: dict[str, Any]) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps(base | {"seconds": 3}) + "\n\n" + json.dumps(base | {"id": "b", "label": None}))
    read = read_predictions(path)
    assert read.ids == ("a", "b") and read.labels == (0, None)
    assert read.class_names(0) == ("sport", "art", "law")


SEVERAL = LINE | {"id": "first", "label": ["sport"], "predicted": ["art"]}
NUMBERS = "logits must be a list of 3 numbers"


@pytest.mark.parametrize(
    ("first", "changes", "complaint"),
    [
        (LINE, {"id": "first"}, "the id 'first' occurs a second time"),
        (LINE, {"label": "cooking"}, r"the label 'cooking' is not one of \['sport', 'art', 'law'\]"),
        (LINE, {"logits": [0.0, 0.0, float("nan")]}, "logits must be finite numbers, got nan"),
        (LINE, {"logits": [0.0, 0.0, True]}, "logits must be finite numbers, got True"),
        (LINE, {"logits": [None, None, None]}, NUMBERS),
        (LINE, {"logits": 3}, NUMBERS),
        (LINE, {"logits": [0.0, 0.0]}, NUMBERS),
        (LINE, {"id": ["x"]}, "unhashable type: 'list'"),
        (QUESTION, {"candidates": ["sport", "art"]}, "logits must be a list of 2 numbers"),
        (SEVERAL, {"predicted": [], "label": ["gold"]}, "the label 'gold' is not one of"),
        *((LINE, {name: None}, f"the field '{name}' is missing") for name in LATER),  # None: it is left out
    ],
)
def test_errors_name_file_and_line(
    tmp_path: Path, first: dict[str, Any], changes: dict[str, Any], complaint: str
) -> None:
    second = {name: value for name, value in (LATER | changes).items() if value is not None}
    (tmp_path / "dev.jsonl").write_text("\n\n".join(map(json.dumps, (first | {"id": "first"}, second))))
    refused(tmp_path / "dev.jsonl", 3, complaint)


@pytest.mark.parametrize("predictions", [classifier(), questions()], ids=["classifier", "questions"])
def test_a_truncated_or_damaged_file_is_refused(tmp_path: Path, predictions: PredictionSet) -> None:
    path, packed = tmp_path / "dev.jsonl", tmp_path / "dev.jsonl.gz"
    write_predictions(path, predictions)
    lines, count = path.read_bytes().splitlines(keepends=True), len(predictions.ids)
    another = lines[-1].replace(b'"id": "', b'"id": "other')
    for content, line, complaint in (
        (b"".join(lines)[:-20], count, "broken JSON"),
        (b"".join(lines[:-1]), count - 1, f"there are {count - 1} documents, but the first line says {count}"),
        (b"".join([*lines, another]), count + 1, f"there are {count + 1} documents"),
        (b"", 1, "there are no predictions"),
        (json.dumps(LATER).encode(), 1, "the field 'classes' is missing"),
    ):
        path.write_bytes(content)
        refused(path, line, complaint)
    packed.write_bytes(gzip.compress(b"".join(lines))[:-12])
    with pytest.raises(ValueError, match=r"dev\.jsonl\.gz:\d: the gzip data is damaged.*restore the file"):
        read_predictions(packed)


def refused(path: Path, line: int, complaint: str) -> None:
    """The error names the file, the line, the problem and what to do."""
    with pytest.raises(ValueError, match=complaint) as caught:
        read_predictions(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert str(caught.value).endswith("; restore the file from a copy, or train the run again.")
