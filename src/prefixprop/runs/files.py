"""Reading what `prefixprop train` left in a run directory: labels, metrics, temperature and circumstances.

Every complaint names the file, and says what to do about it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from prefixprop.evaluation import Temperature

CONFIG, LABELS, METRICS = "config.yaml", "labels.json", "metrics.json"
ENVIRONMENT, LENGTHS = "environment.json", "lengths.json"
ARCHIVED = "archived"  # what the environment of an archived run says beside its own
_FINISH = "finish it with `prefixprop train … --resume`"
_AGAIN = "train it again with `prefixprop train … --overwrite`"


def check_run(run_dir: Path) -> None:
    """Raise unless this is the directory of a run that has come to its end."""
    if not run_dir.is_dir():
        raise FileNotFoundError(f"{run_dir}: there is no such run directory; `prefixprop train` makes one.")
    if not (run_dir / CONFIG).is_file():
        raise FileNotFoundError(
            f"{run_dir}: this is not a run directory, it has no {CONFIG}; give one that `prefixprop train` made."
        )
    status = read_metrics(run_dir).get("status")
    if status != "finished":
        raise ValueError(f"{run_dir}: the run is not finished (its status is {status!r}); {_FINISH}.")


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
        raise ValueError(f"{path}:1: the labels must be a list of at least two names; {_AGAIN}.")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}:1: the names of the labels must differ, got {names}; {_AGAIN}.")
    return tuple(names)


def read_metrics(run_dir: Path) -> dict[str, Any]:
    """What the run measured at its end; a run without it has not come so far."""
    path = run_dir / METRICS
    if not path.is_file():
        raise ValueError(f"{run_dir}: the run is not finished, it has no {METRICS}; {_FINISH}.")
    metrics = _read_json(path)
    if not isinstance(metrics, dict):
        raise ValueError(f"{path}:1: the metrics must be an object, got {type(metrics).__name__}; {_FINISH}.")
    return metrics


def read_environment(run_dir: Path) -> dict[str, Any]:
    """Under which circumstances the run was made; nothing where it did not say."""
    path = run_dir / ENVIRONMENT
    if not path.is_file():
        return {}
    environment = _read_json(path)
    if not isinstance(environment, dict):
        raise ValueError(f"{path}:1: the environment must be an object, got {type(environment).__name__}; {_AGAIN}.")
    return environment


def read_lengths(run_dir: Path) -> tuple[int, ...]:
    """How many tokens every train document has; nothing where the run did not say."""
    path = run_dir / LENGTHS
    if not path.is_file():
        return ()
    lengths = _read_json(path)
    if not isinstance(lengths, list) or not all(type(length) is int and length > 0 for length in lengths):
        raise ValueError(f"{path}:1: the lengths must be a list of whole numbers above 0; {_AGAIN}.")
    return tuple(lengths)


def read_temperature(run_dir: Path) -> Temperature:
    """The temperature that the run fitted on dev."""
    metrics = read_metrics(run_dir)
    value = metrics.get("temperature")
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"{run_dir / METRICS}:1: the temperature must be a number above 0, got {value!r}; {_FINISH}."
        )
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
        raise ValueError(f"{path}:{error.lineno}: broken JSON ({error.msg}); {_AGAIN}.") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: the file is missing, so the run is damaged; {_AGAIN}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}:{line}: the text is not UTF-8, so the run is damaged; {_AGAIN}.") from error
