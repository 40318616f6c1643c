"""The line on runs that were not made alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefixprop.report.tables.circumstances import differing_circumstances
from prefixprop.runs.run import Run
from prefixprop.settings.run_settings import RunSettings


def run(**environment: Any) -> Run:
    return Run(Path("run"), RunSettings(), {}, environment)


def made(commit: str = "a" * 40, changed: bool = False, device: str = "cpu", torch: str = "2.11.0") -> Run:
    git = {"commit": commit, "changed": changed}
    return run(git=git, device=device, python="3.12", packages={"torch": torch, "prefixprop": None})


def test_runs_made_alike_have_no_line() -> None:
    assert differing_circumstances([made(), made()]) == ""
    assert differing_circumstances([run(), run(git=None, packages="none")]) == "", "nothing is known of either"


def test_what_differs_is_counted() -> None:
    runs = [made(), made("b" * 40, changed=True), made(device="NVIDIA H200"), made(torch="2.12.0")]
    assert differing_circumstances(runs) == (
        "Not all runs were made alike: commit (aaaaaaa: 3, bbbbbbb: 1); changed files (no: 3, yes: 1); "
        "device (cpu: 3, NVIDIA H200: 1); torch (2.11.0: 3, 2.12.0: 1)."
    )


def test_different_changes_of_one_commit_differ() -> None:
    runs = [run(git={"commit": "a", "changed": True, "difference": name}) for name in ("x1", "x2")]
    assert "changed files (x1: 1, x2: 1)" in differing_circumstances(runs)


def test_a_run_of_which_less_is_known() -> None:
    assert "commit (aaaaaaa: 1, unknown: 1)" in differing_circumstances([made(), run(device="cpu")])
