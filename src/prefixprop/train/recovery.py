"""How a run that failed goes on: errors that say what to do, and checkpoints.

A checkpoint survives a killed process: it is complete or absent, checked before it is trusted, and free of pickles.
It is a folder `step-00000012` with everything that training needs to go on as if it had never stopped: the trained
tensors by name (for a reparameterised prefix, its network), those of the best epoch so far, the optimizer, the
schedule, the random generators of every process and the Trainer's own state. None refers to another. `manifest.json`
has the checksum of every other file.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prefixprop.atomic_files import MANIFEST, checksums, mismatch, replacing_folder
from prefixprop.progress import Progress
from prefixprop.settings.run_settings import RunSettings, flag_of

TENSORS, STATE, TRAINER_STATE = _FILES = ("tensors.safetensors", "state.json", "trainer_state.json")
_FOLDER = re.compile(r"step-(\d+)")
# Two, so that there is one to go back to where the latest is damaged.
_LATEST_KEPT = 2


# --- errors, in words for people: the command line prints these without a traceback ---------------------------------


class TrainingError(RuntimeError):
    """A run that cannot go on, with what to do about it."""


def is_out_of_memory(error: RuntimeError) -> bool:
    # PyTorch raises a plain RuntimeError where the CPU's memory is used up.
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextlib.contextmanager
def explained_memory_errors(remedy: str) -> Iterator[None]:
    """Turn "out of memory" into what can be changed about it."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(f"The device is out of memory{remedy}.") from error


def building_remedy(settings: RunSettings) -> str:
    """What can be changed where the model alone does not fit."""
    sizes = [name for name in ("lora_rank", "num_virtual_tokens") if name in settings.method_row.options]
    lower = "".join(f" or a {flag_of(name)} below {getattr(settings, name)}" for name in sizes)
    return f" before training starts: choose a smaller --model{lower}"


def training_remedy(settings: Any, at_once: int) -> str:
    """What can be changed where a step of `at_once` documents does not fit; settings of `train` or `lengthen`."""
    length, remedies = settings.max_length, []
    if at_once > 1:
        remedies.append(f"a --device-batch-size below {at_once} (the batch stays the same, by accumulation)")
    if not settings.gradient_checkpointing:
        remedies.append("--gradient-checkpointing")
    # A shorter document is another experiment, so only the first two can go on from the checkpoints.
    resumable = f"continue with --resume and {' or '.join(remedies)}, or " if remedies else ""
    return (
        f" (--device-batch-size {at_once}, --max-length {length}): {resumable}start again with a --max-length below "
        f"{length}"
    )


# --- checkpoints ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds."""

    trained: Mapping[str, Tensor]  # the trained tensors by name
    # Those of the best epoch so far, which are stored once where they are the very same object as `trained`; None
    # where there is none yet, or the run does not end with it.
    best: Mapping[str, Tensor] | None
    optimizer: dict[str, Any]  # the optimizer's `state_dict()`
    scheduler: dict[str, Any]  # the schedule's `state_dict()`
    generators: list[dict[str, Any]]  # of every process, what `generator_states` returned there
    progress: dict[str, float]  # numbers of the run so far that the Trainer does not keep


_PARTS = tuple(declared.name for declared in fields(Snapshot))


def write_checkpoint(checkpoints: Path, step: int, snapshot: Snapshot, trainer_state: str) -> None:
    """Write the checkpoint of a step, wholly or not at all, and remove all others but the one before it.

    `trainer_state` is the Trainer's state as JSON.
    """
    newest = checkpoints / f"step-{step:08d}"
    try:
        _write(newest, snapshot, trainer_state)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{newest}: the checkpoint of step {step} cannot be written ({error}). Earlier ones are untouched: make "
            "room or fix the folder, then continue with --resume."
        ) from error
    # Those of later steps are damaged: a resumed run has passed them over, and would count them as its latest.
    found = list_checkpoints(checkpoints)
    kept = [folder for folder in found if folder <= newest][-_LATEST_KEPT:]
    for folder in found:
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, snapshot: Snapshot, trainer_state: str) -> None:
    tensors: dict[str, Tensor] = {}
    state = {name: _flatten(name, getattr(snapshot, name), tensors) for name in _PARTS if name != "best"}
    is_of_best = snapshot.best is snapshot.trained
    state["best"] = state["trained"] if is_of_best else _flatten("best", snapshot.best, tensors)
    with replacing_folder(folder) as temporary:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary / TENSORS)
        (temporary / STATE).write_bytes(json.dumps(state).encode())
        (temporary / TRAINER_STATE).write_bytes(trainer_state.encode())
        (temporary / MANIFEST).write_bytes(json.dumps(checksums(temporary, _FILES), indent=2).encode())


def read_checkpoint(folder: Path) -> Snapshot:
    """Read a checkpoint that can be trusted."""
    tensors = load_file(folder / TENSORS)
    state = json.loads((folder / STATE).read_bytes())
    return Snapshot(**{name: _unflatten(state[name], tensors) for name in _PARTS})


def trusted_checkpoint(checkpoints: Path, progress: Progress | None = None) -> Path | None:
    """The latest checkpoint that can be trusted; `progress` is told of damaged ones that the run passes over."""
    found, complaints = None, []
    for folder in reversed(list_checkpoints(checkpoints)):
        if (problem := mismatch(folder, _FILES)) is None:
            found = folder
            break
        complaints.append(f"{folder}: {problem}")
    instead = f"goes on from {found.name}" if found else "starts from the beginning"
    if progress is not None:
        for complaint in complaints:
            progress.note(f"{complaint}; the run {instead} instead")
        if found:
            progress.line(f"continues from {found.name}")
    return found


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """All checkpoints, in the order of their steps."""
    if not checkpoints.is_dir():
        return []
    return sorted(folder for folder in checkpoints.iterdir() if _FOLDER.fullmatch(folder.name))


def generator_states() -> dict[str, Any]:
    """The states of all random generators of this process."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    _, keys, *rest = np.random.get_state(legacy=True)
    states["numpy"] = [np.asarray(keys).tolist(), *rest]
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generators(states: Mapping[str, Any]) -> None:
    """Undo `generator_states`."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    keys, *rest = states["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _flatten(path: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON can hold it, with tensors put aside under the path they are at."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, Mapping):
        # JSON's keys are texts, and the optimizer counts parameters by numbers.
        return {"items": [[key, _flatten(f"{path}.{key}", item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_flatten(f"{path}.{index}", item, tensors) for index, item in enumerate(value)]
    return value


def _unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _unflatten(item, tensors) for key, item in value["items"]}
    if isinstance(value, list):
        return [_unflatten(item, tensors) for item in value]
    return value
