"""What goes wrong while a run trains, and what is said about it."""

from __future__ import annotations

import errno
import re
import weakref
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import Trainer

from prefixprop.runs.start import start
from prefixprop.train import RunDirectory, TrainingError, checkpoints, plan, train
from prefixprop.train.checkpoints import list_checkpoints

from tiny_training import Notes, comparable, tiny_settings

# The package has a function of the same name.
TRAIN_MODULE = import_module("prefixprop.train.run")


def full_disk(path: Path, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_a_full_disk_at_a_checkpoint_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, run_dir = tiny_settings(tmp_path), tmp_path / "run"
    written = checkpoints.save_file

    def full_after_the_first(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if list_checkpoints(run_dir / "checkpoints"):
            path.write_bytes(b"half")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        written(tensors, path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save_file", full_after_the_first)
        with pytest.raises(TrainingError, match=r"checkpoint of step 6 cannot be written .*No space left.*--resume"):
            train(settings, run_dir)
    assert [path.name for path in list_checkpoints(run_dir / "checkpoints")] == ["step-00000003"]
    resumed = train(settings, run_dir, resume=True)
    assert comparable(resumed.metrics) == comparable(train(settings, tmp_path / "whole").metrics)


def test_a_full_disk_at_the_results_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, run_dir = tiny_settings(tmp_path), tmp_path / "run"
    written = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        # Files are written under temporary names that keep the ending; the history and the rest come earlier.
        late = (run_dir / "checkpoints" / "step-00000009").is_dir()
        return full_disk(path, data) if late and path.suffix == ".md" else written(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(TrainingError, match=r"results cannot be written .*No space left.*--resume"):
            train(settings, run_dir)
    assert not (run_dir / "metrics.json").exists()
    assert train(settings, run_dir, resume=True).metrics["status"] == "finished"


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, method="fine-tuning", learning_rate=100.0, weight_decay=1e6)
    with pytest.raises(
        TrainingError, match=r"The loss is (nan|inf) at step \d+ of 9, at a learning rate of .*--learning-rate 100"
    ):
        train(settings, tmp_path / "run")


GPU_IS_FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
MEMORY_IS_FULL = RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("error", [GPU_IS_FULL, MEMORY_IS_FULL])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "lora", "lora_rank": 60_000}, "choose a smaller --model or a --lora-rank below 60000."),
        ({"num_virtual_tokens": 100}, "choose a smaller --model or a --num-virtual-tokens below 100."),
        ({"method": "fine-tuning"}, "choose a smaller --model."),
    ],
)
def test_a_model_that_does_not_fit_names_what_to_lower(
    tmp_path: Path, error: RuntimeError, changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: Any) -> None:
        raise error

    monkeypatch.setattr(TRAIN_MODULE, "build_trainable", build)
    with pytest.raises(TrainingError, match=re.escape(f"used up before training starts: {words}")):
        plan(tiny_settings(tmp_path, **changes))


