"""The folder of a run: what is in it, under which names, and how it is read.

| file | what it is |
| --- | --- |
| `config.yaml` | the resolved settings |
| `labels.json` | the names of the labels, in order; not for WikiHop |
| `classes.json` | the labels that a `DocumentClassifier` was fitted on, where they are not text |
| `environment.json` | versions, device, git commit and command, and a fingerprint of the documents |
| `lengths.json` | how many tokens each training document has, before it is cut |
| `history.jsonl` | one line per epoch |
| `predictions/dev.jsonl`, `predictions/test.jsonl` | the label and logits of every document |
| `predictions/calibration.jsonl` | those of documents that were set aside to find which answers to accept |
| `manifest.json` | checksums of all of these, of `metrics.json`, of what was trained and of the tokenizer |
| `metrics.json` | all metrics and the temperature; written last, it says that the run is finished |
| `adapter/`, `model/` or `head/` | what was trained, see `prefixprop.settings.methods` |
| `tokenizer/` | the tokenizer; neither it nor what was trained is there with `keep_weights: false` |
| `README.md` | the model card |
| `checkpoints/` | the last two, during the run; with `keep_checkpoints` also after it |
| `runs/` | what TensorBoard reads, with `report_to: tensorboard` |

A finished run is read only if its files are those in the manifest, so none of them is checked any further.

`--overwrite` moves the old run into a subfolder. It is removed when the new run has trained a step. If the new run
fails before that, the old one is put back; if it was killed, the next start does so.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from prefixprop.atomic_files import (
    MANIFEST,
    checksum,
    checksums,
    clear_leftovers,
    mismatch,
    replacing_file,
    write_json,
    write_text,
)
from prefixprop.progress import is_main_process
from prefixprop.settings.methods import METHODS
from prefixprop.settings.resolve import override, read_settings, settings_to_yaml
from prefixprop.settings.run_settings import SETTINGS, RunSettings

if TYPE_CHECKING:
    from prefixprop.evaluate import Temperature, Trust

DOCUMENTS = "documents"  # of environment.json
ARCHIVE_TABLE = "runs.jsonl.gz"  # of an archive of many runs, see `prefixprop.runs.archive`
FINISHED = "finished"  # the status in metrics.json
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
    classes = _Entry("classes.json")
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

    def predictions(self, split: str) -> Path:
        return self.predictions_folder / f"{split}.jsonl"

    def own_names(self) -> set[str]:
        """The names of everything that a run may write here."""
        return {entry.name for entry in vars(type(self)).values() if isinstance(entry, _Entry)} | self._weights()

    def claimed(self) -> AbstractContextManager[None]:
        """Keep other processes from training here; the claim ends with the process, even a killed one."""
        return claim(self.path)

    # --- its state ------------------------------------------------------------------------------------------------

    def is_run(self) -> bool:
        """Whether a run has been started here: a `config.yaml` alone may belong to anything, or be a recipe."""
        if not self.config.is_file() or self.environment.is_file() or self.is_finished():
            return self.config.is_file()
        try:  # a run that was killed at its very start has all settings, unlike a recipe
            return set(read_settings(self.config)) >= set(SETTINGS)
        except (OSError, ValueError):
            return False

    def is_finished(self) -> bool:
        return self.metrics.is_file()

    def check_finished(self) -> None:
        """Raise unless this is the directory of a finished run whose small files are intact."""
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
        if not self.is_finished():
            raise ValueError(
                f"{self.path}: the run is not finished, it has no {self.metrics.name}; finish it with `prefixprop "
                "train … --resume`."
            )
        self.check_intact()

    def has_documents(self, fingerprint: str) -> bool:
        """Whether these are the documents the run was started with; also if it was killed before it noted them."""
        try:
            return bool(self.read_environment().get(DOCUMENTS, fingerprint) == fingerprint)
        except (OSError, ValueError):
            return True

    # --- what its files say ---------------------------------------------------------------------------------------

    def read_settings(self) -> RunSettings:
        return override(RunSettings(), read_settings(self.config))

    def read_metrics(self) -> dict[str, Any]:
        """The metrics of a finished run; an unfinished or damaged one raises an error."""
        self.check_finished()
        metrics: dict[str, Any] = json.loads(self.metrics.read_bytes())
        return metrics

    def read_temperature(self) -> Temperature:
        """The temperature that the run fitted on the dev set."""
        from prefixprop.evaluate import Temperature

        return Temperature(self.read_metrics()["temperature"])

    def read_trust(self) -> Trust | None:
        """Which answers of the run can be accepted; None if it had no target."""
        from prefixprop.evaluate import Trust

        found = self.read_metrics().get("trust")
        return found and Trust(**{name: value for name, value in found.items() if name != "test"})

    def read_thresholds(self) -> tuple[float, ...] | None:
        """The threshold of every label, where a document can have several; otherwise None."""
        thresholds = self.read_metrics().get("thresholds")
        return None if thresholds is None else tuple(thresholds)

    def read_labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the model's outputs."""
        return tuple(json.loads(self.labels.read_bytes()))

    def read_environment(self) -> dict[str, Any]:
        """The versions, device and command of the run."""
        environment: dict[str, Any] = json.loads(self.environment.read_bytes())
        return environment

    def read_lengths(self) -> tuple[int, ...]:
        """How many tokens each training document has, before it is cut."""
        return tuple(json.loads(self.lengths.read_bytes()))

    # --- whether its files are those it wrote ---------------------------------------------------------------------

    def finish(self, metrics: dict[str, Any]) -> None:
        """Write the manifest of all files, then `metrics.json`, which makes this a finished run."""
        with replacing_file(self.metrics) as temporary:
            write_json(temporary, metrics)
            listed = checksums(self.path, self._files()) | {self.metrics.name: checksum(temporary)}
            write_json(self.manifest, listed | self._settings_fingerprint())

    def check_intact(self, weights: bool = False, predictions: bool = False) -> None:
        """Raise if files are not those that the run ended with.

        The settings and all small files are always compared, what was trained and the predictions on demand.
        """
        ignored = set() if weights else self._weights() | {self.tokenizer.name}
        if not predictions:
            ignored.add(self.predictions_folder.name)
        files = (name for name in (self.metrics.name, *self._files()) if name.split("/")[0] not in ignored)
        if problem := mismatch(self.path, files, ignored, **self._settings_fingerprint()):
            raise ValueError(
                f"{self.path}: {problem}, so this is not what the run left; restore its files from a copy, or train "
                "it again with `prefixprop train … --overwrite`."
            )

    def fingerprint(self) -> str:
        """Identifies a finished run, wherever its directory is."""
        return checksum(self.manifest)

    def _settings_fingerprint(self) -> dict[str, str]:
        """A fingerprint of the settings that decide the outcome, as in the file: later versions may add settings."""
        decisive = {
            name: value
            for name, value in read_settings(self.config).items()
            if name not in _MOVABLE and not SETTINGS[name].resumable
        }
        text = json.dumps(decisive, sort_keys=True)
        return {f"{self.config.name} (settings)": hashlib.sha256(text.encode()).hexdigest()}

    def _files(self) -> Iterator[str]:
        """The files of the manifest, apart from `metrics.json`."""
        for file in (self.labels, self.environment, self.lengths, self.history):
            if file.is_file():
                yield file.name
        for folder in sorted({*self._weights(), self.tokenizer.name, self.predictions_folder.name}):
            for file in sorted((self.path / folder).rglob("*")):
                # The README that peft writes is for people, who may edit it.
                if file.is_file() and file.name != "README.md" and not file.name.startswith("."):
                    yield file.relative_to(self.path).as_posix()

    @staticmethod
    def _weights() -> set[str]:
        """The folders that what was trained may be in."""
        return {method.trains for method in METHODS.values()}


