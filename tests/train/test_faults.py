"""What goes wrong while a run trains, and what is said about it."""

from __future__ import annotations

import contextlib
import errno
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from safetensors import SafetensorError
from transformers import Trainer

from prefixprop.runs.directory import start
from prefixprop.train import RunDirectory, RunSettings, TrainingError, plan, recovery, train
from prefixprop.train.recovery import list_checkpoints

from tiny_training import Notes, comparable, tiny_settings

# The package has a function of the same name.
PLAN_MODULE = import_module("prefixprop.train.plan")


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_full_disk_at_a_checkpoint_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, run_dir = tiny_settings(tmp_path), tmp_path / "run"
    written = recovery.save_file

    def full_after_the_first(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if list_checkpoints(run_dir / "checkpoints"):
            path.write_bytes(b"half")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        written(tensors, path)

    with monkeypatch.context() as patched:
        patched.setattr(recovery, "save_file", full_after_the_first)
        with pytest.raises(TrainingError, match=r"checkpoint of step 6 cannot be written .*No space left.*--resume"):
            train(settings, run_dir)
    assert [path.name for path in list_checkpoints(run_dir / "checkpoints")] == ["step-00000003"]
    resumed = train(settings, run_dir, resume=True)
    assert comparable(resumed.metrics) == comparable(train(settings, tmp_path / "whole").metrics)


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("prefixprop.train.run.model_card", OSError(errno.ENOSPC, "No space left on device", "x"), "The results"),
        # The tokenizers library raises a bare Exception.
        ("transformers.PreTrainedTokenizerBase.save_pretrained", Exception("No space left on device"), "tokenizer"),
    ],
)
def test_a_full_disk_at_the_results_loses_nothing(
    tmp_path: Path, name: str, error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(name, MagicMock(side_effect=error))
        with pytest.raises(TrainingError, match=rf"{told} cannot be written .*No space left.*--resume"):
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

    monkeypatch.setattr(PLAN_MODULE, "build_trainable", build)
    with pytest.raises(TrainingError, match=re.escape(f"out of memory before training starts: {words}")):
        plan(tiny_settings(tmp_path, **changes))


@contextlib.contextmanager
def failing_steps(error: BaseException, fails: Callable[[int, int], bool]) -> Iterator[None]:
    """Steps raise the error if `fails` says so of the number of the step and of its documents at once."""
    step = Trainer.training_step

    models: list[weakref.ref[Any]] = []

    def training_step(self: Trainer, model: Any, inputs: dict[str, torch.Tensor], *others: Any) -> torch.Tensor:
        if not models or models[-1]() is not model:
            assert all(earlier() is None for earlier in models), "the memory of an earlier attempt is free"
            models.append(weakref.ref(model))
        if fails(self.state.global_step, len(inputs["input_ids"])):
            raise type(error)(*error.args)  # a new one, since an error holds the frames that it went through
        return step(self, model, inputs, *others)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "training_step", training_step)
        yield


def test_out_of_memory_goes_on_with_fewer_documents_at_once(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, dropout=0.0, prefix_dropout=0.0), tmp_path / "run"
    expected = train(settings, tmp_path / "roomy").metrics
    train(replace(settings, seed=2, epochs=1), run_dir)
    told: list[str] = []
    with failing_steps(GPU_IS_FULL, lambda step, documents: step >= 4 and documents > 1):
        metrics = train(settings, run_dir, overwrite=True, progress=Notes(told)).metrics
    assert [note for note in told if "out of memory" in note] == [
        f"the device is out of memory; the run continues with --device-batch-size {count}" for count in (2, 1)
    ]
    assert metrics["test"]["nll"] == pytest.approx(expected["test"]["nll"], abs=1e-5)
    found = RunDirectory(run_dir).read_settings()
    assert found.seed == 1 and found.device_batch_size == 1


def test_out_of_memory_names_what_to_lower(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, device_batch_size=1), tmp_path / "run"
    with failing_steps(MEMORY_IS_FULL, lambda step, _: step == 4), pytest.raises(TrainingError) as raised:
        train(settings, run_dir)
    for words in ("--gradient-checkpointing", "--max-length below 128", "--resume"):
        assert words in str(raised.value)
    lowered = replace(settings, gradient_checkpointing=True)
    assert train(lowered, run_dir, resume=True).metrics["status"] == "finished"


