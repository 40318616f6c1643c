"""`prefixprop bench`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prefixprop.attention import backends
from prefixprop.benchmarking import encoders
from prefixprop.cli.app import app

TINY = encoders.EncoderSize(hidden=32, layers=1, heads=2, window=8)


@pytest.fixture(autouse=True)
def tiny_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(encoders.SIZES, "mini", TINY)
    monkeypatch.setenv("COLUMNS", "80")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def failed(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return re.sub(r"[\s│]+", " ", result.output)


def test_attention(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ("--size", "mini", "--lengths", "32,16", "--tokens", "64", "--global", "3", "--repeats", "2")
    files = ("--json", str(tmp_path / "new" / "a.json"), "--figure", str(tmp_path / "a.pdf"))
    result = run("attention", *options, *files)
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if " global" in line]
    assert [line.split(",")[0].strip() for line in rows] == ["4 × 16", "4 × 16", "2 × 32", "2 × 32"]
    assert all(line.count("ms") == 2 and "×" in line.split("global")[1] for line in rows)
    assert max(map(len, result.output.splitlines())) <= 80 and "…" not in result.output
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    record = json.loads((tmp_path / "new" / "a.json").read_text())
    assert {name: record[name] for name in ("benchmark", "size", "backend", "repeats")} == {
        "benchmark": "attention", "size": "mini", "backend": "auto", "repeats": 2,
    }  # fmt: skip
    assert record["dtype"] == "float32" and record["torch"] and "CPU" in record["device"]
    assert [(row["batch"], row["length"], row["pass"]) for row in record["results"]] == [
        (4, 16, "forward"), (4, 16, "step"), (2, 32, "forward"), (2, 32, "step"),
    ]  # fmt: skip
    for row in record["results"]:
        assert row.keys() == {
            "batch", "length", "global", "dropout", "method", "recorded", "pass",
            "hugging_face", "prefixprop", "ratio",
        }  # fmt: skip
        for who in ("hugging_face", "prefixprop"):
            assert row[who].keys() == {"out_of_memory", "median_s", "seconds", "peak_gib"}
            assert len(row[who]["seconds"]) == 2 and row[who]["peak_gib"] is None
        assert row["ratio"] == pytest.approx(row["hugging_face"]["median_s"] / row["prefixprop"]["median_s"])


@pytest.mark.parametrize("flags", [(), ("--methods",)])
def test_attention_of_modernbert(flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = encoders.EncoderSize(hidden=32, layers=3, heads=2, window=8, family="modernbert")
    monkeypatch.setitem(encoders.FAMILIES["modernbert"], "mini", tiny)
    written = tmp_path / "a.json"
    options = ("--model", "modernbert", "--lengths", "16", "--tokens", "32", "--repeats", "1", *flags)
    result = run("attention", *options, "--json", str(written))
    assert result.exit_code == 0, result.output
    assert "global" not in result.output and "modernbert, mini size" in " ".join(result.output.split())
    record = json.loads(written.read_text())
    assert record["model"] == "modernbert" and all(row["global"] == 0 for row in record["results"])
    beside = {row["method"] for row in record["results"] if row["ratio"]}
    assert beside == ({"whole model", "LoRA"} if flags else {None})
    assert "choose one of longformer, modernbert" in failed("attention", "--model", "bert")


def test_attention_without_hugging_face_and_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    flags = ("--lengths", "16", "--global", "2", "--dropout", "0.1", "--repeats", "1", "--no-hugging-face")
    result = run("attention", "--size", "mini", "--backend", "sdpa", *flags)
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if "1 × 16, 2 global, dropout 0.1" in line]
    assert len(rows) == 2 and all(line.count("ms") == 1 for line in rows)


def test_attention_with_each_method_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefixprop.benchmarking.attention import METHODS

    monkeypatch.setenv("COLUMNS", "120")
    written = tmp_path / "m.json"
    options = (
        "--lengths",
        "16",
        "--tokens",
        "32",
        "--global",
        "2",
        "--dropout",
        "0.1",
        "--repeats",
        "1",
        "--methods",
    )
    result = run("attention", *options, "--json", str(written))
    assert result.exit_code == 0, result.output
    assert all(method in result.output for method in METHODS)
    rows = json.loads(written.read_text())["results"]
    assert [(row["method"], row["pass"]) for row in rows] == [
        (method, name) for method in METHODS for name in ("forward", "step")
    ]
    beside = {row["method"] for row in rows if row["hugging_face"] is not None}
    assert beside == {"whole model", "LoRA"}, "prefixes compute with our attention alone"
    assert all(row["prefixprop"]["median_s"] > 0 for row in rows)


def test_targets_are_the_cases_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefixprop.benchmarking.attention import REPORTED_CASES, AttentionCase
    from prefixprop.benchmarking.encoders import find_device

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setitem(REPORTED_CASES, find_device(), (AttentionCase(1, 24, 2, 0.1),))
    result = run("attention", "--size", "mini", "--targets", "--repeats", "1")
    assert result.exit_code == 0, result.output
    assert "1 × 24, 2 global, dropout 0.1" in result.output


def test_runtime(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = (
        "--size",
        "mini",
        "--batch",
        "2",
        "--length",
        "24",
        "--prefix",
        "3",
        "--batches",
        "3",
        "--repeats",
        "2",
    )
    files = ("--json", str(tmp_path / "r.json"), "--figure", str(tmp_path / "r.png"))
    result = run("runtime", *options, *files, "--hugging-face")
    assert result.exit_code == 0, result.output
    rows = {line[:22].strip(): line for line in result.output.splitlines() if " ms " in line}
    assert list(rows) == ["no PEFT", "prefix-tuning", "prefix-propagation", "no PEFT, Hugging Face"]
    assert "+0.0 %" in rows["no PEFT"] and "+2.1 %" in rows["prefix-tuning"] and " to " in rows["prefix-propagation"]
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "r.json").read_text())
    assert {name: record[name] for name in ("benchmark", "batch", "length", "prefix", "batches", "pass")} == {
        "benchmark": "runtime", "batch": 2, "length": 24, "prefix": 3, "batches": 3, "pass": "inference",
    }  # fmt: skip
    assert [row["method"] for row in record["results"]] == list(rows)
    for row in record["results"]:
        assert row["low"] <= row["relative"] <= row["high"] and len(row["seconds"]) == 2


def test_runtime_of_training_has_no_paper_to_compare_with() -> None:
    result = run("runtime", "--size", "mini", "--batch", "1", "--length", "24", "--repeats", "1", "--train")
    assert result.exit_code == 0, result.output
    assert "training step" in result.output
    rows = [line for line in result.output.splitlines() if " ms " in line]
    assert len(rows) == 3 and all(line.split()[-1] == "-" for line in rows), "the last column is the paper's"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("attention", "--size", "huge"), "'huge' is unknown; choose one of mini, base"),
        (("attention", "--backend", "flash"), "'flash' is unknown; choose one of auto, sdpa, triton"),
        (("attention", "--lengths", "512,many"), "'512,many' is not a list of lengths; write positive numbers"),
        (("attention", "--lengths", "0"), "is not a list of lengths"),
        (
            ("attention", "--lengths", "512", "--tokens", "700"),
            "is not a whole number of documents of 512",
        ),
        (("attention", "--global", "9000"), "9000 global tokens do not fit"),
        (("attention", "--repeats", "0"), "--repeats"),
        (("attention", "--figure", "a.bmp"), "pictures are written as .png, .svg, .pdf"),
        (("attention", "--targets", "--lengths", "512"), "leave out --lengths and --tokens"),
        (("attention", "--targets", "--figure", "a.png"), "make no curve"),
        (("runtime", "--size", "huge"), "'huge' is unknown"),
        (("runtime", "--prefix", "30", "--length", "30"), "30 leaves no room in sequences of 30 tokens"),
        (("runtime", "--batch", "0"), "--batch"),
        (("runtime", "--profile"), "shows a GPU's kernels, and there is no GPU here"),
        (("runtime", "--figure", "picture"), "pictures are written as"),
    ],
)
def test_bad_flags_are_refused_before_anything_is_measured(arguments: tuple[str, ...], message: str) -> None:
    assert message in failed(*arguments)


def test_backend_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HAS_TRITON", False)
    assert "this machine has: auto, sdpa" in failed("attention", "--size", "mini", "--backend", "triton")


def test_both_are_in_the_help() -> None:
    output = run("--help").output
    assert "attention" in output and "runtime" in output