# --- starting, resuming and replacing a run; nothing but a run is ever removed --------------------------------------

REPLACED = ".prefixprop-replaced"  # the run that a new one replaces


def check_may_start(directory: RunDirectory, resume: bool, overwrite: bool) -> None:
    """Raise unless a run may be started here with these flags; puts back what a killed run was to replace."""
    path = directory.path
    if resume and overwrite:
        raise ValueError("--resume continues a run and --overwrite removes it; give one of the two.")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; choose another --run-dir.")
    if (path / REPLACED).is_dir() and is_main_process():
        with directory.claimed():
            restore_replaced(directory)
    if not path.is_dir() or not _content(path):
        return
    if not directory.is_run():
        # A run killed at its very start leaves only temporary files and all settings, so these files are not a run's.
        raise ValueError(f"{path} is not empty and not a run directory; choose another --run-dir.")
    if not resume and not overwrite:
        state = "has a finished run" if directory.is_finished() else "has an unfinished run"
        raise ValueError(
            f"{path} {state}: continue it with --resume, remove it with --overwrite, or choose another --run-dir."
        )
    others = sorted(entry.name for entry in _content(path) if entry.name not in directory.own_names())
    if overwrite and others:
        raise ValueError(
            f"{path} has a run, and {', '.join(others)}, which no run has written and --overwrite would remove; move "
            "these files away, or choose another --run-dir."
        )


