"""The numbers of the README and the docs are those that benchmarks recorded in results/bench."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README, TRAINING = ROOT / "README.md", ROOT / "docs" / "training.md"
PERFORMANCE, BENCH = ROOT / "docs" / "performance.md", ROOT / "results" / "bench"

Row = dict[str, str]


def documented(path: Path, first: str, number: int = 0) -> list[Row]:
    """The rows of one of the tables whose first column is called so."""
    lines = [
        [cell.strip("* ") for cell in line.strip("|").split("|")]
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    start = [place for place, cells in enumerate(lines) if cells[0] == first][number]
    rows: list[Row] = []
    for cells in lines[start + 2 :]:
        if len(cells) == 1:
            break
        rows.append(dict(zip(lines[start], cells, strict=True)))
    return rows


def test_the_readme_has_the_table_of_defaults() -> None:
    assert documented(README, "documents") == documented(TRAINING, "documents")


def test_the_attention_benchmark() -> None:
    results = json.loads((BENCH / "attention.json").read_text(encoding="utf-8"))["results"]
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
    results = json.loads((BENCH / file).read_text(encoding="utf-8"))["results"]
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


def milliseconds(result: dict, whose: str) -> str:
    value = 1000 * result[whose]["median_s"]
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def test_where_the_time_goes() -> None:
    files = {
        "Longformer, inference": "runtime.json",
        "Longformer, step": "steps.json",
        "ModernBERT, step": "steps-modernbert.json",
    }
    for column, file in files.items():
        record = json.loads((BENCH / file).read_text(encoding="utf-8"))
        times = record["profile"]["prefix-propagation"]["by_kind"]
        (measured,) = (each["median_s"] for each in record["results"] if each["method"] == "prefix-propagation")
        times |= {"all kernels": sum(times.values()), "measured": 1000 * measured}
        for row in documented(PERFORMANCE, "prefix-propagation, ms"):
            found = times.pop(row["prefix-propagation, ms"])
            assert row[column] == (f"{found:.1f}" if found >= 0.05 else ""), (column, row)
        assert not times


def test_the_run_time_table() -> None:
    results = json.loads((BENCH / "runtime.json").read_text(encoding="utf-8"))["results"]
    rows = {row["method"]: row for row in documented(PERFORMANCE, "method")}
    assert rows.keys() == {result["method"] for result in results}
    for result in results:
        row = rows[result["method"]]
        assert row["time of a batch"] == f"{1000 * result['median_s']:.1f} ms"
        if row["over no PEFT"]:
            low, high = (f"{100 * (result[end] - 1):.1f}" for end in ("low", "high"))
            assert row["over no PEFT"] == f"+{100 * (result['relative'] - 1):.1f} % ({low} to {high})"
