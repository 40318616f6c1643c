"""`prefixprop report` and `archive`."""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from command_line import call
from prefixprop.cli.report import print_table
from prefixprop.report.table import Table, frame

from tiny_runs import make_results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        make_results(folder / f"propagation{seed}", skill=2.5, seed=seed)
        make_results(folder / f"tuning{seed}", skill=0.5, seed=seed, method="prefix-tuning")
    return folder


@pytest.mark.parametrize("width", [30, 120])
def test_a_terminal_cuts_no_numbers_and_gets_no_control_characters(width: int) -> None:
    cells = frame([{"Method": f"method {name}", "F1, % ↑": "85.0 ± 7.1", "Rank": "\x1b[31m1"} for name in "ab"])
    stream = StringIO()
    print_table(Console(file=stream, width=width), Table("name", "Title", cells))
    shown = stream.getvalue()
    assert shown.count("85.0 ± 7.1") == 2 and "method a" in shown and "…" not in shown
    assert "\x1b" not in shown and r"\x1b[31m1" in shown


@pytest.mark.parametrize("columns", [200, 60])
def test_tables_are_printed(runs: Path, columns: int) -> None:
    shown, told = call("report", runs, columns=columns)
    assert shown.startswith("hyperpartisan\nBest on the test set: prefix-propagation") and "prefix-tuning" in shown
    assert "hyperpartisan, test: methods\n" in shown and "(paper)" not in shown and "…" not in shown
    assert "quality" not in shown and "5 more tables" in told, "details are for files"


@pytest.mark.parametrize(
    ("options", "start", "part"),
    [
        (("markdown", "--paper"), "## hyperpartisan\n", "F1 binary, % (paper)"),
        (("latex",), "% needs", "prefix-propagation"),
        (("html",), "<!DOCTYPE html>", "prefix-propagation"),
    ],
)
def test_formats(runs: Path, options: tuple[str, ...], start: str, part: str) -> None:
    shown, _ = call("report", runs, "--format", *options)
    assert shown.startswith(start) and part in shown


def test_files_are_written_and_what_was_left_out_is_told(runs: Path, tmp_path: Path) -> None:
    (make_results(tmp_path / "run") / "metrics.json").unlink()
    _, told = call("report", runs, tmp_path, "--output", tmp_path / "out")
    assert "Note: Left out: " in told and "has no metrics.json" in told and "open " in told
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "tables" / "1-hyperpartisan-dev.tex").is_file()
    assert (
        "is a file; give a folder" in call("report", runs, "--output", tmp_path / "out" / "report.html", status=1)[1]
    )


def test_bad_input(tmp_path: Path) -> None:
    assert "nowhere: there is no such folder" in call("report", tmp_path / "nowhere", status=1)[1]
    assert f"There is no finished run at or below {tmp_path}" in call("report", tmp_path, status=1)[1]


@pytest.mark.parametrize("package", ["pandas", "jinja2", "matplotlib"])
def test_a_missing_package_is_told(runs: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    told = call("report", runs, status=1)[1]
    assert f"Reports need the package {package}: pip install 'prefixprop[report]'" in told


def test_archive_then_report(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_results(tmp_path / "runs" / f"run{seed}", seed=seed)
    (make_results(tmp_path / "runs" / "unfinished", seed=3) / "metrics.json").unlink()
    shown, told = call("archive", tmp_path / "runs", "--output", tmp_path / "archive")
    assert re.search(r"archive: 2 runs, 0\.\d\d MB\.", shown)
    assert f"Left out: {tmp_path / 'runs' / 'unfinished'}: the run is not finished" in told
    assert "hyperpartisan, test: methods" in call("report", tmp_path / "archive")[0]
    for arguments, problem in (
        (("evaluate", tmp_path / "archive" / "run1"), "this is a run of an archive"),
        (("archive", tmp_path / "runs", "--output", tmp_path / "archive"), "already has an archive"),
        (("archive", tmp_path / "nowhere", "--output", tmp_path / "other"), "nowhere: there is no such folder"),
        (("archive", tmp_path / "runs" / "unfinished", "--output", tmp_path / "other"), "no finished runs"),
    ):
        assert problem in call(*arguments, status=1)[1]