def check_same_settings(directory: RunDirectory, settings: RunSettings) -> None:
    """Raise if the run here was started with settings that give other results."""
    before = directory.read_settings()
    changed = [
        f"{setting.flag} (was {getattr(before, name)!r}, now {getattr(settings, name)!r})"
        for name, setting in SETTINGS.items()
        if not setting.resumable and getattr(before, name) != getattr(settings, name)
    ]
    if changed:
        raise ValueError(
            f"{directory.path} was started with other settings: {'; '.join(changed)}. A resumed run keeps them: "
            "leave these flags out, choose another --run-dir, or start again with --overwrite."
        )


def check_same_documents(directory: RunDirectory, fingerprint: str) -> None:
    """Raise if the run here was started with other documents."""
    if not directory.has_documents(fingerprint):
        raise ValueError(
            f"{directory.path} was started with other documents than there are now; restore them to continue, choose "
            "another --run-dir, or start again with --overwrite."
        )


def start(directory: RunDirectory, settings: RunSettings, overwrite: bool) -> None:
    """Make the folder and write the settings; with `overwrite`, move an old run aside first."""
    directory.path.mkdir(parents=True, exist_ok=True)
    clear_leftovers(directory.path)
    if overwrite and _content(directory.path):
        replaced = directory.path / REPLACED
        replaced.mkdir()
        # The settings come last: once they are in the subfolder, all that is outside belongs to the new run.
        for entry in sorted(_content(directory.path), key=lambda entry: entry == directory.config):
            os.replace(entry, replaced / entry.name)
    write_text(directory.config, settings_to_yaml(settings))


def discard_replaced(directory: RunDirectory) -> None:
    """Remove the run that was moved aside, if there is one."""
    replaced = directory.path / REPLACED
    if replaced.is_dir():
        # Under this name it is never put back, and removed by the next start if this process is killed.
        removed = replaced.rename(directory.path / ".prefixprop-tmp-replaced")
        shutil.rmtree(removed, ignore_errors=True)


def restore_replaced(directory: RunDirectory) -> bool:
    """Put back the run that was moved aside, in place of what the new one left; False if there is none.

    The caller must hold the claim on the folder.
    """
    replaced = directory.path / REPLACED
    if not replaced.is_dir():
        return False
    if (replaced / directory.config.name).exists():
        for entry in _content(directory.path):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        os.replace(replaced / directory.config.name, directory.config)
    # Without settings there, the move to or from the subfolder was interrupted: what is outside is the old run's.
    for entry in sorted(replaced.iterdir()):
        os.replace(entry, directory.path / entry.name)
    replaced.rmdir()
    return True


def _content(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if not entry.name.startswith(".prefixprop-")]


# --- one process at a time ------------------------------------------------------------------------------------------

LOCK = ".prefixprop-lock"
_LOOK_SECONDS = 0.5


class FolderInUse(ValueError):
    """A run directory in which another process is training."""


@contextmanager
def claim(folder: Path, option: str = "--run-dir") -> Iterator[None]:
    """Keep other processes from training in `folder`; `FolderInUse` if one already does.

    The operating system holds the lock, so it ends with its process, even a killed one. Machines that share a file
    system may not see each other's locks: in a sweep on several machines the sweep alone decides which machine
    computes a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout:
        raise FolderInUse(
            f"Another process is training in {folder}; wait for it or choose another {option}."
        ) from None
    with held:
        yield


def wait_until_free(folder: Path, notify: Callable[[str], None]) -> None:
    """Wait until no process trains in `folder`, however long that takes; `notify` gets a note if that is not now."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        notify(f"Another process is training in {folder}; waiting for it.")
        lock.acquire(poll_interval=_LOOK_SECONDS)
    lock.release()
