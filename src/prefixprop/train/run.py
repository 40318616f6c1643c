"""One run, from settings to a finished run directory.

A run is planned (`plan`), its directory is started, one model is trained (`single_run`) or several are mixed
(`mixed_run`), and the results are written, `metrics.json` last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import TrainerCallback

from prefixprop import __version__
from prefixprop.atomic_files import clear_leftovers, replacing_folder, write_json, write_text
from prefixprop.data import ClassificationTask, fingerprint, load_data
from prefixprop.evaluate import measure_trust, never_predicted, write_predictions
from prefixprop.progress import Progress, is_main_process, process_count
from prefixprop.runs.directory import (
    DOCUMENTS,
    FINISHED,
    RunDirectory,
    check_may_start,
    check_same_documents,
    check_same_settings,
    discard_replaced,
    restore_replaced,
    start,
)
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.mixed_run import train_mix
from prefixprop.train.model_card import model_card
from prefixprop.train.plan import RunPlan, Trained, plan
from prefixprop.train.readers import computing_device
from prefixprop.train.recovery import TrainingError
from prefixprop.train.single_run import train_single, training_arguments


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what its `metrics.json` says."""

    run_dir: Path
    metrics: dict[str, Any]


def train(
    settings: RunSettings,
    run_dir: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    documents: ClassificationTask | None = None,
) -> RunResult:
    """Train, evaluate and calibrate one run into `run_dir`; under `accelerate launch` on several devices.

    An existing run is refused without `resume` or `overwrite`. A resumed run ends as if it had never stopped; if it
    is finished already, it is returned as it is. If a step does not fit into the device's memory, the run continues
    with fewer documents at once, which changes only its speed. `documents` in memory replace a source of data in the
    settings.

    >>> result = train(RunSettings(task="hyperpartisan"), "runs/hyperpartisan")
    >>> result.metrics["test"]["micro_f1"]
    """
    if len(settings.label_column) > 1:
        columns = ", ".join(settings.label_column)
        raise SettingsError(
            [f"--label-column: a run has one, got {columns}; train_label_columns makes a run for each."]
        )
    directory = RunDirectory(Path(run_dir))
    return _train([settings], [directory], resume, overwrite, progress or Progress(), callbacks, documents)[0]


