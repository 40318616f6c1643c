"""`prefixprop report`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixprop.cli.app import app

from tiny_runs import make_results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        make_results(folder / f"propagation{seed}", skill=2.5, seed=seed)
        make_results(folder / f"tuning{seed}", skill=0.5, seed=seed, method="prefix-tuning")
    return folder


def call(*arguments: object, status: int = 0, columns: int = 200) -> tuple[str, str]:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["report", *map(str, arguments)])
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result.stdout, result.stderr


@pytest.mark.parametrize("columns", [200, 60])
def test_tables_are_printed(runs: Path, columns: int) -> None:
    shown, told = call(runs, columns=columns)
    assert shown.startswith("hyperpartisan, test: methods\nBest on test: prefix-propagation")
    assert "prefix-tuning" in shown
    assert "(paper)" not in shown
    assert "…" not in shown
    assert "quality" not in shown and "5 more tables" in told, "details are for files"


def test_the_papers_values_are_asked_for(runs: Path) -> None:
    shown, _ = call(runs, "--paper", "--format", "markdown")
    assert "F1 binary, % (paper)" in shown
    assert "### The paper's Table 2: main results" in shown


@pytest.mark.parametrize(("name", "start"), [("markdown", "### "), ("latex", "% needs"), ("html", "<!DOCTYPE html>")])
def test_formats(runs: Path, name: str, start: str) -> None:
    shown, _ = call(runs, "--format", name)
    assert shown.startswith(start)
    assert "prefix-propagation" in shown


def test_files_are_written(runs: Path, tmp_path: Path) -> None:
    _, told = call(runs, "--output", tmp_path / "out")
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "tables" / "1-hyperpartisan-dev.tex").is_file()
    assert "open " in told


def test_what_was_left_out_is_told(runs: Path, tmp_path: Path) -> None:
    (make_results(tmp_path / "run") / "metrics.json").unlink()
    shown, told = call(runs, tmp_path)
    assert "prefix-tuning" in shown
    assert "Note: Left out: " in told
    assert "has no metrics.json" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        ([".", "--format", "word"], "--format 'word' is unknown; choose one of terminal, markdown, latex, html"),
        (["."], "There is no finished run at or below ."),
    ],
)
def test_bad_input(arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in call(*arguments, status=1)[1]


def test_a_file_is_no_folder_for_the_output(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file; give a folder" in call(runs, "--output", tmp_path / "file", status=1)[1]
