"""`prefixprop archive`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from prefixprop.cli.app import app

from tiny_runs import make_results


def call(*arguments: object) -> Result:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, list(map(str, arguments)))
    assert "Traceback" not in result.output
    return result


def test_archive_then_report(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_results(tmp_path / "runs" / f"run{seed}", seed=seed)
    (make_results(tmp_path / "runs" / "unfinished", seed=3) / "metrics.json").unlink()
    result = call("archive", tmp_path / "runs", "--output", tmp_path / "archive")
    assert result.exit_code == 0
    assert re.search(r"archive: 2 runs added, 0 already there; 0\.\d\d MB in all\.", result.stdout)
    assert f"Skipped: {tmp_path / 'runs' / 'unfinished'}: the run is not finished" in result.stderr
    again = call("archive", tmp_path / "runs", "--output", tmp_path / "archive")
    assert "0 runs added, 2 already there" in again.stdout
    assert "hyperpartisan, test: methods" in call("report", tmp_path / "archive").stdout
    refused = call("evaluate", tmp_path / "archive" / "run1")
    assert refused.exit_code == 1 and "this is a run of an archive" in refused.stderr


def test_runs_that_became_results_are_counted(tmp_path: Path) -> None:
    for number in (1, 2):
        make_results(tmp_path / "runs" / f"run{number}", learning_rate=number / 100)
    counted = []
    for final in ("run1", "run2"):
        cell = {"runs": {"run1": 0.5, "run2": 0.6}, "final_runs": [final]}
        (tmp_path / "runs" / "sweep.json").write_text(json.dumps({"cells": [cell], "failed": {}}))
        counted.append(call("archive", tmp_path / "runs", "--output", tmp_path / "archive").stdout)
    assert "2 runs added, 0 already there" in counted[0]
    assert "0 runs added, 1 got missing predictions, 1 already there" in counted[1]


def test_bad_input(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for runs, output, told in (
        ("nowhere", "archive", "nowhere: there is no such folder"),
        ("empty", "archive", "There is no finished run at or below"),
        ("empty", "file", "is a file; give a folder"),
        ("empty", "empty/archive", "give a folder outside it"),
    ):
        result = call("archive", tmp_path / runs, "--output", tmp_path / output)
        assert result.exit_code == 1 and told in result.stderr
