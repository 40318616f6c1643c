"""`prefixprop archive`."""

from __future__ import annotations

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
    assert re.search(r"archive: 2 runs, 0\.\d\d MB\.", result.stdout)
    assert f"Left out: {tmp_path / 'runs' / 'unfinished'}: the run is not finished" in result.stderr
    assert "hyperpartisan, test: methods" in call("report", tmp_path / "archive").stdout
    for arguments, told in (
        (("evaluate", tmp_path / "archive" / "run1"), "this is a run of an archive"),
        (("archive", tmp_path / "runs", "--output", tmp_path / "archive"), "already has an archive"),
        (("archive", tmp_path / "nowhere", "--output", tmp_path / "other"), "nowhere: there is no such folder"),
        (("archive", tmp_path / "runs" / "unfinished", "--output", tmp_path / "other"), "no finished runs"),
    ):
        refused = call(*arguments)
        assert refused.exit_code == 1 and told in refused.stderr
