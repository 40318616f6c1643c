"""`prefixprop predict`."""

from __future__ import annotations

import csv
import gc
import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers

from command_line import call, wait_until
from prefixprop import load_run
from prefixprop.predict import inputs
from prefixprop.predict.outputs import locked

from killed_runs import killed
from tiny_runs import LABEL_NAMES, make_run, texts, write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("predict"), family="roberta")


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_DOCUMENTS", 8)


predict = partial(call, "predict")


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def assert_same(output: Path, expected: Path) -> None:
    """The same predictions but for the last digits, which depend on the batches."""
    found, other = lines_of(output.read_text()), lines_of(expected.read_text())
    assert [(line["id"], line["label"]) for line in found] == [(line["id"], line["label"]) for line in other]
    for line, same in zip(found, other, strict=True):
        assert line["probabilities"] == pytest.approx(same["probabilities"], abs=1e-5)


@pytest.mark.parametrize("with_gpu", [False, True])  # which gets windows ahead
def test_predictions_in_order_and_a_summary(
    with_gpu: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: with_gpu)
    documents = [*texts(30, seed=4), "", "w4 " * 50]
    path = write_rows(tmp_path / "in.jsonl", documents)
    printed, told = predict(run, path)
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
    assert gc.get_freeze_count() == 0  # or Triton's binding complains at the end of the process


def test_csv_output(run: Path, tmp_path: Path) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(10)), tmp_path / "out" / "labels.csv"
    predict(run, path, "--output", output)
    assert output.read_text().splitlines()[0] == predict(run, path, "--format", "csv")[0].splitlines()[0]
    expected = lines_of(predict(run, path)[0])
    for row, line in zip(csv.DictReader(io.StringIO(output.read_text())), expected, strict=True):
        found = {name: float(row[f"probability of {name}"]) for name in LABEL_NAMES}
        assert row["label"] == line["label"] and found == pytest.approx(line["probabilities"], abs=1e-5)


def watch_model(monkeypatch: pytest.MonkeyPatch, seen: Callable[[int], object]) -> None:
    """Call `seen` with the number of documents whenever the model reads some."""
    original = transformers.RobertaModel.forward

    def forward(self: Any, input_ids: Any = None, **given: Any) -> Any:
        seen(len(given["inputs_embeds"] if input_ids is None else input_ids))
        return original(self, input_ids, **given)

    monkeypatch.setattr(transformers.RobertaModel, "forward", forward)


def test_killed_in_the_middle_and_resumed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "in.jsonl", texts(40, seed=11))
    partial, uninterrupted = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"

    def recorded() -> int:
        return json.loads(Path(f"{partial}.origin.json").read_text())["documents"]

    def die(documents: int) -> None:
        if recorded() >= 3:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        watch_model(patched, die)
        killed(lambda: predict(run, path, "--output", partial))
    lines = partial.read_bytes().splitlines(keepends=True)
    assert 3 <= (kept := recorded()) <= len(lines) < 40  # of the last window, only the lines may have been written
    with partial.open("ab") as file:
        file.write(b'{"id": "d3", "label": "a')  # as far as the disk got
    predict(run, path, "--output", uninterrupted)
    predict(run, path, "--output", partial, "--resume")
    assert partial.read_bytes().startswith(b"".join(lines[:kept]))
    assert_same(partial, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_standard_input_is_answered_before_it_ends(number: int, run: Path, tmp_path: Path) -> None:
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
        wait_until(lambda: answers.read_bytes().count(b"\n") == 1, 120)
        process.stdin.write(b" of a line\nw6\nw7\nw8 and half")
        wait_until(lambda: answers.read_bytes().count(b"\n") == 4, 120)
        process.send_signal(number)  # while it waits for more
        told = process.stderr.read().decode()
    assert process.returncode == 130 and told.startswith("Stopped.") and "Fatal" not in told, told
    assert [line["id"] for line in lines_of(answers.read_text())] == ["1", "2", "3", "4"]


def test_an_output_that_is_there_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", texts(3))
    for name, advice in (("out.jsonl", "continue it with --resume, or choose"), ("out.csv", "choose")):
        (tmp_path / name).write_text("precious")
        _, told = predict(run, path, "--output", tmp_path / name, status=1)
        assert f"{name}: the file already exists; {advice} another --output" in told
        assert (tmp_path / name).read_text() == "precious"


def test_two_processes_do_not_write_one_file(run: Path, tmp_path: Path) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(3)), tmp_path / "out.jsonl"
    with locked(output):
        _, told = predict(run, path, "--output", output, "--resume", status=1)
    assert f"Error: {output}: another process is writing this file" in told and not output.exists()


