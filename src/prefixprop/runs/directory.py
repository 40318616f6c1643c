"""The folder of a run: what is in it, under which names, and how it is read.

| file | what it is |
| --- | --- |
| `config.yaml` | the resolved settings |
| `labels.json` | the names of the labels, in order; not for WikiHop |
| `environment.json` | versions, device, git commit and command, and a fingerprint of the documents |
| `lengths.json` | how many tokens every train document has, as the model reads it |
| `history.jsonl` | one line per epoch |
| `predictions/dev.jsonl`, `predictions/test.jsonl` | the label and logits of every document |
| `manifest.json` | checksums of the labels, the trained part, the tokenizer and the decisive settings |
| `metrics.json` | all measures and the temperature; its presence says that the run is finished |
| `adapter/`, `model/` or `head/` | what was trained, see `prefixprop.settings.methods` |
| `tokenizer/` | the tokenizer; neither it nor what was trained is there with `keep_weights: false` |
| `README.md` | the model card |
| `checkpoints/` | the last two, during the run; with `keep_checkpoints` also after it |
| `runs/` | what TensorBoard reads, with `report_to: tensorboard` |

Version 0.1 also wrote `temperature.json`, and no `manifest.json`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixprop.atomic_files import write_json
from prefixprop.manifest import MANIFEST, checksums, mismatch
from prefixprop.runs.claim import claim
from prefixprop.settings.methods import METHODS
from prefixprop.settings.recipe import has_all_settings, override, read_settings
from prefixprop.settings.run_settings import SETTINGS, RunSettings

if TYPE_CHECKING:
    from prefixprop.evaluate import Temperature

DOCUMENTS = "documents"  # of environment.json
ARCHIVE_TABLE = "runs.jsonl.gz"  # of an archive of many runs, see `prefixprop.runs.archive_file`
FINISHED = "finished"  # the status in metrics.json
TRAIN_AGAIN = "train it again with `prefixprop train … --overwrite`"
_MOVABLE = ("model", "data_dir", "train_files", "dev_files", "test_files")  # which may be moved after a run


class _Entry:
    """A file or folder of a run directory: `RunDirectory(path).config` is its path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, directory: RunDirectory, _: type[RunDirectory]) -> Path:
        return directory.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run directory and the contents of its files; every error names the file and what to do."""

    path: Path

    config = _Entry("config.yaml")
    labels = _Entry("labels.json")
    environment = _Entry("environment.json")
    lengths = _Entry("lengths.json")
    history = _Entry("history.jsonl")
    predictions_folder = _Entry("predictions")
    manifest = _Entry(MANIFEST)
    metrics = _Entry("metrics.json")
    tokenizer = _Entry("tokenizer")
    model_card = _Entry("README.md")
    checkpoints = _Entry("checkpoints")
    tensorboard = _Entry("runs")
    temperature = _Entry("temperature.json")  # of version 0.1

    def predictions(self, split: str) -> Path:
        return self.predictions_folder / f"{split}.jsonl"

    def own_names(self) -> set[str]:
        """The names of everything that a run may write here."""
        entries = {entry.name for entry in vars(type(self)).values() if isinstance(entry, _Entry)}
        return entries | {method.trains for method in METHODS.values()}

    def claimed(self) -> AbstractContextManager[None]:
        """Keep other processes from training here; the claim ends with the process, even a killed one."""
        return claim(self.path)

    # --- its state ------------------------------------------------------------------------------------------------

    def is_run(self) -> bool:
        """Whether a run has been started here: a `config.yaml` alone may belong to anything, or be a recipe."""
        if not self.config.is_file():
            return False
        return self.environment.is_file() or self.is_finished() or has_all_settings(self.config)

    def is_finished(self) -> bool:
        return self.metrics.is_file()

    def check_finished(self) -> None:
        """Raise unless this is the directory of a finished run."""
        if not self.path.is_dir() and (self.path.parent / ARCHIVE_TABLE).is_file():
            raise ValueError(
                f"{self.path}: this is a run of an archive, which has no weights; use the run directory that it was "
                "made from, or train it again with `prefixprop train … --keep-weights`."
            )
        if not self.path.is_dir():
            raise FileNotFoundError(f"{self.path}: there is no such run directory; `prefixprop train` makes one.")
        if not self.config.is_file():
            raise FileNotFoundError(
                f"{self.path}: this is not a run directory, it has no {self.config.name}; give one that `prefixprop "
                "train` made."
            )
        self.read_metrics()

    def has_documents(self, fingerprint: str) -> bool:
        """Whether these are the documents the run was started with; true for old runs, which did not record them."""
        try:
            return bool(self.read_environment().get(DOCUMENTS, fingerprint) == fingerprint)
        except (OSError, ValueError):
            return True

    # --- what its files say ---------------------------------------------------------------------------------------

    def read_settings(self) -> RunSettings:
        return override(RunSettings(), read_settings(self.config))

    def read_metrics(self) -> dict[str, Any]:
        """What the run measured at its end; an unfinished run raises an error."""
        try:
            metrics = json.loads(self.metrics.read_bytes())
        except FileNotFoundError:
            raise ValueError(
                f"{self.path}: the run is not finished, it has no {self.metrics.name}; finish it with `prefixprop "
                "train … --resume`."
            ) from None
        except json.JSONDecodeError as error:
            raise self.broken_metrics(f"broken JSON ({error.msg})", error.lineno) from error
        except UnicodeDecodeError as error:
            raise self.broken_metrics("the text is not UTF-8") from error
        if not isinstance(metrics, dict):
            raise self.broken_metrics(f"the metrics must be an object, got {type(metrics).__name__}")
        if metrics.get("status") != FINISHED:
            raise self.broken_metrics(f"the status must be {FINISHED!r}, got {metrics.get('status')!r}")
        return metrics

    def broken_metrics(self, problem: str, line: int = 1) -> ValueError:
        """The error for a `metrics.json` that no run wrote in this form, with the remedy."""
        remedy = TRAIN_AGAIN
        if self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            remedy = "remove the file and finish the run again with `prefixprop train … --resume`"
        return ValueError(f"{self.metrics}:{line}: {problem}; {remedy}.")

    def read_temperature(self) -> Temperature:
        """The temperature that the run fitted on dev."""
        from prefixprop.evaluate import Temperature

        metrics = self.read_metrics()
        value = metrics.get("temperature")
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise self.broken_metrics(f"the temperature must be a number above 0, got {value!r}")
        return Temperature(float(value))

    def read_labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the model's outputs."""
        names = _read_json(self.labels)
        if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{self.labels}:1: the labels must be a list of at least two names; {TRAIN_AGAIN}.")
        if len(set(names)) < len(names):
            raise ValueError(f"{self.labels}:1: the names of the labels must differ, got {names}; {TRAIN_AGAIN}.")
        return tuple(names)

    def read_environment(self) -> dict[str, Any]:
        """The versions, device and command of the run; empty if it did not store them."""
        environment = _read_json(self.environment) if self.environment.is_file() else {}
        if not isinstance(environment, dict):
            found = type(environment).__name__
            raise ValueError(f"{self.environment}:1: the environment must be an object, got {found}; {TRAIN_AGAIN}.")
        return environment

    def read_lengths(self) -> tuple[int, ...]:
        """How many tokens every train document has; empty if the run did not store them."""
        lengths = _read_json(self.lengths) if self.lengths.is_file() else []
        if not isinstance(lengths, list) or not all(type(length) is int and length > 0 for length in lengths):
            raise ValueError(f"{self.lengths}:1: the lengths must be a list of whole numbers above 0; {TRAIN_AGAIN}.")
        return tuple(lengths)

    # --- whether its parts belong together ------------------------------------------------------------------------

    def write_manifest(self) -> None:
        write_json(self.manifest, checksums(self.path, self._parts()) | self._settings_fingerprint())

    def check_parts(self) -> None:
        """Raise if the run's parts are not those it ended with; a run of version 0.1 has no manifest to check."""
        if not self.manifest.exists():
            return
        if problem := mismatch(self.path, self._parts(), **self._settings_fingerprint()):
            raise ValueError(
                f"{self.path}: {problem}, so the parts of this run do not belong together; restore from a copy what "
                f"the run wrote, or {TRAIN_AGAIN}."
            )

    def fingerprint(self) -> str:
        """Identifies the model of this run, wherever its directory is."""
        temperature = {"temperature": self.read_temperature().value}
        parts = checksums(self.path, self._parts()) | self._settings_fingerprint() | temperature
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _settings_fingerprint(self) -> dict[str, str]:
        """A fingerprint of the settings that decide the outcome, as in the file: later versions may add settings."""
        decisive = {
            name: value
            for name, value in read_settings(self.config).items()
            if name not in _MOVABLE and not SETTINGS[name].resumable
        }
        text = json.dumps(decisive, sort_keys=True)
        return {f"{self.config.name} (settings)": hashlib.sha256(text.encode()).hexdigest()}

    def _parts(self) -> Iterator[str]:
        """The files that must come from one run for a prediction."""
        if self.labels.is_file():
            yield self.labels.name
        for folder in sorted({*(method.trains for method in METHODS.values()), self.tokenizer.name}):
            for file in sorted((self.path / folder).rglob("*")):
                # The README that peft writes is for people, who may edit it.
                if file.is_file() and file.name != "README.md" and not file.name.startswith("."):
                    yield file.relative_to(self.path).as_posix()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: the file is missing, so the run is damaged; {TRAIN_AGAIN}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}:{line}: the text is not UTF-8, so the run is damaged; {TRAIN_AGAIN}.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: broken JSON ({error.msg}); {TRAIN_AGAIN}.") from error
