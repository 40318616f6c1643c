"""Runs that are killed, and checkpoints that cannot be trusted: resumed, they end as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from prefixprop.runs.directory import LOCK
from prefixprop.train import RunDirectory, RunResult, RunSettings, train
from prefixprop.train.recovery import list_checkpoints

from killed_runs import KillAt, assert_same_end, killed
from tiny_training import Notes, tiny_settings


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documents and the model of all runs are."""
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="module")
def whole(documents: Path) -> Callable[[RunSettings], RunResult]:
    """Gives the run of settings that was never killed, each trained once."""
    runs: dict[RunSettings, RunResult] = {}

    def run(settings: RunSettings) -> RunResult:
        if settings not in runs:
            runs[settings] = train(settings, documents / f"whole-{len(runs)}")
        return runs[settings]

    return run


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (8, {"checkpoint_every": 1, "device_batch_size": 2}),  # resumed in the middle of an epoch
        (5, {"method": "fine-tuning", "learning_rate": 1e-3}),
        (5, {"method": "prefix-propagation+lora", "gate": True, "checkpoint_every": 2}),
        (5, {"method": "prefix-reading", "reparameterize": True, "checkpoint_every": 2}),
        (5, {"kernel": "rbf", "alpha_mode": "query", "reparameterize": True, "keep": "last", "checkpoint_every": 2}),
    ],
)
def test_killed_in_training(documents: Path, whole: Any, tmp_path: Path, step: int, changes: dict[str, Any]) -> None:
    settings = tiny_settings(documents, **changes)
    killed(lambda: train(settings, tmp_path / "killed", callbacks=[KillAt(step)]))
    assert not RunDirectory(tmp_path / "killed").is_finished()
    assert_same_end(train(settings, tmp_path / "killed", resume=True), whole(settings))