def test_out_of_memory_goes_on_with_fewer_documents_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, run_dir = tiny_settings(tmp_path, dropout=0.0, prefix_dropout=0.0), tmp_path / "run"
    expected = train(settings, tmp_path / "roomy").metrics
    step = Trainer.training_step

    models: list[weakref.ref[Any]] = []

    def training_step(self: Trainer, model: Any, inputs: dict[str, torch.Tensor], *others: Any) -> torch.Tensor:
        if not models or models[-1]() is not model:
            assert all(earlier() is None for earlier in models), "the memory of an earlier attempt is free"
            models.append(weakref.ref(model))
        if self.state.global_step >= 4 and len(inputs["input_ids"]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step(self, model, inputs, *others)

    told: list[str] = []
    monkeypatch.setattr(Trainer, "training_step", training_step)
    metrics = train(settings, run_dir, progress=Notes(told)).metrics
    assert [note for note in told if "used up" in note] == [
        f"the device's memory is used up; the run goes on with --device-batch-size {count}" for count in (2, 1)
    ]
    assert metrics["test"]["nll"] == pytest.approx(expected["test"]["nll"], abs=1e-5) and len(models) == 3
    assert RunDirectory(run_dir).read_settings().device_batch_size == 1


def test_out_of_memory_names_what_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, run_dir = tiny_settings(tmp_path, device_batch_size=1), tmp_path / "run"
    step = Trainer.training_step

    def training_step(self: Trainer, *arguments: Any) -> torch.Tensor:
        if self.state.global_step == 4:
            raise MEMORY_IS_FULL
        return step(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "training_step", training_step)
        with pytest.raises(TrainingError) as raised:
            train(settings, run_dir)
    for words in ("--gradient-checkpointing", "--max-length below 128", "--resume"):
        assert words in str(raised.value)
    lowered = tiny_settings(tmp_path, device_batch_size=1, gradient_checkpointing=True)
    assert train(lowered, run_dir, resume=True).metrics["status"] == "finished"


def test_other_runtime_errors_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def training_step(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Trainer, "training_step", training_step)
    with pytest.raises(RuntimeError, match="a bug"):
        train(tiny_settings(tmp_path), tmp_path / "run")


def test_an_existing_run_is_refused(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    first = train(settings, run_dir)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="has a finished run: continue it with --resume, remove it with --overwrite"):
        train(settings, run_dir)
    with pytest.raises(ValueError, match="one of the two"):
        train(settings, run_dir, resume=True, overwrite=True)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before
    (run_dir / "adapter" / "left-over").write_text("x")
    again = train(settings, run_dir, overwrite=True)
    assert comparable(again.metrics) == comparable(first.metrics)
    assert not (run_dir / "adapter" / "left-over").exists()


@pytest.mark.parametrize("failing_step", [0, 1])
def test_an_overwritten_run_is_kept_until_the_new_one_has_trained_a_step(
    failing_step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    train(settings, run_dir)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    step = Trainer.training_step

    def training_step(self: Trainer, *arguments: Any) -> torch.Tensor:
        if self.state.global_step == failing_step:
            raise KeyboardInterrupt
        return step(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "training_step", training_step)
        with pytest.raises(KeyboardInterrupt):
            train(replace(settings, seed=2), run_dir, overwrite=True)
    after = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    assert (after == before) == (failing_step == 0)
    assert RunDirectory(run_dir).is_finished() == (failing_step == 0)


def test_an_overwriting_run_that_needs_a_smaller_step_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    train(settings, run_dir)
    step = Trainer.training_step

    def training_step(self: Trainer, model: Any, inputs: dict[str, torch.Tensor], *others: Any) -> torch.Tensor:
        if len(inputs["input_ids"]) > 2:
            raise GPU_IS_FULL
        return step(self, model, inputs, *others)

    monkeypatch.setattr(Trainer, "training_step", training_step)
    train(replace(settings, seed=2), run_dir, overwrite=True, progress=Notes())
    found = RunDirectory(run_dir).read_settings()
    assert found.seed == 2 and found.device_batch_size == 2


def test_a_folder_of_someone_else_is_never_removed(tmp_path: Path) -> None:
    precious = tmp_path / "run" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("x")
    for resume, overwrite in ((False, False), (True, False), (False, True)):
        with pytest.raises(ValueError, match="not empty and not a run directory"):
            train(tiny_settings(tmp_path), tmp_path / "run", resume, overwrite)
    assert precious.read_text() == "x"
    with pytest.raises(ValueError, match="is a file; choose another --run-dir"):
        train(tiny_settings(tmp_path), precious, overwrite=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_recipe_makes_no_run_directory(tmp_path: Path, resume: bool) -> None:
    """The folder of a project may have a `config.yaml`, a recipe or anything else."""
    recipe = tmp_path / "project" / "config.yaml"
    recipe.parent.mkdir()
    for content in ("method: head-only\nepochs: 1\n", "defaults: [hydra]\n"):
        recipe.write_text(content)
        with pytest.raises(ValueError, match="not empty and not a run directory"):
            train(tiny_settings(tmp_path), recipe.parent, resume, overwrite=not resume)
        assert recipe.read_text() == content and len(list(recipe.parent.iterdir())) == 1


def test_what_no_run_has_written_is_never_removed(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    train(settings, run_dir)
    (run_dir / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"run has a run, and notes\.txt, which no run has written"):
        train(settings, run_dir, overwrite=True)
    assert (run_dir / "notes.txt").read_text() == "x" and (run_dir / "metrics.json").is_file()
    train(settings, run_dir, resume=True)


def test_a_run_killed_in_its_first_instant_can_be_overwritten(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    start(RunDirectory(run_dir), settings, overwrite=False)
    assert [entry.name for entry in run_dir.iterdir()] == ["config.yaml"]
    assert train(settings, run_dir, overwrite=True).metrics["status"] == "finished"


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    run_dir, settings = tmp_path / "run", tiny_settings(tmp_path, epochs=1)
    with RunDirectory(run_dir).claimed(), pytest.raises(ValueError, match="Another process is training"):
        train(settings, run_dir)
    assert train(settings, run_dir).metrics["status"] == "finished"
