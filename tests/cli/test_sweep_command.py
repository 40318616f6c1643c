"""`prefixprop sweep`: what it prints, what it refuses, and that a killed one can continue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import call, wait_until
from prefixprop.sweep import LocalEngine, read_plan, run_sweep
from prefixprop.train import RunDirectory, train
from prefixprop.train.recovery import list_checkpoints

from tiny_training import comparable, write_plan

RECIPES = Path(__file__).parents[2] / "recipes" / "sweeps"
PLAN = "task: hyperpartisan\n"


def test_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown, _ = call("sweep", RECIPES / "table2.yaml", "--dry-run")
    assert "68 runs in runs/table2, 0 of them finished." in shown and "fine-tuning" in shown
    assert "learning_rate: 0.01 0.05 0.001 0.005 0.0005" in shown
    assert not list(tmp_path.iterdir()), "nothing is written"
    validation, rates = {"folds": 5, "seeds": [1, 2]}, [1e-2, 1e-3, 5e-4]
    plan = write_plan(tmp_path, learning_rate=rates, seed=[1, 2], search="lr", cross_validation=validation)
    shown, _ = call("sweep", plan, "--dry-run")
    assert "learning_rate: 0.01 0.001 0.0005 (each by the mean of 10 runs)" in shown
    assert "32 runs in runs/plan, 0 of them finished." in shown


def test_a_sweep_with_a_failing_run(tmp_path: Path) -> None:
    variants = {"all [of it]": {"method": "fine-tuning", "max_length": [64, 500]}}
    plan = write_plan(tmp_path, seed=[1, 2], num_virtual_tokens=None, search="max_length", variants=variants)
    shown, told = call("sweep", plan, "--runs-dir", tmp_path / "runs", "--processes", 2, status=1)
    for words in ("failed    files-fine-tuning-", "--max-length: 500", "\n1 of the runs failed", "finished  files-"):
        assert words in told
    assert "max_length 64" in shown and "micro_f1" in shown and "files all [of it]" in shown
    summary = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    assert len(summary["failed"]) == 1 and len(summary["cells"][0]["final_runs"]) == 2
    assert "3 runs in" in call("sweep", plan, "--runs-dir", tmp_path / "runs", "--dry-run")[0]


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        ("task: hyperpartisan\nepoch: [3]\n", (), "plan.yaml:2: there is no setting 'epoch'"),
        (None, (), "plan.yaml: No such file or directory"),
        (PLAN, ("--data-dir", "folder"), "--data-dir: expected TASK=FOLDER, got 'folder'"),
        (PLAN, ("--ray-address", "a:1"), "--ray-address would change nothing here: it is for --en"),
        (PLAN, ("--cpus-per-run", 1), "--cpus-per-run would change nothing here"),
        (PLAN, ("--gpus-per-run", 1), "--gpus-per-run would change nothing here"),
        (PLAN, ("--engine", "ray", "--processes", 2), "--processes would change nothing here"),
    ],
)
def test_bad_input(tmp_path: Path, plan: str | None, options: tuple[object, ...], words: str) -> None:
    if plan is not None:
        (tmp_path / "plan.yaml").write_text(plan)
    assert words in call("sweep", tmp_path / "plan.yaml", *options, status=1)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_kill(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefixprop.sweep.run_sweep", lambda *_: os.kill(os.getpid(), number))
    (tmp_path / "plan.yaml").write_text(PLAN)
    _, told = call("sweep", tmp_path / "plan.yaml", status=130)
    assert told.endswith("Stopped. The same command continues from here.\n")


def locked(folder: Path) -> bool:
    """Whether a process still trains in the folder."""
    try:
        with RunDirectory(folder).claimed():
            return False
    except ValueError:
        return True


def test_killed_and_resumed(tmp_path: Path) -> None:
    # A checkpoint after every step, so that there is something to go on from.
    plan = write_plan(tmp_path, seed=[1, 2, 3], epochs=3, checkpoint_every=1)
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "prefixprop", "sweep", str(plan), "--runs-dir", str(runs), "--processes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(len(list_checkpoints(path)) > 1 for path in runs.glob("files-*/checkpoints")), 90)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    begun = [folder for folder in runs.glob("files-*") if RunDirectory(folder).is_run()]
    unfinished = [folder for folder in begun if not RunDirectory(folder).is_finished()]
    assert unfinished and len(begun) < 3, "it was killed in the middle"
    # The runs end with their sweep, or the next one could not have their folders.
    wait_until(lambda: not any(locked(folder) for folder in unfinished))

    resumed = run_sweep(read_plan(plan), runs, LocalEngine(processes=2))
    assert not resumed.failures and len(resumed.outcomes) == 3
    for folder in unfinished:
        never_killed = train(resumed.outcomes[folder.name].settings, tmp_path / f"alone-{folder.name}")
        assert comparable(RunDirectory(folder).read_metrics()) == comparable(never_killed.metrics)


def test_modules_are_imported_by_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "from pathlib import Path\nimport os\nPath(f'imported-{os.getpid()}').touch()\n"
    (tmp_path / "leaving_a_trace.py").write_text(source)
    plan = write_plan(tmp_path, method="head-only", num_virtual_tokens=None)
    call("--import", "leaving_a_trace", "sweep", plan, "-o", "runs")
    assert len(list(tmp_path.glob("imported-*"))) == 2
