"""Finding, reading and sorting run directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixprop.runs.find import find_runs

from tiny_runs import make_results


def test_runs_are_found_at_and_below_the_paths_and_once(tmp_path: Path) -> None:
    make_results(tmp_path / "deep" / "down" / "a", seed=1)
    make_results(tmp_path / "b", seed=2)
    found = find_runs([tmp_path, tmp_path / "b", tmp_path / "deep"])
    assert sorted(run.settings.seed for run in found.runs) == [1, 2]
    assert found.remarks == ()
    with pytest.raises(FileNotFoundError, match="no such folder; give run directories"):
        find_runs([tmp_path / "typo"])


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("metrics.json", None, "not finished, it has no metrics.json"),
        ("config.yaml", "epochs: many", "config.yaml:1: epochs"),
    ],
)
def test_damaged_and_unfinished_runs_are_told_and_not_fatal(
    tmp_path: Path, name: str, content: str | None, told: str
) -> None:
    damaged = make_results(tmp_path / "damaged", seed=1)
    make_results(tmp_path / "whole", seed=2)
    if content is None:
        (damaged / name).unlink()
    else:
        (damaged / name).write_text(content)
    found = find_runs([tmp_path])
    assert [run.settings.seed for run in found.runs] == [2]
    (remark,) = found.remarks
    assert remark.startswith("Left out: ") and told in remark


def test_failures_of_a_sweep_are_told_with_their_reason(tmp_path: Path) -> None:
    for name in ("failed", "fixed"):
        make_results(tmp_path / name, seed=len(name))
    (tmp_path / "failed" / "metrics.json").unlink()
    told = {"failed": "no memory\nleft", "never-started": "no data", "fixed": "was broken once"}
    (tmp_path / "sweep.json").write_text(json.dumps({"failed": told}))
    found = find_runs([tmp_path])
    assert len(found.runs) == 1
    assert found.remarks == (
        f"Left out: {tmp_path / 'failed'}: the run failed in its sweep: no memory left",
        f"Left out: {tmp_path.resolve() / 'never-started'}: the run failed in its sweep: no data",
    )


def cell(runs: list[str], final: list[str]) -> dict[str, list[str]]:
    return {"runs": runs, "final_runs": final}


@pytest.mark.parametrize(
    ("notes", "search_only"),
    [
        ({"cells": [cell(["a", "b"], [])]}, []),  # not chosen yet
        ({"cells": [cell(["a", "b"], ["b"])]}, ["a"]),
        ({"cells": [cell(["a", "b"], ["b"]), cell(["a"], ["a"])]}, []),  # one of two cells chose it
        ([], []),
        ("{", []),
        (None, []),
    ],
)
def test_the_notes_of_a_sweep_say_what_is_a_result(tmp_path: Path, notes: Any, search_only: list[str]) -> None:
    for seed, name in enumerate("ab"):
        make_results(tmp_path / name, seed=seed)
    if notes is not None:
        (tmp_path / "sweep.json").write_text(notes if notes == "{" else json.dumps(notes))
    found = find_runs([tmp_path])
    assert [run.path.name for run in found.runs if run.search_only] == search_only
    assert len(found.runs) == 2 and not found.remarks


@pytest.mark.parametrize(
    "settings",
    [
        {"device_batch_size": 1, "data_dir": "elsewhere"},
        {"alpha": 0.3},  # no kernel
        {"lora_rank": 4},  # no LoRA
        {"method": "fine-tuning", "num_virtual_tokens": 32},  # no prefix
    ],
)
def test_a_run_that_differs_in_nothing_that_has_an_effect_counts_once(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    make_results(tmp_path / "one", **{name: value for name, value in settings.items() if name == "method"})
    make_results(tmp_path / "two", **settings)
    found = find_runs([tmp_path])
    assert len(found.runs) == 1
    assert f"{tmp_path / 'two'} has the settings and the seed of {tmp_path / 'one'}" in found.remarks[0]