class KillAtTheEndOfAnEpoch(TrainerCallback):
    """kill -9 after the first epoch's last step, before its evaluation."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_killed_before_an_epoch_is_judged(documents: Path, whole: Any, tmp_path: Path) -> None:
    settings = tiny_settings(documents, checkpoint_every=3)
    killed(lambda: train(settings, tmp_path / "killed", callbacks=[KillAtTheEndOfAnEpoch()]))
    assert_same_end(train(settings, tmp_path / "killed", resume=True), whole(settings))


def test_killed_while_a_checkpoint_is_written(
    documents: Path, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, written = tiny_settings(documents), Path.write_bytes

    def write_half(path: Path, data: bytes) -> int:
        if path.name == "manifest.json" and len(list_checkpoints(tmp_path / "killed" / "checkpoints")) == 1:
            written(path, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return written(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", write_half)
        killed(lambda: train(settings, tmp_path / "killed"))
    assert len(list_checkpoints(tmp_path / "killed" / "checkpoints")) == 1
    assert_same_end(train(settings, tmp_path / "killed", resume=True), whole(settings))


EARLY_END = {"method": "head-only", "learning_rate": 1e-9, "epochs": 9, "early_stopping": 2}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("write_predictions", {"keep": "last"}),
        ("write_predictions", EARLY_END),  # an early end is not gone beyond
        ("model_card", {}),
        ("clear_leftovers", {}),
    ],
)
def test_killed_while_results_are_written(
    documents: Path, whole: Any, tmp_path: Path, name: str, changes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny_settings(documents, **changes)
    with monkeypatch.context() as patched:
        patched.setattr(f"prefixprop.train.run.{name}", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        killed(lambda: train(settings, tmp_path / "killed"))
    assert_same_end(train(settings, tmp_path / "killed", resume=True), whole(settings))


def test_a_run_that_nothing_stops(documents: Path, tmp_path: Path) -> None:
    """Resumed where there is nothing, it starts from the beginning; finished, it is returned as it is."""
    settings, run_dir = tiny_settings(documents, epochs=1, keep_checkpoints=True), tmp_path / "run"
    first = train(settings, run_dir, resume=True)
    assert first.metrics["status"] == "finished"
    endings = {path.suffix for path in run_dir.rglob("*") if path.is_file() and path.name != LOCK}
    assert endings == {".safetensors", ".json", ".jsonl", ".yaml", ".md"}, "nothing is a pickle"
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    assert train(settings, run_dir, resume=True).metrics == first.metrics
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before


@pytest.fixture(scope="module")
def killed_once(documents: Path) -> Path:
    """A run that was killed in its third epoch."""
    folder = documents / "killed-in-the-third-epoch"
    killed(lambda: train(tiny_settings(documents), folder, callbacks=[KillAt(8)]))
    return folder


@pytest.fixture
def killed_run(killed_once: Path, tmp_path: Path) -> Path:
    """A copy of it with its two checkpoints."""
    folder = Path(shutil.copytree(killed_once, tmp_path / "killed"))
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["step-00000003", "step-00000006"]
    return folder


def test_resumption_repeats_no_steps_and_keeps_what_is_left_open(
    documents: Path, whole: Any, killed_run: Path
) -> None:
    steps: list[int] = []

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps.append(state.global_step)

    left_open = tiny_settings(documents, epochs=None)
    for _ in ("unfinished", "finished"):
        resumed = train(left_open, killed_run, resume=True, callbacks=[Steps()])
        assert_same_end(resumed, whole(tiny_settings(documents)))
    assert steps == [7, 8, 9]


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(
    documents: Path, whole: Any, killed_run: Path
) -> None:
    file = killed_run / "checkpoints" / "step-00000006" / "tensors.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    notes: list[str] = []
    resumed = train(tiny_settings(documents), killed_run, resume=True, progress=Notes(notes))
    (note,) = [note for note in notes if "step-00000006" in note]
    assert file.name in note and "goes on from step-00000003 instead" in note
    assert_same_end(resumed, whole(tiny_settings(documents)))


def test_damaged_ones_do_not_push_out_good_ones(documents: Path, whole: Any, killed_run: Path) -> None:
    settings, folder = tiny_settings(documents), killed_run / "checkpoints"
    for damaged in list_checkpoints(folder):
        (damaged / "tensors.safetensors").write_bytes(b"")
    told = folder.parent / "told"
    every_step = replace(settings, checkpoint_every=1)

    class Written(Notes):
        def note(self, text: str) -> None:
            with told.open("a") as file:
                file.write(text + "\n")

    killed(lambda: train(every_step, killed_run, resume=True, callbacks=[KillAt(3)], progress=Written()))
    assert told.read_text().count("starts from the beginning") == 2, "there was no good one"
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000001", "step-00000002"]
    notes: list[str] = []
    assert_same_end(train(settings, killed_run, resume=True, progress=Notes(notes)), whole(settings))
    assert not any("step-" in note for note in notes)


def test_other_settings_cannot_be_resumed(documents: Path, killed_run: Path) -> None:
    settings = tiny_settings(documents)
    with pytest.raises(ValueError, match=r"other settings: --seed \(was 1, now 2\)\."):
        train(replace(settings, seed=2), killed_run, resume=True)
    smaller = replace(settings, device_batch_size=2, gradient_checkpointing=True)
    assert train(smaller, killed_run, resume=True).metrics["status"] == "finished"


@pytest.mark.parametrize("finished", [False, True])
def test_other_documents_cannot_be_resumed(tmp_path: Path, finished: bool) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    train(settings, run_dir)
    if not finished:
        (run_dir / "metrics.json").unlink()
    file = Path(settings.train_files[0])
    before, labels = file.read_text(), (run_dir / "labels.json").read_bytes()
    file.write_text(before + '{"id": "more", "text": "w5 w6", "label": "other"}\n')
    with pytest.raises(ValueError, match="run was started with other documents than there are now"):
        train(settings, run_dir, resume=True)
    assert (run_dir / "labels.json").read_bytes() == labels
    file.write_text(before)
    assert train(settings, run_dir, resume=True).metrics["status"] == "finished"
