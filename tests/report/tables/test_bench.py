"""Tables of benchmarks, from the files that `prefixprop bench` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixprop.benchmarking.attention import AttentionCase, AttentionResult
from prefixprop.benchmarking.records import record_of_attention, record_of_run, record_of_runtime
from prefixprop.benchmarking.runtime import RuntimeResult
from prefixprop.benchmarking.timing import Timing
from prefixprop.report import make_report
from prefixprop.report.tables.bench import bench_tables
from prefixprop.report.tables.table import Table

FAST, SLOW = Timing((0.1, 0.1, 0.1), 2.0), Timing((0.4, 0.4, 0.4), 4.0)
NO_MEMORY = Timing((), None)


def written(path: Path, record: dict[str, Any]) -> Path:
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    results = [
        RuntimeResult("no PEFT", FAST, 1.0, 1.0, 1.0),
        RuntimeResult("prefix-tuning", FAST, 1.03, 1.02, 1.04),
        RuntimeResult("prefix-propagation", NO_MEMORY, None, None, None),
    ]
    facts = {"batch": 8, "length": 4096, "prefix": 8, "pass": "inference", "results": record_of_runtime(results)}
    return written(tmp_path / "runtime.json", record_of_run("runtime", "longformer", "mini", "auto", 3) | facts)


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    case = AttentionCase(8, 4096, 9, 0.1)
    results = [AttentionResult(case, "forward", FAST, SLOW), AttentionResult(case, "step", FAST, None)]
    record = record_of_run("attention", "longformer", "mini", "auto", 3) | {"results": record_of_attention(results)}
    return written(tmp_path / "attention.json", record)


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_run_time_stands_beside_the_papers(runtime: Path) -> None:
    (table,) = bench_tables([runtime], with_paper=True)
    assert texts(table) == [
        ["no PEFT", "100.0", "+0.0", "+0.0 to +0.0", "2.0", "+0.0"],
        ["prefix-tuning", "100.0", "+3.0", "+2.0 to +4.0", "2.0", "+2.1"],
        ["prefix-propagation", "out of memory", "—", "—", "—", "+0.2"],
    ]
    assert [column.from_paper for column in table.columns] == [False] * 5 + [True]
    assert "8 × 4,096 tokens" in table.notes[0]
    assert "was not measured here" in table.notes[1]
    assert not any(column.from_paper for column in bench_tables([runtime])[0].columns)


def test_the_papers_values_are_of_inference_alone(runtime: Path) -> None:
    record = json.loads(runtime.read_text()) | {"pass": "step"}
    (table,) = bench_tables([written(runtime, record)], with_paper=True)
    assert "training step" in table.title
    assert not any(column.from_paper for column in table.columns)


def test_attention(attention: Path) -> None:
    (table,) = bench_tables([attention])
    assert texts(table) == [
        ["8 × 4,096", "9", "0.1", "forward", "400.0", "100.0", "4.0", "4.0", "2.0"],
        ["8 × 4,096", "9", "0.1", "step", "—", "100.0", "—", "—", "2.0"],
    ]


def test_attention_says_what_was_trained(tmp_path: Path) -> None:
    cases = [AttentionCase(8, 512, 0, 0.0, method) for method in ("whole model", "LoRA")]
    results = record_of_attention([AttentionResult(case, "step", FAST, SLOW) for case in cases])
    record = record_of_run("attention", "modernbert", "mini", "auto", 3) | {"results": results}
    (table,) = bench_tables([written(tmp_path / "attention.json", record)])
    assert [row[3] for row in texts(table)] == ["whole model", "LoRA"]
    assert table.title.startswith("Attention of modernbert: ")


def test_benchmarks_need_no_runs(runtime: Path, attention: Path) -> None:
    report = make_report(benchmarks=[runtime, attention])
    assert [table.name for table in report.measured] == ["bench-1-runtime", "bench-2-attention"]
    assert report.summary == "2 benchmarks."
    assert "Run time, inference" in report.page()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "broken JSON: Expecting property name enclosed in double quotes: line 1"),
        ("[]", "its parts are of other kinds"),
        ("{}", "it lacks 'benchmark'"),
        ('{"results": [], "benchmark": "sorting"}', "there is no benchmark 'sorting'"),
        ('{"results": [], "benchmark": "runtime"}', "it lacks 'pass'"),
        ('{"results": [3], "benchmark": "attention"}', "its parts are of other kinds"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"file\.json is not what a benchmark wrote") as error:
        bench_tables([path])
    assert problem in str(error.value)
    assert "Write it again with `prefixprop bench" in str(error.value)


def test_nothing_to_report_on() -> None:
    with pytest.raises(ValueError, match="give run directories, or files of benchmarks with --bench"):
        make_report()
