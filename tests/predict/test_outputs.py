"""Predictions as lines of a file that can be continued."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from prefixprop.predict import Prediction
from prefixprop.predict.inputs import InputDocument
from prefixprop.predict.outputs import CommaSeparated, JsonLines, Origin, ResumableOutput, format_of, locked

NAMES = ("art", 'law, "old"', "tax")
RUN = {"run": NAMES}
RUNS = {"first": NAMES, "no. 2": ("no", "yes")}
PREDICTION = Prediction("art", 0.1 + 0.2, dict(zip(NAMES, (0.1 + 0.2, 1e-17, 0.7), strict=True)), 812, 900, True, 1)
YES = Prediction("yes", 0.75, {"no": 0.25, "yes": 0.75}, 812, 812, False, 2, "accept")
ORIGIN = Origin("run", "f1", "truncate", "text", None)


@pytest.mark.parametrize("name", ["a", 'a, "b"', "ü", "two\nlines \ud800"])
@pytest.mark.parametrize(("runs", "predictions"), [(RUN, [PREDICTION]), (RUNS, [PREDICTION, YES])])
def test_json_lines_are_read_as_they_were_written(runs: dict, predictions: list[Prediction], name: str) -> None:
    line = JsonLines(runs).line(name, predictions)
    assert line.count(b"\n") == 1 and JsonLines(runs).parsed(line) == (name, predictions)
    record = json.loads(line)
    if runs is RUNS:
        record = {"id": record.pop("id"), **record["predictions"].pop("first")}
    fields = ("id", "label", "confidence", "probabilities", "tokens_read", "tokens", "truncated", "chunks")
    assert tuple(record) == fields


def csv_rows(runs: dict, name: str, predictions: list[Prediction], path: Path) -> list[dict[str, str]]:
    form = CommaSeparated(runs)
    path.write_bytes(form.header + form.line(name, predictions))
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv(tmp_path: Path) -> None:
    (row,) = csv_rows(RUN, "7", [PREDICTION], tmp_path / "out.csv")
    assert row["id"] == "7" and row["label"] == "art" and row["truncated"] == "true" and row["decision"] == ""
    assert float(row['probability of law, "old"']) == 1e-17
    (row,) = csv_rows(RUNS, "7", [PREDICTION, YES], tmp_path / "out.csv")
    assert row["first: label"] == "art" and row["no. 2: label"] == "yes" and row["no. 2: decision"] == "accept"
    assert float(row["no. 2: probability of no"]) == 0.25


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\x00=1"])
def test_spreadsheets_find_no_formulas(text: str, tmp_path: Path) -> None:
    wrong = replace(PREDICTION, label=text)
    (row,) = csv_rows({f"{text} ": NAMES, "b": NAMES}, text, [wrong, wrong], tmp_path / "out.csv")
    header = next(name for name in row if name.endswith(" : label"))
    for cell in (row["id"], row["b: label"], header):
        assert cell.startswith("'") and cell.lstrip("' \t\x00")[0] in "=+-@"
    (row,) = csv_rows(RUN, "a=b", [replace(PREDICTION, confidence=-1.0)], tmp_path / "out.csv")
    assert row["id"] == "a=b" and float(row["confidence"]) == -1.0


@pytest.mark.parametrize(
    ("output", "chosen", "expected"),
    [
        (None, None, "jsonl"),
        (None, "csv", "csv"),
        ("a.jsonl", None, "jsonl"),
        ("a.CSV", None, "csv"),
        ("a.csv", "csv", "csv"),
        ("a.txt", "csv", "csv"),
        ("a.parquet", None, r"a.parquet: give --output a name that ends in \.jsonl or \.csv, or choose a --format"),
        ("a", None, r"a: give --output a name that ends in"),
        ("a.csv", "jsonl", "the name says csv, but --format says jsonl"),
    ],
)
def test_formats(output: str | None, chosen: str | None, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) if " " in expected else nullcontext():
        assert format_of(None if output is None else Path(output), chosen) == expected


def test_one_process_writes_a_file(tmp_path: Path) -> None:
    output, other_name = tmp_path / "new" / "out.jsonl", tmp_path / "link.jsonl"
    other_name.symlink_to(output)
    with locked(output), locked(tmp_path / "new" / "other.jsonl"):
        for path in (output, other_name):
            with pytest.raises(ValueError, match=r"jsonl: another process is writing this file; wait"), locked(path):
                pass
    with locked(output):
        pass


# --- resuming ---------------------------------------------------------------------------------------------------


def documents(text: str, own_ids: bool = False) -> list[InputDocument]:
    """One for each letter."""
    return [InputDocument(letter if own_ids else str(number), letter) for number, letter in enumerate(text, 1)]


def resume(output: Path, given: list[InputDocument], origin: Origin = ORIGIN) -> list[str]:
    """Answer documents, two at a time; the texts of those that were not yet answered."""
    form = JsonLines(RUN)
    resumed, rest, answered = ResumableOutput(output, form, origin), iter(given), []
    for document, (prediction,) in resumed.answered(rest):
        assert prediction == PREDICTION
        answered.append(document)
    left = [*resumed.unanswered, *rest]
    assert answered + left == given
    for start in range(0, len(left), 2):
        window = left[start : start + 2]
        with output.open("ab") as file:
            file.write(b"".join(form.line(document.id, [PREDICTION]) for document in window))
        resumed.record(window)
    return [document.text for document in left]


def lines(output: Path) -> list[bytes]:
    return output.read_bytes().splitlines(keepends=True)


def keep(count: int, more: bytes = b"") -> Callable[[Path], None]:
    return lambda output: output.write_bytes(b"".join(lines(output)[:count]) + more) and None


ONE_MORE = JsonLines(RUN).line("5", [PREDICTION])


@pytest.mark.parametrize(
    ("then", "change", "predicted"),
    [
        ("abcd", None, ""),
        ("abcdef", None, "ef"),  # the input has grown
        ("abcd", keep(2), "cd"),
        ("abcd", keep(1, b'{"id": "2", "lab'), "bcd"),
        ("abcd", keep(2, b'{"id": "' + b"x" * 200_000), "cd"),
        ("xyz", keep(0), "xyz"),  # an empty file is begun anew
        ("abcdx", keep(4, ONE_MORE), "x"),  # killed before its digest was written: predicted again
        ("abcd", keep(4, ONE_MORE), ""),
    ],
)
def test_what_a_file_continues_with(
    then: str, change: Callable[[Path], None] | None, predicted: str, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    assert resume(output, documents("abcd")) == list("abcd")
    if change is not None:
        change(output)
    assert resume(output, documents(then)) == list(predicted)
    assert lines(output) == [JsonLines(RUN).line(document.id, [PREDICTION]) for document in documents(then)]
    assert resume(output, documents(then)) == []


@pytest.mark.parametrize(
    ("then", "own_ids", "change", "message"),
    [
        ("xyzabc", False, None, "another input: the first 4 documents are not those that it was made from"),
        ("abxd", False, keep(2), "another input: the first 4 documents are not"),
        ("abc", False, None, "another input: it has more documents"),
        ("abxd", True, None, "another input: it has the document 'c' where the input has 'x'"),
        ("abcd", False, keep(0, b"My thesis"), r"out.jsonl:1: this line was not written by this run"),
        ("abcd", False, keep(2, b'{"id": "3", "label": "art"}\n'), r"out.jsonl:3: this line was not written by"),
        ("abcd", False, keep(4, b"notes\n"), r"out.jsonl:5: this line was not written by this run"),
        ("abcd", False, keep(2, JsonLines(RUNS).line("3", [PREDICTION, YES])), r"out.jsonl:3: this line was not"),
    ],
)
def test_what_no_file_is_continued_with(
    then: str, own_ids: bool, change: Callable[[Path], None] | None, message: str, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    resume(output, documents("abcd", own_ids))
    if change is not None:
        change(output)
    before = output.read_bytes()
    with pytest.raises(ValueError, match=message):
        resume(output, documents(then, own_ids))
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fingerprint": "f2", "run": "second"}, "the run was run, now second. Give the same run and options"),
        ({"fingerprint": "f2"}, "the run was run, which has changed since."),
        ({"long": "chunk-average"}, "--long was truncate, now chunk-average."),
        ({"text_column": "t", "id_column": "id"}, "column was text, now t; --id-column was not given, now id."),
    ],
)
def test_other_runs_and_options_do_not_continue_a_file(changes: dict, message: str, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    resume(output, documents("ab"))
    with pytest.raises(ValueError) as caught:
        resume(output, documents("ab"), replace(ORIGIN, **changes))
    assert message in str(caught.value) and "choose another --output" in str(caught.value)


@pytest.mark.parametrize("content", [None, '{"run": "ru', "[]", '{"run": "run", "fingerprint": "f1"}'])
def test_a_file_of_unknown_origin_is_not_continued(content: str | None, tmp_path: Path) -> None:
    output, origin = tmp_path / "out.jsonl", tmp_path / "out.jsonl.origin.json"
    resume(output, documents("ab"))
    origin.unlink() if content is None else origin.write_text(content)
    with pytest.raises(ValueError, match=r"because out.jsonl.origin.json, which records .* is missing or damaged"):
        resume(output, documents("ab"))
    output.unlink()
    assert resume(output, documents("xy")) == ["x", "y"]
