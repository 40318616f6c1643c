"""The folder of a run: what is in it, under which names, and who may write there.

| file | what it is |
| --- | --- |
| `config.yaml` | the resolved settings |
| `labels.json` | the names of the labels, in order; not for WikiHop |
| `environment.json` | versions, device, git commit and command, and a fingerprint of the documents |
| `lengths.json` | how many tokens every train document has, as the model reads it |
| `history.jsonl` | one line per epoch |
| `predictions/dev.jsonl`, `predictions/test.jsonl` | every document's label, logits and uncalibrated probabilities |
| `temperature.json` | the temperature fitted on dev |
| `manifest.json` | checksums of the labels, the trained part, the tokenizer and the settings that decide |
| `metrics.json` | all measures, before and after calibration; its presence says that the run is finished |
| `adapter/`, `model/` or `head/` | what was trained, see `prefixprop.training.methods` |
| `tokenizer/` | the tokenizer; neither it nor what was trained is there with `keep_weights: false` |
| `README.md` | the model card |
| `checkpoints/` | the last two, while the run is going on; with `keep_checkpoints` also after it |
| `runs/` | what TensorBoard reads, with `report_to: tensorboard` |

`prefixprop.reporting.archive` makes copies that have no weights, and predictions as `.jsonl.gz` or, of runs that only
served to choose, no predictions and lengths.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixprop.atomic_files import clear_leftovers, write_json, write_text
from prefixprop.manifest import MANIFEST, checksums, mismatch
from prefixprop.training.checkpoints import list_checkpoints
from prefixprop.training.claim import Claim, claim
from prefixprop.training.methods import METHODS
from prefixprop.training.settings import SETTING_FIELDS, RunSettings
from prefixprop.training.settings_file import differences, has_all_settings, override, read_settings, settings_to_yaml

DOCUMENTS = "documents"  # of environment.json
PREDICTIONS, TENSORBOARD = "predictions", "runs"
FINISHED = "finished"  # the status in metrics.json
TRAIN_AGAIN = "train it again with `prefixprop train … --overwrite`"
_PLACES = ("model", "data_dir", "train_files", "dev_files", "test_files")  # which may be moved after a run


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run directory."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def labels(self) -> Path:
        return self.path / "labels.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def lengths(self) -> Path:
        return self.path / "lengths.json"

    @property
    def history(self) -> Path:
        return self.path / "history.jsonl"

    @property
    def temperature(self) -> Path:
        return self.path / "temperature.json"

    @property
    def manifest(self) -> Path:
        return self.path / MANIFEST

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def model_card(self) -> Path:
        return self.path / "README.md"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def predictions(self, split: str) -> Path:
        return self.path / PREDICTIONS / f"{split}.jsonl"

    def is_run(self) -> bool:
        """Whether a run has been started here: a `config.yaml` alone may be anybody's, and a recipe too."""
        if not self.config.is_file():
            return False
        return self.environment.is_file() or self.is_finished() or has_all_settings(self.config)

    def is_finished(self) -> bool:
        return self.metrics.is_file()

    def read_settings(self) -> RunSettings:
        return override(RunSettings(), read_settings(self.config))

    def read_metrics(self) -> dict[str, Any]:
        """What the run measured at its end; a run without it has not come so far."""
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
        """The error for a `metrics.json` that no run has written so, with the way out."""
        remedy = TRAIN_AGAIN
        if list_checkpoints(self.checkpoints):
            remedy = "remove the file and finish the run again with `prefixprop train … --resume`"
        return ValueError(f"{self.metrics}:{line}: {problem}; {remedy}.")

    def write_manifest(self) -> None:
        write_json(self.manifest, checksums(self.path, self._parts()) | self._fingerprints())

    def check_parts(self) -> None:
        """Raise if the parts of the run are not those it ended with; one of version 0.1 does not say which."""
        if not self.manifest.exists():
            return
        if problem := mismatch(self.path, self._parts(), **self._fingerprints()):
            raise ValueError(
                f"{self.path}: {problem}, so the parts of this run do not belong together; put back from a copy what "
                f"the run wrote, or {TRAIN_AGAIN}."
            )

    def _parts(self) -> Iterator[str]:
        """The files that a prediction needs to be those of one run."""
        if self.labels.is_file():
            yield self.labels.name
        for folder in sorted({*(method.folder for method in METHODS.values()), self.tokenizer.name}):
            for file in sorted((self.path / folder).rglob("*")):
                # The README that peft writes is for people, who may edit it.
                if file.is_file() and file.name != "README.md" and not file.name.startswith("."):
                    yield file.relative_to(self.path).as_posix()

    def _fingerprints(self) -> dict[str, str]:
        """Of the settings that decide the outcome, as the file has them: a later version may know more settings."""
        decisive = {
            name: value
            for name, value in read_settings(self.config).items()
            if name not in _PLACES and not SETTING_FIELDS[name].metadata["resumable"]
        }
        text = json.dumps(decisive, sort_keys=True)
        return {f"{self.config.name} (settings)": hashlib.sha256(text.encode()).hexdigest()}

    def check_may_start(self, resume: bool, overwrite: bool) -> None:
        """Raise unless a run may be started here with these flags; writes nothing."""
        if resume and overwrite:
            raise ValueError("--resume goes on with a run and --overwrite removes it; give one of the two.")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; choose another --run-dir.")
        if not self.path.is_dir() or not self._content():
            return
        if not self.is_run():
            # A run killed in its first instant has left temporary files and all settings, so these are someone's own.
            raise ValueError(f"{self.path} is not empty and not a run directory; choose another --run-dir.")
        if not resume and not overwrite:
            state = "has a finished run" if self.is_finished() else "has an unfinished run"
            raise ValueError(
                f"{self.path} {state}: go on with --resume, remove it with --overwrite, or choose another --run-dir."
            )
        if overwrite and (others := self._others()):
            raise ValueError(
                f"{self.path} has a run, and {', '.join(others)}, which no run has written and --overwrite would "
                "remove; move that away, or choose another --run-dir."
            )

    def check_same_settings(self, settings: RunSettings) -> None:
        """Raise if the run here was started with settings that would end in something else."""
        changed = differences(self.read_settings(), settings)
        if changed:
            raise ValueError(
                f"{self.path} was started with other settings: {'; '.join(changed)}. A resumed run keeps them: leave "
                "these flags out, choose another --run-dir, or start again with --overwrite."
            )

    def has_documents(self, fingerprint: str) -> bool:
        """Whether these are the documents the run was started with; nothing is known of a run of an older version."""
        try:
            before = json.loads(self.environment.read_text(encoding="utf-8"))[DOCUMENTS]
        except (OSError, ValueError, KeyError, TypeError):
            return True
        return bool(before == fingerprint)

    def check_same_documents(self, fingerprint: str) -> None:
        """Raise if the run here was started with other documents."""
        if not self.has_documents(fingerprint):
            raise ValueError(
                f"{self.path} was started with other documents than there are now; put those back to go on, choose "
                "another --run-dir, or start again with --overwrite."
            )

    def start(self, settings: RunSettings, overwrite: bool) -> None:
        """Make the folder and write the settings; an old run is removed first where that is wanted."""
        if overwrite and self.path.is_dir():
            # Last the file that makes it a run directory: a removal that was killed can be repeated.
            for entry in sorted(self._content(), key=lambda entry: entry == self.config):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
        clear_leftovers(self.path)
        write_text(self.config, settings_to_yaml(settings))

    def claimed(self, tell: Callable[[str], None] = warnings.warn) -> contextlib.AbstractContextManager[Claim]:
        """Keep other processes from training here; the claim ends with the process, however that ends."""
        return claim(self.path, tell)

    def _others(self) -> list[str]:
        """What is here beside the run."""
        files = (self.config, self.labels, self.environment, self.lengths, self.history, self.temperature)
        rest = (self.manifest, self.metrics, self.tokenizer, self.model_card, self.checkpoints)
        trained = (method.folder for method in METHODS.values())
        own = {*(entry.name for entry in (*files, *rest)), *trained, PREDICTIONS, TENSORBOARD}
        return sorted(entry.name for entry in self._content() if entry.name not in own)

    def _content(self) -> list[Path]:
        return [entry for entry in self.path.iterdir() if not entry.name.startswith(".prefixprop-")]