def test_other_runtime_errors_are_not_hidden(tmp_path: Path) -> None:
    with failing_steps(RuntimeError("a bug"), lambda *_: True), pytest.raises(RuntimeError, match="a bug"):
        train(tiny_settings(tmp_path), tmp_path / "run")


@pytest.mark.parametrize("failing_step", [0, 1])
def test_an_overwritten_run_is_kept_until_the_new_one_has_trained_a_step(failing_step: int, tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    train(settings, run_dir)
    before = files_of(run_dir)
    failing = failing_steps(KeyboardInterrupt(), lambda step, _: step == failing_step)
    with failing, pytest.raises(KeyboardInterrupt):
        train(replace(settings, seed=2), run_dir, overwrite=True)
    assert (files_of(run_dir) == before) == (failing_step == 0)
    assert RunDirectory(run_dir).is_finished() == (failing_step == 0)


@pytest.mark.parametrize("method", ["tfidf", "readers"])
def test_an_overwritten_run_does_not_come_back(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, train_files = tmp_path / "run", tiny_settings(tmp_path).train_files
    first = RunSettings(train_files=train_files, model=str(tmp_path / "longformer"), method=method)
    second = replace(first, seed=2)
    train(first, run_dir)
    with monkeypatch.context() as patched, pytest.raises(TrainingError, match="continue with --resume"):
        full = MagicMock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        patched.setattr("prefixprop.train.run.write_predictions", full)
        train(second, run_dir, overwrite=True)
    train(second, run_dir, resume=True)
    before = files_of(run_dir)
    with pytest.raises(ValueError, match="has a finished run"):
        train(first, run_dir)
    assert files_of(run_dir) == before and RunDirectory(run_dir).read_settings().seed == 2


def test_an_existing_run_is_refused(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    first = train(settings, run_dir)
    before = files_of(run_dir)
    with pytest.raises(ValueError, match="has a finished run: continue it with --resume, remove it with --overwrite"):
        train(settings, run_dir)
    with pytest.raises(ValueError, match="one of the two"):
        train(settings, run_dir, resume=True, overwrite=True)
    (run_dir / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"run has a run, and notes\.txt, which no run has written"):
        train(settings, run_dir, overwrite=True)
    (run_dir / "notes.txt").unlink()
    assert files_of(run_dir) == before
    (run_dir / "adapter" / "left-over").write_text("x")
    again = train(settings, run_dir, overwrite=True)
    assert comparable(again.metrics) == comparable(first.metrics)
    assert not (run_dir / "adapter" / "left-over").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("thesis.tex", "x"),
        ("config.yaml", "method: head-only\nepochs: 1\n"),  # a recipe, in the folder of a project
        ("config.yaml", "defaults: [hydra]\n"),
    ],
)
def test_a_folder_of_someone_else_is_never_removed(tmp_path: Path, name: str, content: str) -> None:
    precious = tmp_path / "run" / name
    precious.parent.mkdir()
    precious.write_text(content)
    for resume, overwrite in ((False, False), (True, False), (False, True)):
        with pytest.raises(ValueError, match="not empty and not a run directory"):
            train(tiny_settings(tmp_path), tmp_path / "run", resume, overwrite)
    with pytest.raises(ValueError, match="is a file; choose another --run-dir"):
        train(tiny_settings(tmp_path), precious, overwrite=True)
    assert precious.read_text() == content and len(list(precious.parent.iterdir())) == 1


def test_a_run_killed_in_its_first_instant_can_be_overwritten(tmp_path: Path) -> None:
    settings, run_dir = tiny_settings(tmp_path, epochs=1), tmp_path / "run"
    start(RunDirectory(run_dir), settings, overwrite=False)
    assert [entry.name for entry in run_dir.iterdir()] == ["config.yaml"]
    assert train(settings, run_dir, overwrite=True).metrics["status"] == "finished"
