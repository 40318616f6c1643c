"""Checkpoints that survive a killed process: complete or absent, checked before they are trusted, free of pickles.

A checkpoint is a folder `step-00000012` with everything that training needs to go on as if it had never stopped: the
trained tensors by name (for a reparameterised prefix, its network), the optimizer, the schedule, the random
generators of every process and the Trainer's own state. `manifest.json` has the checksum of every other file.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from prefixprop.atomic_files import replacing_folder

TENSORS, STATE, TRAINER_STATE, MANIFEST = "tensors.safetensors", "state.json", "trainer_state.json", "manifest.json"
_FOLDER = re.compile(r"step-(\d+)")
# Two, so that there is one to go back to where the latest is damaged.
_LATEST_KEPT = 2


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds; all tensors are on the CPU.

    Attributes:
        trained: The trained tensors by name.
        optimizer: The optimizer's `state_dict()`.
        scheduler: The schedule's `state_dict()`.
        generators: Of every process, what `generator_states` returned there.
        progress: Numbers of the run so far that the Trainer does not keep.
    """

    trained: Mapping[str, Tensor]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    generators: list[dict[str, Any]]
    progress: dict[str, float]


def folder_of_step(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def write_checkpoint(folder: Path, snapshot: Snapshot, trainer_state: str) -> None:
    """Write a checkpoint, wholly or not at all; `trainer_state` is the Trainer's state as JSON."""
    tensors: dict[str, Tensor] = {}
    state = {
        "trained": _flatten("trained", dict(snapshot.trained), tensors),
        "optimizer": _flatten("optimizer", snapshot.optimizer, tensors),
        "scheduler": _flatten("scheduler", snapshot.scheduler, tensors),
        "generators": _flatten("generators", snapshot.generators, tensors),
        "progress": snapshot.progress,
    }
    contents = {
        TENSORS: save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}),
        STATE: json.dumps(state).encode(),
        TRAINER_STATE: trainer_state.encode(),
    }
    manifest = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    contents[MANIFEST] = json.dumps(manifest, indent=2).encode()
    with replacing_folder(folder) as temporary:
        for name, content in contents.items():
            (temporary / name).write_bytes(content)


def read_checkpoint(folder: Path) -> Snapshot:
    """Read a checkpoint that `damage` finds nothing wrong with."""
    tensors = load_file(folder / TENSORS)
    state = json.loads((folder / STATE).read_bytes())
    parts = {name: _unflatten(state[name], tensors) for name in ("trained", "optimizer", "scheduler", "generators")}
    return Snapshot(**parts, progress=state["progress"])


def damage(folder: Path) -> str | None:
    """What is wrong with the files of a checkpoint, None if nothing is."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        for name in (TENSORS, STATE, TRAINER_STATE):
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != manifest[name]:
                return f"{name} is truncated or changed"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except OSError as error:
        return f"{Path(str(error.filename)).name} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST} is damaged"
    return None


def find_checkpoint(checkpoints: Path, needs_best: bool = True) -> tuple[Path | None, list[str]]:
    """The latest checkpoint that can be trusted, and what is wrong with later ones.

    A run that ends with the best of its checkpoints has no use for one without the best that it knows of.
    """
    complaints: list[str] = []
    for folder in reversed(list_checkpoints(checkpoints)):
        problem = damage(folder)
        if problem is None and needs_best:
            best = best_step(folder)
            if best is not None and (of_best := damage(folder_of_step(checkpoints, best))) is not None:
                problem = f"the best checkpoint it refers to, step {best}, is damaged: {of_best}"
        if problem is None:
            return folder, complaints
        complaints.append(f"{folder}: {problem}")
    return None, complaints


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """All checkpoints, in the order of their steps."""
    if not checkpoints.is_dir():
        return []
    return sorted(folder for folder in checkpoints.iterdir() if _FOLDER.fullmatch(folder.name))


def remove_old(checkpoints: Path, best: int | None) -> None:
    """Remove all checkpoints but the latest ones and the best."""
    kept = {folder_of_step(checkpoints, best)} if best is not None else set()
    for folder in list_checkpoints(checkpoints)[:-_LATEST_KEPT]:
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def best_step(folder: Path) -> int | None:
    """The step of the best checkpoint, as far as this one knows."""
    step: int | None = json.loads((folder / TRAINER_STATE).read_bytes()).get("best_global_step")
    return step or None


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
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, dict):
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
