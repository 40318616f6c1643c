"""`prefixprop archive`."""

from __future__ import annotations

import re
from pathlib import Path

from command_line import call

from tiny_runs import make_results


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
