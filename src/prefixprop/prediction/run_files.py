"""Reading what `prefixprop train` left in a run directory: labels, temperature and circumstances.

Every complaint names the file, and says what to do about it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from prefixprop.evaluation import Temperature
from prefixprop.training.run_directory import TRAIN_AGAIN, RunDirectory

CONFIG, LABELS = "config.yaml", "labels.json"
ENVIRONMENT, LENGTHS = "environment.json", "lengths.json"
ARCHIVED = "archived"  # what the environment of an archived run says beside its own


def check_run(run_dir: Path) -> None:
    """Raise unless this is the directory of a run that has come to its end."""
    if not run_dir.is_dir():
        raise FileNotFoundError(f"{run_dir}: there is no such run directory; `prefixprop train` makes one.")
    if not (run_dir / CONFIG).is_file():
        raise FileNotFoundError(
            f"{run_dir}: this is not a run directory, it has no {CONFIG}; give one that `prefixprop train` made."
        )
    RunDirectory(run_dir).read_metrics()


def check_weights_kept(run_dir: Path, keep_weights: bool) -> None:
    """Raise if the run has no weights by intent: it was told so by its settings, or this is an archive."""
    if is_archived(run_dir):
        raise ValueError(
            f"{run_dir}: this is an archive of a run, which has no weights; use the run directory that it was made "
            "of, or train it again with `prefixprop train … --keep-weights`."
        )
    if not keep_weights:
        raise ValueError(
            f"{run_dir}: this run was told not to keep its weights; train it again with `prefixprop train … "
            "--overwrite --keep-weights`."
        )


def is_archived(run_dir: Path) -> bool:
    """Whether `prefixprop archive` made this copy of a run."""
    return read_environment(run_dir).get(ARCHIVED) is True


def read_labels(run_dir: Path) -> tuple[str, ...]:
    """The names of the labels, in the order of the model's outputs."""
    path = run_dir / LABELS
    names = _read_json(path)
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}:1: the labels must be a list of at least two names; {TRAIN_AGAIN}.")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}:1: the names of the labels must differ, got {names}; {TRAIN_AGAIN}.")
    return tuple(names)


def read_environment(run_dir: Path) -> dict[str, Any]:
    """Under which circumstances the run was made; nothing where it did not say."""
    path = run_dir / ENVIRONMENT
    if not path.is_file():
        return {}
    environment = _read_json(path)
    if not isinstance(environment, dict):
        raise ValueError(
            f"{path}:1: the environment must be an object, got {type(environment).__name__}; {TRAIN_AGAIN}."
        )
    return environment


def read_lengths(run_dir: Path) -> tuple[int, ...]:
    """How many tokens every train document has; nothing where the run did not say."""
    path = run_dir / LENGTHS
    if not path.is_file():
        return ()
    lengths = _read_json(path)
    if not isinstance(lengths, list) or not all(type(length) is int and length > 0 for length in lengths):
        raise ValueError(f"{path}:1: the lengths must be a list of whole numbers above 0; {TRAIN_AGAIN}.")
    return tuple(lengths)


def read_temperature(run_dir: Path) -> Temperature:
    """The temperature that the run fitted on dev."""
    directory = RunDirectory(run_dir)
    metrics = directory.read_metrics()
    value = metrics.get("temperature")
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise directory.broken_metrics(f"the temperature must be a number above 0, got {value!r}")
    before, after = (_dev_nll(metrics, measured) for measured in ("dev", "dev_calibrated"))
    return Temperature(float(value), before, after)


def _dev_nll(metrics: dict[str, Any], measured: str) -> float:
    # Only told to people: the temperature works without it.
    values = metrics.get(measured)
    nll = values.get("nll") if isinstance(values, dict) else None
    return float(nll) if isinstance(nll, int | float) else math.nan


def _read_json(path: Path) -> Any:
    text = _read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: broken JSON ({error.msg}); {TRAIN_AGAIN}.") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: the file is missing, so the run is damaged; {TRAIN_AGAIN}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}:{line}: the text is not UTF-8, so the run is damaged; {TRAIN_AGAIN}.") from error