def test_a_fault_of_a_file_is_found_before_any_work(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "w4"}\n{"text": \n')
    printed, told = predict(run, tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl", status=1)
    assert told.startswith(f"Error: {tmp_path / 'in.jsonl'}:2: broken JSON") and len(told.splitlines()) == 1
    assert not printed and not (tmp_path / "out.jsonl").exists()


def test_a_fault_in_the_stream_leaves_what_was_predicted(run: Path, tmp_path: Path) -> None:
    path, output = write_rows(tmp_path / "in.jsonl", texts(20)), tmp_path / "out.jsonl"
    good = path.read_bytes().splitlines(keepends=True)
    broken = b"".join(good[:18]) + b'{"id": \n' + b"".join(good[18:])
    _, told = predict(run, "-", "--output", output, stdin=broken, status=1)
    assert "Error: standard input:19: broken JSON" in told
    assert f"{output} has 18 predictions; --resume continues from there." in told
    assert [line["id"] for line in lines_of(output.read_text())] == [f"d{number}" for number in range(18)]
    predict(run, "-", "--output", output, "--resume", stdin=b"".join(good))
    assert [line["id"] for line in lines_of(output.read_text())] == [f"d{number}" for number in range(20)]


def test_a_disk_that_takes_no_more(run: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path, output, whole = write_rows(tmp_path / "in.jsonl", texts(20)), tmp_path / "out.jsonl", tmp_path / "all.jsonl"
    predict(run, path, "--output", whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    room = len(b"".join(lines[:10])) + 30
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        _, told = predict(run, path, "--output", output, status=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"Error: {output}: cannot be written (File too large)" in told
    assert "has 7 predictions; --resume continues from there" in told
    assert output.stat().st_size == room  # with half a line at the end
    predict(run, path, "--output", output, "--resume")
    assert_same(output, whole)


def test_memory_does_not_grow_with_the_documents(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, process, memory = write_rows(tmp_path / "in.jsonl", texts(20_000, longest=3)), psutil.Process(), list[int]()
    watch_model(monkeypatch, lambda documents: memory.append(process.memory_info().rss))
    monkeypatch.setattr(inputs, "MAX_DOCUMENTS", 256)
    predict(run, path, "--output", tmp_path / "out.jsonl")
    after_a_quarter, growth = memory[len(memory) // 4], memory[-1] - memory[len(memory) // 4]
    assert len(memory) > 50 and growth < 5e6, f"{growth / 1e6:.1f} MB on top of {after_a_quarter / 1e6:.0f} MB"


def test_out_of_memory(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("transformers.RobertaModel.forward", fail)
    _, told = predict(run, write_rows(tmp_path / "in.jsonl", texts(3)), status=1)
    assert "lower batch_tokens (--batch-tokens)" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "there is no such file or folder"),
        (("nowhere", "in.jsonl"), "no such run directory"),
        (("in.jsonl", "--output", "x.parquet"), "x.parquet: give --output a name that ends in .jsonl or .csv"),
        (
            ("in.jsonl", "--output", "new.csv", "--resume"),
            "--resume continues JSON lines only",
        ),
        (("in.jsonl", "--resume"), "give its name with --output"),
        (("in.jsonl", "--output", ".", "--format", "csv"), ".: this is a folder"),
        (("in.jsonl", "--id-column", "nr"), "there is no column 'nr'"),
        (("in.jsonl", "--workers", "2"), "--workers would change nothing here: it is for --engine ray"),
    ],
)
def test_wrong_choices(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("in.jsonl"), texts(3))
    assert message in predict(run, *arguments, status=1)[1]
    assert os.listdir() == ["in.jsonl"]


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    red = "\x1b[31m"
    run = make_run(tmp_path / red, family="roberta", label_names=(f"a{red}", f"b{red}"))
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"id": f"{red}é", "text": ""}))
    _, told = predict(run, path)
    assert "\x1b" not in told and r"a\x1b[31m" in told and r"empty: \x1b[31mé" in told
    printed, terminal = os.openpty()
    command = [sys.executable, "-m", "prefixprop", "predict", str(run), str(path), "--format", "csv"]
    subprocess.run(command, stdout=terminal, stderr=subprocess.DEVNULL, timeout=120, check=True)
    shown = os.read(printed, 10_000).decode()
    assert "\x1b" not in shown and r"\x1b[31mé" in shown and len(shown.splitlines()) == 2


def test_a_reader_that_leaves(run: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", texts(2000, longest=3))
    command = f"'{sys.executable}' -m prefixprop predict '{run}' '{path}' | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert json.loads(result.stdout)["id"] == "d0"
    assert "Traceback" not in result.stderr and "BrokenPipe" not in result.stderr
