"""`prefixprop predict`."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

from prefixprop import load_run
from prefixprop.cli.app import app
from prefixprop.predict import windows
from prefixprop.predict.outputs import StoredPrediction, line_format, read_stored

from killed_runs import killed
from tiny_questions import invented
from tiny_runs import LABEL_NAMES, finish_again, make_run, make_wikihop_run, texts, write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("predict"), family="roberta")


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_DOCUMENTS", 8)


def call(*arguments: object, status: int = 0, stdin: bytes | None = None) -> tuple[str, str]:
    """Standard output and standard error of `prefixprop predict`."""
    result = CliRunner().invoke(app, ["predict", *map(str, arguments)], input=stdin)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result.stdout, result.stderr


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def assert_same(output: Path, expected: Path) -> None:
    """The same predictions but for the last digits, which depend on the batches."""
    found, other = _stored(output), _stored(expected)
    assert [line.id for line in found] == [line.id for line in other]
    for line, same in zip(found, other, strict=True):
        for one, two in zip(line.predictions, same.predictions, strict=True):
            assert one.label == two.label
            assert one.probabilities == pytest.approx(two.probabilities, abs=1e-5)


def _stored(path: Path) -> list[StoredPrediction]:
    return list(read_stored(path, line_format(path.suffix[1:], {"run": LABEL_NAMES})))


def test_predictions_in_order_and_a_summary(run: Path, tmp_path: Path) -> None:
    documents = [*texts(30, seed=4), "", "w4 " * 50]
    printed, told = call(run, write_rows(tmp_path / "in.jsonl", documents))
    found = lines_of(printed)
    assert [line["id"] for line in found] == [f"d{number}" for number in range(32)]
    expected = list(load_run(run).predict_stream(documents))
    for line, prediction in zip(found, expected, strict=True):
        assert line["probabilities"] == pytest.approx(prediction.probabilities, abs=1e-5)
        assert line["label"] == prediction.label and line["confidence"] == max(line["probabilities"].values())
    counts = Counter(prediction.label for prediction in expected)
    assert "32 documents: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()) in told
    assert "Warning: 1 document is longer than the limit of 32 tokens and cut there" in told and ": d31" in told
    assert "Warning: 1 document is empty: d30" in told
    assert "tokens/s" in told


def test_the_same_documents_in_every_way_they_come(run: Path, tmp_path: Path) -> None:
    documents = texts(12, seed=8)
    expected, _ = call(run, write_rows(tmp_path / "in.jsonl", documents))
    probabilities = [line["probabilities"] for line in lines_of(expected)]
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(documents):
        (folder / f"{number:02}.txt").write_text(text)
    (tmp_path / "in.csv").write_text("text\n" + "".join(f"{text}\n" for text in documents))
    plain = "".join(f"{text}\n" for text in documents).encode()
    for printed in (
        call(run, folder)[0],
        call(run, tmp_path / "in.csv")[0],
        call(run, "-", stdin=plain)[0],
        call(run, "-", stdin=(tmp_path / "in.jsonl").read_bytes())[0],
    ):
        found = [line["probabilities"] for line in lines_of(printed)]
        assert found == [pytest.approx(expected, abs=1e-5) for expected in probabilities]
    assert [line["id"] for line in lines_of(call(run, folder)[0])][:2] == ["00.txt", "01.txt"]


def test_csv_output(run: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", texts(10))
    call(run, path, "--output", tmp_path / "out" / "labels.csv")
    written = (tmp_path / "out" / "labels.csv").read_text()
    assert call(run, path, "--format", "csv")[0].splitlines()[0] == written.splitlines()[0]
    rows = list(csv.DictReader(io.StringIO(written)))
    expected = lines_of(call(run, path)[0])
    assert [row["label"] for row in rows] == [line["label"] for line in expected]
    for name in LABEL_NAMES:
        found = [float(row[f"probability of {name}"]) for row in rows]
        assert found == pytest.approx([line["probabilities"][name] for line in expected], abs=1e-5)


def test_chunks_instead_of_cutting(run: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", ["w4 w5", "w6 " * 70])
    printed, told = call(run, path, "--long", "chunk-average")
    assert [line["chunks"] for line in lines_of(printed)] == [1, 3]
    assert "1 document is longer than the limit of 32 tokens and read in chunks: d1" in told


def test_repeated_ids_are_predicted_and_counted(run: Path) -> None:
    rows = b"".join(b'{"id": "%s", "text": "w5 w6"}\n' % name for name in (b"a", b"b", b"a", b"a"))
    printed, told = call(run, "-", stdin=rows)
    assert [line["id"] for line in lines_of(printed)] == ["a", "b", "a", "a"]
    assert "Warning: 2 documents are named like an earlier one: a, a" in told


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_resume_after_any_loss_gives_the_same_file(run: Path, tmp_path: Path, ending: str) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", [*texts(28, seed=9), "", "w4 " * 60]), tmp_path / f"out.{ending}"
    _, told = call(run, path, "--output", output)
    whole = output.read_bytes()
    uninterrupted = tmp_path / f"whole.{ending}"
    uninterrupted.write_bytes(whole)
    summary = told.splitlines()[:-1]  # without the speed
    assert len(summary) == 3
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for length in (
        0,
        3,
        ends[0],
        ends[0] + 20,
        ends[8],
        ends[8] + 1,
        ends[12] - 1,
        ends[15],
        len(whole) - 1,
        len(whole),
    ):
        output.write_bytes(whole[:length])
        _, told = call(run, path, "--output", output, "--resume")
        assert output.read_bytes().startswith(whole[:length].rpartition(b"\n")[0])
        assert_same(output, uninterrupted)
        assert told.splitlines()[:-1] == summary


def test_resume_does_not_predict_again(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(30, seed=9)), tmp_path / "out.jsonl"
    call(run, path, "--output", output)
    lines = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:13]))
    read: list[int] = []
    watch_model(monkeypatch, lambda documents: read.append(documents))
    call(run, path, "--output", output, "--resume")
    assert sum(read) == 17


def watch_model(monkeypatch: pytest.MonkeyPatch, seen: Callable[[int], object]) -> None:
    """Call `seen` with the number of documents whenever the model reads some."""
    original = transformers.RobertaModel.forward

    def forward(self: Any, input_ids: Any = None, **given: Any) -> Any:
        seen(len(given["inputs_embeds"] if input_ids is None else input_ids))
        return original(self, input_ids, **given)

    monkeypatch.setattr(transformers.RobertaModel, "forward", forward)


def test_lines_are_written_every_few_seconds(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(12)), tmp_path / "out.jsonl"
    clock, read, unwritten = [0.0], [0], []

    def slow(documents: int) -> None:
        read[0] += documents
        clock[0] += 0.9 * documents
        unwritten.append(read[0] - output.read_bytes().count(b"\n"))

    monkeypatch.setattr(windows, "perf_counter", lambda: clock[0])
    watch_model(monkeypatch, slow)
    call(run, path, "--output", output)
    assert read == [12] and max(unwritten) == 2  # 1.8 seconds


def test_killed_in_the_middle_and_resumed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "in.jsonl", texts(40, seed=11))
    partial, uninterrupted = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"

    def die(documents: int) -> None:
        if partial.read_bytes().count(b"\n") >= 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        watch_model(patched, die)
        killed(lambda: call(run, path, "--output", partial))
    lines = partial.read_bytes().splitlines(keepends=True)
    assert 3 <= len(lines) < 40
    with partial.open("ab") as file:
        file.write(b'{"id": "d3", "label": "a')  # as far as the disk got
    call(run, path, "--output", uninterrupted)
    call(run, path, "--output", partial, "--resume")
    assert partial.read_bytes().startswith(b"".join(lines))
    assert_same(partial, uninterrupted)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def test_standard_input_is_answered_before_it_ends(run: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    with (
        answers.open("wb") as stdout,
        subprocess.Popen(
            [sys.executable, "-m", "prefixprop", "predict", str(run), "-"],
            bufsize=0, stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"w4 w5\nw4 and half")
        wait_for(lambda: answers.read_bytes().count(b"\n") == 1, process)
        process.stdin.write(b" of a line\nw6\nw7\nw8 and half")
        wait_for(lambda: answers.read_bytes().count(b"\n") == 4, process)
        process.send_signal(signal.SIGINT)  # while it waits for more
        told = process.stderr.read().decode()
    assert process.returncode == 130 and told.startswith("Stopped.") and "Fatal" not in told, told
    assert [line["id"] for line in lines_of(answers.read_text())] == ["1", "2", "3", "4"]


def test_another_input_cannot_be_resumed(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    call(run, write_rows(tmp_path / "in.jsonl", texts(12)), "--output", output)
    before = output.read_bytes()
    rows = b'{"id": "other", "text": "w4"}\n'
    _, told = call(run, "-", "--output", output, "--resume", stdin=rows, status=1)
    assert "The output belongs to another input: it has the document 'd0' where the input has 'other'" in told
    _, told = call(run, write_rows(tmp_path / "in.jsonl", texts(9)), "--output", output, "--resume", status=1)
    assert "The output has more documents than the input, from 'd9' on" in told
    assert output.read_bytes() == before


def test_another_run_or_other_options_cannot_be_resumed(run: Path, tmp_path: Path) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(6)), tmp_path / "out.jsonl"
    call(run, path, "--output", output)
    output.write_bytes(before := b"".join(output.read_bytes().splitlines(keepends=True)[:3]))

    def refused(*arguments: object, by: Path = run) -> str:
        _, told = call(by, path, "--output", output, "--resume", *arguments, status=1)
        assert output.read_bytes() == before
        assert told.startswith(f"Error: {output}: --resume cannot continue") and "choose another --output" in told
        return told

    other = make_run(tmp_path / "other", "head-only", family="roberta").rename(tmp_path / "second")
    assert "the run was run, now second. Give the same run and options" in refused(by=other)
    changed = Path(shutil.copytree(run, tmp_path / "run"))
    finish_again(changed, temperature=12.5)
    assert "the run was run, which has changed since." in refused(by=changed)
    assert "--long was truncate, now chunk-average." in refused("--long", "chunk-average")
    told = refused("--format", "csv", "--id-column", "id", "--text-column", "label")
    assert (
        "--format was jsonl, now csv; --text-column was text, now label; --id-column was not given, now id." in told
    )
    call(Path(shutil.copytree(run, tmp_path / "moved")), path, "--output", output, "--resume", "--batch-tokens", 64)
    assert [line["id"] for line in lines_of(output.read_text())] == [f"d{number}" for number in range(6)]


def test_an_output_of_unknown_origin_cannot_be_resumed(run: Path, tmp_path: Path) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(6)), tmp_path / "out.jsonl"
    call(run, path, "--output", output)
    before, origin = output.read_bytes(), tmp_path / "out.jsonl.origin.json"
    for damage in (lambda: origin.write_text('{"run": "ru'), lambda: origin.write_text("[]"), origin.unlink):
        damage()
        _, told = call(run, path, "--output", output, "--resume", status=1)
        assert "because out.jsonl.origin.json, which says what made the file, is missing or damaged" in told
        assert "choose another --output, or remove the file" in told
        assert output.read_bytes() == before
    output.unlink()
    call(run, path, "--output", output, "--resume")
    assert origin.exists() and len(_stored(output)) == 6


def test_an_output_that_is_there_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(3)), tmp_path / "out.jsonl"
    call(run, path, "--output", output)
    output.write_text("precious")
    _, told = call(run, path, "--output", output, status=1)
    assert "out.jsonl: the file already exists; continue it with --resume" in told
    _, told = call(run, path, "--output", output, "--resume", status=1)
    assert "out.jsonl:1: this line was not written by this run" in told
    assert output.read_text() == "precious"
    assert "give its name with --output" in call(run, path, "--resume", status=1)[1]
    assert "this is a folder" in call(run, path, "--output", tmp_path, status=1)[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "w4"}\n{"text": \n', "in.jsonl:2: broken JSON"),
        (b'{"text": "w4"}\n\n{"text": "\xff"}\n', "in.jsonl:3: the text is not UTF-8"),
        (b'{"body": "w4", "nr": 1}\n', "in.jsonl:1: there is no column 'text'; the columns are body, nr"),
        (b'{"text": ["w4"]}\n', "in.jsonl:1: the column 'text' must hold text"),
        (b"", "in.jsonl: the file is empty"),
    ],
)
def test_a_fault_of_a_file_is_found_before_any_work(run: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    printed, told = call(run, tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", status=1)
    assert told.startswith("Error: ") and message in told and len(told.splitlines()) == 1
    assert not printed and not (tmp_path / "out.jsonl").exists()


def test_a_fault_in_the_stream_leaves_what_was_predicted(run: Path, tmp_path: Path) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(20)), tmp_path / "out.jsonl"
    good = path.read_bytes().splitlines(keepends=True)
    broken = b"".join(good[:18]) + b'{"id": \n' + b"".join(good[18:])
    _, told = call(run, "-", "--output", output, stdin=broken, status=1)
    assert "Error: standard input:19: broken JSON" in told
    assert f"{output} has 18 predictions; --resume continues from there." in told
    assert [line["id"] for line in lines_of(output.read_text())] == [f"d{number}" for number in range(18)]
    call(run, "-", "--output", output, "--resume", stdin=b"".join(good))
    assert [line["id"] for line in lines_of(output.read_text())] == [f"d{number}" for number in range(20)]


def test_a_disk_that_takes_no_more(run: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path, output, whole = write_rows(tmp_path / "in.jsonl", texts(20)), tmp_path / "out.jsonl", tmp_path / "all.jsonl"
    call(run, path, "--output", whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    room = len(b"".join(lines[:10])) + 30
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        _, told = call(run, path, "--output", output, status=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"Error: {output}: cannot be written (File too large)" in told
    assert "has 7 predictions; --resume continues from there" in told
    assert output.stat().st_size == room  # with half a line at the end
    call(run, path, "--output", output, "--resume")
    assert_same(output, whole)


def test_out_of_memory(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("transformers.RobertaModel.forward", fail)
    _, told = call(run, write_rows(tmp_path / "in.jsonl", texts(3)), status=1)
    assert "lower batch_tokens (--batch-tokens)" in told


def test_wrong_choices(run: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", texts(3))
    assert (
        "--long 'cut' is unknown; choose one of truncate, chunk-average"
        in call(run, path, "--long", "cut", status=1)[1]
    )
    assert "--format 'xml' is unknown; choose one of jsonl, csv" in call(run, path, "--format", "xml", status=1)[1]
    assert "there is no such file or folder" in call(run, tmp_path / "nowhere", status=1)[1]
    assert "there is no column 'nr'" in call(run, path, "--id-column", "nr", status=1)[1]
    assert "no such run directory" in call(tmp_path / "nowhere", path, status=1)[1]


def test_a_reader_that_leaves(run: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", texts(2000, longest=3))
    command = f"'{sys.executable}' -m prefixprop predict '{run}' '{path}' | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert json.loads(result.stdout)["id"] == "d0"
    assert "Traceback" not in result.stderr and "BrokenPipe" not in result.stderr


def test_a_run_on_wikihop_is_refused(tmp_path: Path) -> None:
    run = make_wikihop_run(
        tmp_path, {split: invented(3, seed) for seed, split in enumerate(("train", "dev", "test"))}
    )
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": "q", "query": "who", "candidates": ["a"], "supports": []}\n')
    for file in (write_rows(tmp_path / "in.jsonl", texts(3)), questions):
        _, told = call(run, file, status=1)
        assert "trained on WikiHop" in told and "prefixprop evaluate" in told
