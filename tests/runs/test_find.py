"""Finding, reading and sorting run directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixprop.report.choose.comparisons import compare
from prefixprop.runs.find import find_runs

from tiny_runs import make_results


def test_runs_are_found_at_and_below_the_paths_and_once(tmp_path: Path) -> None:
    make_results(tmp_path / "deep" / "down" / "a", seed=1)
    make_results(tmp_path / "b", seed=2)
    found = find_runs([tmp_path, tmp_path / "b", tmp_path / "deep"])
    assert sorted(run.settings.seed for run in found.runs) == [1, 2]
    assert found.remarks == ()


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder; give run directories"):
        find_runs([tmp_path / "typo"])


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("metrics.json", None, "not finished, it has no metrics.json"),
        ("metrics.json", "{", "metrics.json is truncated or changed"),
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
    assert len(found.remarks) == 1
    assert found.remarks[0].startswith("Left out: ")
    assert told in found.remarks[0]


def test_failures_of_a_sweep_are_told_with_their_reason(tmp_path: Path) -> None:
    for name in ("failed", "mended"):
        make_results(tmp_path / name, seed=len(name))
    (tmp_path / "failed" / "metrics.json").unlink()
    told = {"failed": "no memory\nleft", "never-started": "no data", "mended": "was broken once"}
    (tmp_path / "sweep.json").write_text(json.dumps({"failed": told}))
    found = find_runs([tmp_path])
    assert len(found.runs) == 1
    assert found.remarks == (
        f"Left out: {tmp_path / 'failed'}: the run failed in its sweep: no memory left",
        f"Left out: {tmp_path.resolve() / 'never-started'}: the run failed in its sweep: no data",
    )


@pytest.mark.parametrize("content", ["{", "[]", '{"failed": 3}'])
def test_a_damaged_summary_of_a_sweep_does_no_harm(tmp_path: Path, content: str) -> None:
    make_results(tmp_path / "run")
    (tmp_path / "sweep.json").write_text(content)
    assert find_runs([tmp_path]).remarks == ()


def test_a_repeated_run_counts_once(tmp_path: Path) -> None:
    make_results(tmp_path / "a", seed=1)
    make_results(tmp_path / "b", seed=1, device_batch_size=1, data_dir="elsewhere")
    found = find_runs([tmp_path])
    assert len(found.runs) == 1
    assert f"{tmp_path / 'b'} has the settings and the seed of {tmp_path / 'a'}" in found.remarks[0]


@pytest.mark.parametrize(
    "settings",
    [{"alpha": 0.3}, {"lora_rank": 4}, {"method": "fine-tuning", "num_virtual_tokens": 32}],
    ids=["no kernel", "no LoRA", "no prefix"],
)
def test_what_has_no_effect_makes_no_other_run(settings: dict[str, Any], tmp_path: Path) -> None:
    make_results(tmp_path / "one", **{name: value for name, value in settings.items() if name == "method"})
    make_results(tmp_path / "two", **settings)
    found = find_runs([tmp_path])
    assert len(found.runs) == 1 and "has the settings and the seed of" in found.remarks[0]


def test_tasks_and_other_documents_of_the_same_task_are_kept_apart(tmp_path: Path) -> None:
    make_results(tmp_path / "a", task="hyperpartisan", documents=40)
    make_results(tmp_path / "b", task="hyperpartisan", documents=30)
    make_results(tmp_path / "c", task="wikihop", documents=30)
    titles = [comparison.title for comparison in compare(find_runs([tmp_path]).runs)]
    assert titles == [
        "hyperpartisan (30 dev and 30 test documents, 2 labels)",
        "hyperpartisan (40 dev and 40 test documents, 2 labels)",
        "wikihop",
    ]


def test_only_the_seed_is_averaged_over(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_results(tmp_path / f"plain{seed}", seed=seed)
        make_results(tmp_path / f"kernel{seed}", seed=seed, kernel="rbf")
        make_results(tmp_path / f"short{seed}", seed=seed, num_virtual_tokens=2)
    (comparison,) = compare(find_runs([tmp_path]).runs)
    seeds = {row.method: [run.settings.seed for run in row.best.runs] for row in comparison.contenders}
    assert seeds == {
        "prefix-propagation": [1, 2],
        "prefix-propagation, num virtual tokens 2": [1, 2],
        "prefix-propagation, rbf kernel": [1, 2],
    }


def test_the_searched_value_is_the_best_on_dev_of_those_with_most_seeds(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_results(tmp_path / f"good{seed}", skill=2.0, seed=seed, learning_rate=5e-3)
        make_results(tmp_path / f"bad{seed}", skill=0.1, seed=seed, learning_rate=1e-2)
    make_results(tmp_path / "lucky", skill=9.0, seed=1, learning_rate=1e-3)
    (comparison,) = compare(find_runs([tmp_path]).runs)
    (row,) = comparison.contenders
    assert [trial.settings.learning_rate for trial in row.trials] == [5e-3, 1e-2, 1e-3]


def test_models_in_folders_go_by_the_folder_unless_that_is_ambiguous(tmp_path: Path) -> None:
    make_results(tmp_path / "a", model="/models/longformer")
    make_results(tmp_path / "b", model="/old/base")
    make_results(tmp_path / "c", model="/new/base")
    (comparison,) = compare(find_runs([tmp_path]).runs)
    assert {row.model for row in comparison.contenders} == {"longformer", "/old/base", "/new/base"}