def train_label_columns(
    settings: RunSettings,
    run_dir: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> list[RunResult]:
    """Train readers for several label columns of the same documents in one pass, with a run and a folder for each.

    >>> train_label_columns(RunSettings(train_files=("news.csv",), label_column=("topic", "tone")), "runs/news")
    """
    each = [replace(settings, label_column=(column,)) for column in settings.label_column]
    # A folder has the name of its column, without what folders cannot be called.
    names = [re.sub(r"[^\w.-]+", "-", column).strip(".") or "label" for column in settings.label_column]
    if len({name.casefold() for name in names}) < len(names):
        columns = ", ".join(settings.label_column)
        raise SettingsError([f"--label-column: {columns} would share a folder; rename one of them."])
    directories = [RunDirectory(Path(run_dir) / name) for name in names]
    return _train(each, directories, resume, overwrite, progress or Progress(), callbacks)


def _train(
    each: Sequence[RunSettings],
    directories: Sequence[RunDirectory],
    resume: bool,
    overwrite: bool,
    progress: Progress,
    callbacks: Sequence[TrainerCallback],
    documents: ClassificationTask | None = None,
) -> list[RunResult]:
    """One run, or one for each label column of the same documents."""
    for directory in directories:
        check_may_start(directory, resume, overwrite)
    before = [directory.read_settings() if resume and directory.is_run() else None for directory in directories]
    each = [_kept(one, old) if old else one for one, old in zip(each, before, strict=True)]
    if resume and all(directory.is_finished() for directory in directories):
        return [_finished(*pair, progress) for pair in zip(each, directories, strict=True)]
    runs: list[RunPlan] = []
    for one, directory, old in zip(each, directories, before, strict=True):
        runs.append(plan(one, progress, runs[0] if runs else None, documents))
        if old:
            check_same_settings(directory, runs[-1].settings)
            check_same_documents(directory, runs[-1].documents_fingerprint)
    if len({run.data.several_labels for run in runs}) > 1:
        problem = "in some columns a document has one label, and in others several; train them in two runs."
        raise SettingsError([f"--label-column: {problem}"])
    if runs[0].settings.is_mix:
        with _started(runs, directories, computing_device(), overwrite, progress):
            return _written(runs, directories, train_mix(runs, directories, callbacks, progress), progress)
    arguments = training_arguments(runs[0], directories[0])
    # Every process has looked at the folder before the first one writes there.
    arguments.distributed_state.wait_for_everyone()
    started = _started(runs, directories, arguments.device, overwrite, progress)
    with started if arguments.should_save else contextlib.nullcontext():
        trained = train_single(runs[0], directories[0], arguments, callbacks, progress)
        results = _written(runs, directories, [trained], progress)
        arguments.distributed_state.wait_for_everyone()
        return results


def _kept(settings: RunSettings, before: RunSettings) -> RunSettings:
    """A resumed run keeps what its documents and its model decided, whatever they would decide now."""
    decided = ("method", "epochs", "batch_size", "max_length", "choose_by", "model_revision")
    return replace(settings, **{name: getattr(settings, name) or getattr(before, name) for name in decided})


def _finished(settings: RunSettings, directory: RunDirectory, progress: Progress) -> RunResult:
    """What a finished run has to say when it is resumed."""
    if Path(settings.model).is_dir():
        settings = replace(settings, model=str(Path(settings.model).resolve()))
    check_same_settings(directory, resolve(settings))
    if settings.train_files:  # those of a named task do not change by themselves, and may be far away
        check_same_documents(directory, fingerprint(load_data(**settings.source)))
    if settings.keep_weights and not directory.read_settings().keep_weights:
        progress.note(f"{directory.path} has a finished run without its weights; --overwrite trains it again")
    if is_main_process():
        with directory.claimed():  # a kill may have come between the results and the tidying up
            _tidy_up(directory)
    return RunResult(directory.path, directory.read_metrics())


@contextlib.contextmanager
def _started(
    runs: Sequence[RunPlan],
    directories: Sequence[RunDirectory],
    device: torch.device,
    overwrite: bool,
    progress: Progress,
) -> Iterator[None]:
    """Write the beginning of run directories; runs that they replace are put back if none is trained."""
    with contextlib.ExitStack() as stack:
        for directory in directories:
            stack.enter_context(directory.claimed())
        try:
            for run, directory in zip(runs, directories, strict=True):
                progress.line(str(run))
                start(directory, run.settings, overwrite)
                _describe(run, directory, device)
            for note in dict.fromkeys(note for run in runs for note in run.notes):
                progress.note(note)
            yield
        except BaseException:
            for directory in directories:
                restore_replaced(directory)
            raise


def _describe(run: RunPlan, directory: RunDirectory, device: torch.device) -> None:
    """Write what is known of a run before it is trained."""
    if run.data.label_names is not None:
        write_json(directory.labels, list(run.data.label_names))
    write_text(directory.lengths, json.dumps(run.data.train_totals) + "\n")  # a long list, on one line
    environment = describe_environment(run.settings.seed, device, process_count())
    write_json(directory.environment, environment | {DOCUMENTS: run.documents_fingerprint})


def _written(
    runs: Sequence[RunPlan], directories: Sequence[RunDirectory], trained: Sequence[Trained], progress: Progress
) -> list[RunResult]:
    """Write the results; the first run has the checkpoints, so it is the last: until then a killed run can go on."""
    results = []
    for run, directory, one in reversed(list(zip(runs, directories, trained, strict=True))):
        metrics = _metrics(run, one)
        if is_main_process():
            if never := metrics.get("never_predicted"):
                progress.note(
                    f"never predicted, although documents have {'them' if len(never) > 1 else 'it'}: "
                    f"{', '.join(never)}; --class-weights balanced or --choose-by macro_f1 may help"
                )
            discard_replaced(directory)  # a run of TF-IDF has no steps
            try:
                _write(run, directory, one, metrics)
            except (OSError, SafetensorError) as error:
                raise TrainingError(
                    f"The results cannot be written ({error}); make room, then continue with --resume."
                ) from error
        results.append(RunResult(directory.path, metrics))
    return results[::-1]


def _metrics(run: RunPlan, trained: Trained) -> dict[str, Any]:
    """What `metrics.json` has: all metrics of every split, as they are and calibrated, and the facts of the run."""
    calibrated = {name: split.with_temperature(trained.temperature) for name, split in trained.predictions.items()}
    never, count = never_predicted(trained.predictions["dev"]), trained.parameters
    return {
        **{name: split.evaluate() for name, split in trained.predictions.items()},
        **{f"{name}_calibrated": split.evaluate() for name, split in calibrated.items()},
        "temperature": trained.temperature.value,
        **measure_trust(run.settings.target_precision, calibrated),
        **trained.details,
        **({"never_predicted": never} if never else {}),
        "parameters": {**asdict(count), "trainable_percent": count.percent("trainable")},
        "status": FINISHED,
    }


def _write(run: RunPlan, directory: RunDirectory, trained: Trained, metrics: dict[str, Any]) -> None:
    """Write everything that is kept; `metrics.json`, which says that the run is finished, after all the rest."""
    settings = run.settings
    for name, split in trained.predictions.items():
        write_predictions(directory.predictions(name), split)
    described = (settings, metrics, trained.parameters, run.data.label_names)
    if settings.keep_weights:
        with replacing_folder(directory.path / settings.method_row.trains) as folder:
            trained.save(folder)
            for blank in folder.rglob("README.md"):  # of peft
                write_text(blank, model_card(*described, of_adapter=True))
        with replacing_folder(directory.tokenizer) as folder:
            try:
                run.base.tokenizer.save_pretrained(str(folder))
            except OSError:
                raise
            except Exception as error:  # the tokenizers library tells of a full disk by a bare Exception
                raise OSError(f"{folder}: the tokenizer cannot be written ({error})") from error
    write_text(directory.model_card, model_card(*described))
    directory.finish(metrics)
    _tidy_up(directory)


def _tidy_up(directory: RunDirectory) -> None:
    """Remove what a finished run has no use for."""
    if not directory.read_settings().keep_checkpoints:
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
    clear_leftovers(directory.path)


# --- under which circumstances a run was made: enough to make it again ----------------------------------------------

PACKAGES = ("torch", "transformers", "peft", "accelerate", "numpy", "scikit-learn", "safetensors")


def describe_environment(seed: int, device: torch.device, processes: int) -> dict[str, Any]:
    """Versions, machine, git commit of the working folder and command line."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {"prefixprop": __version__} | {package: version(package) for package in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "seed": seed,
        "git": _git(),
        "command": shlex.join(sys.argv),
    }


def _git() -> dict[str, Any] | None:
    """The commit of the working folder, whether files differ from it, and a short name of the differences.

    Without a repository, as in a copy of one, the commit is what `PREFIXPROP_COMMIT` or the file `COMMIT` says; None
    without these.
    """
    commit = _git_output("rev-parse", "HEAD")
    if commit is None:
        file = Path("COMMIT")
        told = os.environ.get("PREFIXPROP_COMMIT") or (file.read_text(errors="replace") if file.is_file() else "")
        return {"commit": told.strip(), "changed": None} if told.strip() else None
    changes = _git_output("diff", "--no-ext-diff", "HEAD")
    if not changes:
        return {"commit": commit, "changed": None if changes is None else False}
    return {"commit": commit, "changed": True, "difference": hashlib.sha256(changes.encode()).hexdigest()[:7]}


def _git_output(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode("utf-8", "replace").strip()  # a changed file may be in any encoding
