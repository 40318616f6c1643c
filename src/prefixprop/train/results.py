"""What a run writes: the beginning of its directory, and its results; `metrics.json` after all the rest."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from prefixprop.atomic_files import clear_leftovers, replacing_folder, write_json, write_text
from prefixprop.evaluate import PredictionSet, never_predicted, write_predictions
from prefixprop.processes import process_count
from prefixprop.progress import Progress
from prefixprop.runs.directory import DOCUMENTS, FINISHED, RunDirectory
from prefixprop.runs.start import start
from prefixprop.train.environment import describe_environment
from prefixprop.train.errors import TrainingError
from prefixprop.train.model_card import model_card
from prefixprop.train.plan import RunPlan
from prefixprop.tuners.counting import ParameterCount


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what its `metrics.json` says."""

    run_dir: Path
    metrics: dict[str, Any]


def begin_run(
    run: RunPlan,
    directory: RunDirectory,
    device: torch.device,
    overwrite: bool,
    progress: Progress,
    told: Collection[str] = (),
) -> None:
    """Write the beginning of a run directory; notes that were `told` before are not repeated."""
    progress.line(str(run))
    for note in run.notes:
        if note not in told:
            progress.note(note)
    start(directory, run.settings, overwrite)
    if run.data.label_names is not None:
        write_json(directory.labels, list(run.data.label_names))
    lengths = run.data.train_totals or run.data.train_lengths
    write_text(directory.lengths, json.dumps(list(lengths)) + "\n")  # a long list, on one line
    environment = describe_environment(run.settings.seed, device, process_count())
    write_json(directory.environment, environment | {DOCUMENTS: run.documents})


def last_metrics(count: ParameterCount) -> dict[str, Any]:
    """The last entries of the metrics."""
    return {"parameters": {**asdict(count), "trainable_percent": count.percent("trainable")}, "status": FINISHED}


def write_results(
    directory: RunDirectory,
    run: RunPlan,
    predictions: dict[str, PredictionSet],
    metrics: dict[str, Any],
    save: Callable[[Path], None],
    progress: Progress,
) -> None:
    """Write everything that is kept; `metrics.json`, which says that the run is finished, after all the rest.

    `save` writes what was trained into a folder.
    """
    settings = run.settings
    if never := never_predicted(predictions["dev"]):
        metrics["never_predicted"] = never
        progress.note(
            f"never predicted, although documents have {'them' if len(never) > 1 else 'it'}: {', '.join(never)}; "
            "--class-weights balanced or --choose-by macro_f1 may help"
        )
    for name, split in predictions.items():
        write_predictions(directory.predictions(name), split)
    described = (settings, metrics, run.parameters, run.data.label_names)
    weights = directory.path / settings.method_row.trains
    if settings.keep_weights:
        with replacing_folder(weights) as folder:
            save(folder)
            for blank in folder.rglob("README.md"):  # of peft
                write_text(blank, model_card(*described, of_adapter=True))
        with replacing_folder(directory.tokenizer) as folder:
            _save_tokenizer(run, folder)
    else:
        # A run that was to keep them may have been killed here, and resumed with other wishes.
        for folder in (weights, directory.tokenizer):
            shutil.rmtree(folder, ignore_errors=True)
    write_text(directory.model_card, model_card(*described))
    directory.finish(metrics)
    tidy_up(directory)


@contextlib.contextmanager
def explained_writing() -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"The results cannot be written ({error}); make room, then continue with --resume."
        ) from error


def _save_tokenizer(run: RunPlan, folder: Path) -> None:
    try:
        run.base.tokenizer.save_pretrained(str(folder))
    except OSError:
        raise
    except Exception as error:  # the tokenizers library tells of a full disk by a bare Exception
        raise OSError(f"{folder}: the tokenizer cannot be written ({error})") from error


def tidy_up(directory: RunDirectory) -> None:
    """Remove what a finished run has no use for."""
    if not directory.read_settings().keep_checkpoints:
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
    clear_leftovers(directory.path)
