"""The scripts in benchmarks/ run on a CPU, and the docs have the numbers that they wrote to results/bench."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
SCRIPTS, RECORDS = ROOT / "benchmarks", ROOT / "results" / "bench"
README, PERFORMANCE, METHODS = (ROOT / path for path in ("README.md", "docs/performance.md", "docs/methods.md"))
sys.path.append(str(SCRIPTS))
import check_gpu  # noqa: E402
import methods  # noqa: E402
import runtime  # noqa: E402
import trust  # noqa: E402

from prefixprop.evaluate import PredictionSet  # noqa: E402

import measuring  # noqa: E402
from measuring import Timing  # noqa: E402

PASSES = ("forward", "step")
OF_THE_PAPER = [(method, None) for method in (runtime.NO_PEFT, runtime.TUNING, runtime.PROPAGATION)]
Row = dict[str, str]


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("attention --lengths 16 32", [(batch, name) for batch in (2, 1) for name in PASSES]),
        ("attention --lengths 16 --tokens 32 --model modernbert", [(2, name) for name in PASSES]),
        ("methods --batch 2 --length 24", [(method, name) for method in methods.METHODS for name in PASSES]),
        ("methods --batch 2 --length 24 --adapters 3", [(method, None) for method in methods.MIXED]),
        ("runtime --batch 2 --length 24", OF_THE_PAPER),
        (
            "runtime --length 24 --train --model modernbert",
            [(method, None) for method in (runtime.NO_PEFT, *runtime.PAPER)],
        ),
        ("lengthen --batch 2 --length 24", [("prefixprop", None), ("Hugging Face", None)]),
    ],
)
def test_a_script_prints_a_table_and_writes_its_numbers(
    command: str,
    rows: list[tuple[Any, str | None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script, *options = command.split()
    written = tmp_path / "numbers.json"
    monkeypatch.setattr(sys, "argv", [script, *options, "--size", "tiny", "--repeats", "1", "--json", str(written)])
    runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    record = json.loads(written.read_text(encoding="utf-8"))
    assert (record["size"], record["dtype"], record["repeats"]) == ("tiny", "float32", 1)
    results = record["results"]
    if isinstance(results, dict):
        results = [{"method": name, **timing} for name, timing in results.items()]
    assert [(row.get("method") or row["batch"], row.get("pass")) for row in results] == rows
    printed = capsys.readouterr().out
    assert "tiny size" in printed and printed.count(" ms ") >= len(rows)
    for row in results:
        timing = row.get("prefixprop") or row.get("3 adapters") or row
        assert timing["median_s"] == pytest.approx(timing["seconds"][0]) and timing["peak_gib"] is None
        if row.get("hugging_face"):
            assert row["ratio"] == pytest.approx(row["hugging_face"]["median_s"] / timing["median_s"])


def test_throughput_and_what_archives_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "numbers.json"
    few = ["--size", "tiny", "--lengths", "24", "32", "--documents", "6", "--repeats", "1", "--json", str(written)]
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # which the script changes
    monkeypatch.setattr(sys, "argv", ["predict", *few])
    runpy.run_path(str(SCRIPTS / "predict.py"), run_name="__main__")
    record = json.loads(written.read_text(encoding="utf-8"))
    ways = ("predict", "pipeline", "forward", "tokenize")
    rows = {(row["length"], row["way"]): row for row in record["results"]}
    assert list(rows) == [(length, way) for length in (24, 32) for way in ways]
    for (length, _), row in rows.items():
        assert row["documents_per_s"] == pytest.approx(6 / row["seconds"][0])
        assert row["tokens_per_s"] == pytest.approx(length * row["documents_per_s"])
    for cost in record["costs"]:
        an_hour = 3600 * rows[cost["length"], "predict"]["documents_per_s"]
        assert cost["documents_per_hour"] == pytest.approx(an_hour)
        assert cost["hours"]["a billion"]["64"] == pytest.approx(10**9 / an_hour / 64)
    assert "hours on so many machines" in capsys.readouterr().out


def test_the_check_of_a_gpu_says_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["check_gpu.py"])
    assert check_gpu.main() == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


def test_measurements_take_turns_and_leave_out_the_warm_up() -> None:
    order: list[str] = []
    timings = measuring.measure_in_turns({name: lambda name=name: order.append(name) for name in "abc"}, repeats=4)
    assert "".join(order) == ("abcbcacab" * 2)[: 3 * (measuring.WARM_UP + 4)]
    assert [len(timing.seconds) for timing in timings.values()] == [4, 4, 4]


def test_what_runs_out_of_memory_is_left_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy() -> None:
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    timings = measuring.measure_in_turns({"greedy": greedy, "modest": lambda: None}, repeats=3)
    assert timings["greedy"] == Timing((), None) and str(timings["greedy"]) == "out of memory"
    assert len(timings["modest"].seconds) == 3
    assert set(runtime.relative_time(timings["greedy"], timings["modest"]).values()) == {None}


def test_rounds_are_compared_as_pairs() -> None:
    """A drift that affects both leaves their ratio certain."""
    drift = np.linspace(1, 2, 51)
    relative = runtime.relative_time(Timing(tuple(1.1 * drift), None), Timing(tuple(drift), None))
    assert list(relative.values()) == pytest.approx([1.1, 1.1, 1.1])


def recorded(file: str) -> dict[str, Any]:
    return json.loads((RECORDS / file).read_text(encoding="utf-8"))


def documented(path: Path, first: str) -> list[Row]:
    """The rows of the first table whose first column is called so."""
    lines = [
        [cell.strip("* ") for cell in line.strip("|").split("|")]
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    start = next(place for place, cells in enumerate(lines) if cells[0] == first)
    rows: list[Row] = []
    for cells in lines[start + 2 :]:
        if len(cells) == 1:
            break
        rows.append(dict(zip(lines[start], cells, strict=True)))
    return rows


def milliseconds(result: dict[str, Any], whose: str) -> str:
    value = 1000 * result[whose]["median_s"]
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def test_random_splits_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    right = generator.random(400) < (confidence := generator.uniform(0.5, 1, 400))
    logits = np.log(np.stack([confidence, 1 - confidence], axis=1))
    pool = PredictionSet(tuple(map(str, range(400))), tuple((~right).astype(int).tolist()), logits, ("a", "b"))
    monkeypatch.setattr(trust, "SPLITS", 20)
    guarantee, estimate = trust.measure(pool, 0.8)
    assert (guarantee["variant"], estimate["variant"]) == ("guarantee", "estimate")
    assert 0.8 <= guarantee["held"] <= 1 and 0 < estimate["accepted"] < 1 and estimate["accuracy"] > 0.7
    (impossible, _) = trust.measure(pool, 0.999)
    assert (impossible["none"], impossible["accepted"], impossible["held"]) == (1, 0, 1)


def test_the_table_of_trust() -> None:
    lines = [json.loads(line) for line in (RECORDS / "trust.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = documented(ROOT / "docs" / "trust.md", "documents")
    assert len(rows) == len(lines) == 12
    for line, row in zip(lines, rows, strict=True):
        shown = {
            "target": f"{line['target']:g}",
            "kind": line["variant"],
            "accepted": f"{line['accepted']:.0%}",
            "right": f"{line['accuracy']:.1%}" if line["none"] < 1 else "",
            "held, other half": f"{line['held']:.1%}",
            "held, all": f"{line['held_of_all']:.1%}",
            "none accepted": f"{line['none']:.0%}",
        }
        assert row["documents"].startswith(f"{line['documents']:,} of ") and shown.items() <= row.items()


SERVING = ROOT / "docs" / "serving.md"
Served = dict[tuple[int, int, int, str], dict[str, Any]]  # by length, runs, clients and way


def check_serving(first: str, decimals: int, *files: str) -> Served:
    """Compare a table of the docs with its records, which are returned."""
    results = [one for file in files for one in recorded(file)["results"]]
    found = {(one["length"], one["runs"], one["clients"], one["way"]): one for one in results}
    rows = documented(SERVING, first)
    assert len(rows) == len([one for one in results if one["way"] == "served"])
    for row in rows:
        place = int(row[first].replace(",", "")), int(row["runs"]), int(row["clients"])
        served = found[*place, "served"]
        waits = " / ".join(f"{served[f'p{share}_ms']:,.0f}" for share in (50, 95, 99))
        assert (row["documents/s"], row["p50 / p95 / p99 ms"]) == (
            f"{served['documents_per_s']:,.{decimals}f}",
            waits,
        )
        for way in list(row)[5:]:
            other = found.get((*place, way))
            assert row[way] == (f"{other['documents_per_s']:,.{decimals}f}" if other else "")
    return found


def test_the_table_of_serving_on_two_cores() -> None:
    found = check_serving("tokens", 2, "serving-cpu-512.json", "serving-cpu-4096.json")
    shares = [one["of_predict"] for (*_, clients, way), one in found.items() if (clients, way) == (64, "served")]
    (many,) = (one for one in recorded("serving-cpu-200.json")["results"] if one["way"] == "served")
    text = " ".join(SERVING.read_text(encoding="utf-8").split())
    assert f"has {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the rate of `predict`" in text
    short, long = (times_of_one(found, 20, "predict", length) for length in (512, 4096))
    assert f"take {short:.2f} times" in text and f"{long:.2f} times with 4,096" in text
    rate = many["documents_per_s"]
    assert f"200 readers answer {rate:.2f} documents/s of 512 tokens, which makes {200 * rate:.0f} answers/s" in text


def test_the_table_of_serving_on_a_gpu() -> None:
    found = check_serving("tokens, H200", 0, *(f"serving-gpu-{part}.json" for part in ("512", "4096", "4096-200")))
    short, more, *long = (
        f"{100 * found[length, runs, 64, 'served']['of_forward']:.0f}" for length in (512, 4096) for runs in (1, 20)
    )
    text = " ".join(SERVING.read_text(encoding="utf-8").split())
    assert f"64 clients get {min(long, key=int)} to {max(long, key=int)} % of the rate of the forward pass" in text
    assert f"they get {short} % for one run and {more} % for 20" in text
    short, long = (times_of_one(found, 20, "forward", length) for length in (512, 4096))
    assert f"takes {short:.2f} times as long as that of one with 512 tokens, and {long:.2f} times with 4,096" in text


def test_the_readme_says_how_fast_predictions_are() -> None:
    results = recorded("predict-gpu.json")["results"]
    rates = {one["way"]: f"{one['documents_per_s']:.0f}" for one in results if one["length"] == 4096}
    (served,) = (
        one["documents_per_s"]
        for one in recorded("serving-gpu-4096.json")["results"]
        if (one["length"], one["runs"], one["clients"], one["way"]) == (4096, 1, 64, "served")
    )
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"answers {rates['predict']} documents a second, where a transformers pipeline" in text
    assert f"encoder answers {rates['pipeline']}." in text and f"answers {served:.0f} requests a second" in text


def times_of_one(found: Served, runs: int, way: str, length: int) -> float:
    """How many times as long so many runs take as one."""
    one, several = (found[length, count, 64, way]["documents_per_s"] for count in (1, runs))
    return one / several


def test_the_tables_of_predicting() -> None:
    page = ROOT / "docs" / "prediction.md"
    files = {
        ("two cores", "mini"): "predict-cpu.json",
        ("H200", "mini"): "predict-gpu-mini.json",
        ("H200", "base"): "predict-gpu.json",
    }
    for row in documented(page, "tokens"):
        decimals = 2 if row["machine"] == "two cores" else 0
        length = int(row["tokens"].replace(",", ""))
        results = recorded(files[row["machine"], row["encoder"]])["results"]
        rates = {one["way"]: f"{one['documents_per_s']:,.{decimals}f}" for one in results if one["length"] == length}
        (predict,) = (one for one in results if (one["length"], one["way"]) == (length, "predict"))
        assert row["`predict` (tokens/s)"] == f"{rates['predict']} ({predict['tokens_per_s']:,.0f})"
        assert [row["pipeline"], row["forward"]] == [rates["pipeline"], rates["forward"]]
        assert row["busy"] == (f"{100 * predict['busy']:.0f} %" if "busy" in predict else "")
    costs = {cost["length"]: cost["hours"] for cost in recorded("predict-gpu.json")["costs"]}
    for row in documented(page, "archive"):
        hours = costs[int(row["tokens"].replace(",", ""))][row["archive"].removesuffix(" documents")]
        assert [row["1 GPU"], row["8 GPUs"], row["64 GPUs"]] == [f"{hours[count]:.3g}" for count in ("1", "8", "64")]


def test_the_table_of_faithfulness() -> None:
    lines = [json.loads(line) for line in (RECORDS / "explain.jsonl").read_text(encoding="utf-8").splitlines()]
    methods = {"readers": "readers", "prefix-propagation+lora": "prefix + LoRA"}
    for row, line in zip(documented(ROOT / "docs" / "explanations.md", "task"), lines, strict=True):
        numbers = [f"{line['comprehensiveness']:.3f}", f"{line['sufficiency']:.3f}", f"{line['cost']:.1f}"]
        assert list(row.values()) == [row["task"], methods[line["method"]], line["way"], *numbers]
        assert row["task"].lower() == line["task"] and line["documents"] == 200


def test_the_readme_has_columns_of_the_table_of_defaults() -> None:
    shorter, whole = documented(README, "documents"), documented(ROOT / "docs" / "defaults.md", "documents")
    assert all(short.items() <= row.items() for short, row in zip(shorter, whole, strict=True))


def test_the_attention_benchmark() -> None:
    results = recorded("attention.json")["results"]
    lines, shorter = (
        [
            line
            for line in page.read_text(encoding="utf-8").splitlines()
            if re.match(r"\| \d+ \u00d7 .* (GiB|above) \|", line)
        ]
        for page in (PERFORMANCE, README)
    )
    assert len(lines) == len(results) / 2 > 0
    without_ratios = {re.sub(r" \| 9 \| 0(?= \|)|(?<=ms) \| [\d.]+\u00d7", "", line) for line in lines}
    assert len(shorter) == 3
    assert without_ratios.issuperset(shorter)
    for line, forward, step in zip(lines, results[::2], results[1::2], strict=True):
        size = f"{forward['batch']} \u00d7 {forward['length']}" + ", recorded" * forward["recorded"]
        case = f"| {size} | {forward['global']} | {forward['dropout']:g} |"
        shown = [
            f"{milliseconds(one, 'hugging_face')} \u2192 {milliseconds(one, 'prefixprop')} ms | "
            f"{one['ratio']:.1f}\u00d7"
            for one in (forward, step)
        ]
        memory = f"{step['hugging_face']['peak_gib']:.1f} \u2192 {step['prefixprop']['peak_gib']:.1f} GiB |"
        if forward["recorded"]:  # whose memory is not counted as it is used
            memory = "as above |"
        assert line == " ".join([case, *(f"{text} |" for text in shown), memory])


@pytest.mark.parametrize(("family", "file"), [("Longformer", "methods.json"), ("ModernBERT", "modernbert.json")])
def test_whatever_is_trained(family: str, file: str) -> None:
    names = {"prefix-propagation": "propagation", "\u2013 and LoRA": "propagation and LoRA"}
    results = recorded(file)["results"]
    found = {(each["method"], each["pass"]): each for each in results}
    rows = documented(PERFORMANCE, "trained")
    assert len(rows) == 7
    for row in rows:
        method = names.get(row["trained"], row["trained"].removeprefix("\u2013 "))
        forward, step = found[method, "forward"], found[method, "step"]
        whose = ("prefixprop",) if step["hugging_face"] is None else ("hugging_face", "prefixprop")
        forwards, steps = (
            " \u2192 ".join(milliseconds(one, who) for who in whose) + " ms" for one in (forward, step)
        )
        memory = " \u2192 ".join(f"{step[who]['peak_gib']:.1f}" for who in whose) + " GiB"
        shown = [row[f"{family}: {what}"] for what in ("forward", "step", "memory")]
        assert shown == [forwards, steps, memory], method


def test_every_step() -> None:
    def shown(timing: dict[str, Any] | None) -> str:
        if timing is None:
            return ""
        value = 1000 * timing["median_s"]
        return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"

    rows = documented(PERFORMANCE, "step of")
    results = recorded("all-steps.json")["results"]
    for row, result in zip(rows, results, strict=True):
        of_gpu = 1000 * result["step"]["median_s"] / result["gpu_ms"]
        timings = [result["hugging_face"], result["step"], result["launched"]]
        assert list(row.values()) == [result["row"], *map(shown, timings), f"{result['gib']:.1f}"]
        assert of_gpu <= 1.1, row


def test_the_run_time_table() -> None:
    results = recorded("runtime.json")["results"]
    rows = {row["method"]: row for row in documented(PERFORMANCE, "method")}
    assert rows.keys() == {result["method"] for result in results}
    for result in results:
        row = rows[result["method"]]
        assert row["time of a batch"] == f"{1000 * result['median_s']:.1f} ms"
        if row["over no PEFT"]:
            low, high = (f"{100 * (result[end] - 1):.1f}" for end in ("low", "high"))
            assert row["over no PEFT"] == f"+{100 * (result['relative'] - 1):.1f} % ({low} to {high})"


def test_the_table_of_methods() -> None:
    names = {
        "prefix-propagation": "propagation",
        "prefix-propagation, gate": "propagation, gate",
        "lora": "LoRA",
        "prefix-propagation+lora": "propagation and LoRA",
        "prefix-tuning+lora": "prefix-tuning and LoRA",
        "fine-tuning": "whole model",
    }
    rows = [row for row in documented(METHODS, "method") if row["method"] != "head-only"]
    assert len(rows) == 8
    for row in rows:
        method = names.get(row["method"], row["method"])
        count = methods.count(method, "longformer", "base")
        assert row["trained parameters"] == f"{count.trainable:,}"
        assert row["of the backbone"] == f"{100 * count.trainable / count.backbone:.4f} %"
