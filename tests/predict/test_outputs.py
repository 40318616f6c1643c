"""Predictions as lines."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from prefixprop.choices import PREDICTION_FORMATS
from prefixprop.predict import Prediction
from prefixprop.predict.outputs import StoredPrediction, drop_half_written_line, line_format, read_stored

NAMES = ("art", 'law, "old"', "tax")
RUN = {"run": NAMES}
RUNS = {"first": NAMES, "no. 2": ("no", "yes")}
PREDICTION = Prediction("art", 0.1 + 0.2, dict(zip(NAMES, (0.1 + 0.2, 1e-17, 0.7), strict=True)), 812, True, 1)
YES = Prediction("yes", 0.75, {"no": 0.25, "yes": 0.75}, 812, False, 2)
OTHER = Prediction(NAMES[1], 1.0, dict.fromkeys(NAMES, 1 / 3), 3, False, 4)


@pytest.mark.parametrize("name", PREDICTION_FORMATS)
def test_reading_gives_the_very_same_predictions(name: str, tmp_path: Path) -> None:
    form = line_format(name, RUN)
    path = tmp_path / "out"
    path.write_bytes(form.header() + form.line('a, "b"', [PREDICTION]) + form.line("ü", [OTHER]))
    assert list(read_stored(path, form)) == [
        StoredPrediction('a, "b"', (PREDICTION,)),
        StoredPrediction("ü", (OTHER,)),
    ]


@pytest.mark.parametrize("name", PREDICTION_FORMATS)
def test_several_runs_side_by_side(name: str, tmp_path: Path) -> None:
    form, path = line_format(name, RUNS), tmp_path / "out"
    path.write_bytes(form.header() + form.line("a", [PREDICTION, YES]) + form.line("b", [OTHER, YES]))
    stored = [StoredPrediction("a", (PREDICTION, YES)), StoredPrediction("b", (OTHER, YES))]
    assert list(read_stored(path, form)) == stored
    for others in ({"first": NAMES, "no. 3": ("no", "yes")}, {"first": NAMES}, {"run": ("no", "yes")}):
        with pytest.raises(ValueError, match="not written by this run"):
            list(read_stored(path, line_format(name, others)))


def test_what_users_read_of_several_runs(tmp_path: Path) -> None:
    record = json.loads(line_format("jsonl", RUNS).line("7", [PREDICTION, YES]))
    alone = json.loads(line_format("jsonl", RUN).line("7", [PREDICTION]))
    assert record == {"id": alone.pop("id"), "predictions": {"first": alone, "no. 2": vars(YES)}}
    form = line_format("csv", RUNS)
    path = tmp_path / "out.csv"
    path.write_bytes(form.header() + form.line("7", [PREDICTION, YES]))
    with path.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["id"] == "7" and row["first: label"] == "art" and row["no. 2: label"] == "yes"
    assert float(row["no. 2: probability of no"]) == 0.25


def test_what_users_read(tmp_path: Path) -> None:
    record = json.loads(line_format("jsonl", RUN).line("7", [PREDICTION]))
    assert list(record) == ["id", "label", "confidence", "probabilities", "tokens", "truncated", "chunks"]
    assert record["probabilities"] == PREDICTION.probabilities
    form = line_format("csv", RUN)
    path = tmp_path / "out.csv"
    path.write_bytes(form.header() + form.line("7", [PREDICTION]))
    with path.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["id"] == "7" and row["label"] == "art" and row["truncated"] == "true"
    assert float(row['probability of law, "old"']) == 1e-17


@pytest.mark.parametrize("name", PREDICTION_FORMATS)
def test_ids_that_are_hard_to_write_stay_on_one_line(name: str, tmp_path: Path) -> None:
    form = line_format(name, RUN)
    path = tmp_path / "out"
    strange = "two\nlines \ud800"
    path.write_bytes(form.header() + form.line(strange, [PREDICTION]))
    assert [stored.id for stored in read_stored(path, form)] == [form.written_id(strange)]


@pytest.mark.parametrize("name", PREDICTION_FORMATS)
def test_only_whole_lines_stay(name: str, tmp_path: Path) -> None:
    form = line_format(name, RUN)
    path = tmp_path / "out"
    whole = form.header() + form.line("1", [PREDICTION])
    content = whole + form.line("2", [PREDICTION])
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        drop_half_written_line(path, form)
        kept = path.read_bytes()
        assert content.startswith(kept) and kept in (b"", form.header(), whole, content)
        assert length - len(kept) <= len(form.header()) + len(form.line("2", [PREDICTION]))
    assert kept == content


def test_a_long_half_line_goes_whole(tmp_path: Path) -> None:
    form, path = line_format("jsonl", RUN), tmp_path / "out"
    whole = form.line("1", [PREDICTION])
    path.write_bytes(whole + b'{"id": "' + b"x" * 200_000)
    drop_half_written_line(path, form)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", PREDICTION_FORMATS)
def test_files_of_another_kind_lose_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("My thesis\nwithout an end")
    with pytest.raises(ValueError, match=r"thesis.txt:1: this line was not written by this run .*choose another"):
        drop_half_written_line(path, line_format(name, RUN))
    assert path.read_text() == "My thesis\nwithout an end"


@pytest.mark.parametrize("name", PREDICTION_FORMATS)
def test_lines_of_other_labels_and_broken_ones(name: str, tmp_path: Path) -> None:
    form, other = line_format(name, RUN), line_format(name, {"run": ("art", "law")})
    path = tmp_path / "out"
    line = other.line("1", [Prediction("art", 0.5, {"art": 0.5, "law": 0.5}, 3, False)])
    path.write_bytes(form.header() + form.line("0", [PREDICTION]) + line)
    number = 3 if form.header() else 2
    with pytest.raises(ValueError, match=rf"out:{number}: this line was not written by this run"):
        list(read_stored(path, form))
    path.write_bytes(form.header() + b"nonsense\n")
    with pytest.raises(ValueError, match=rf"out:{number - 1}: this line"):
        list(read_stored(path, form))
    if name == "csv":
        path.write_bytes(other.header())
        with pytest.raises(ValueError, match=r"out:1: .*its columns differ"):
            list(read_stored(path, form))
