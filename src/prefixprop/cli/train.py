"""`prefixprop train`: from documents to a calibrated model in a run directory."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from prefixprop.choices import SHOWN_METRICS
from prefixprop.cli.messages import clean_errors, printable
from prefixprop.cli.progress import TerminalProgress
from prefixprop.cli.settings_options import with_settings_options
from prefixprop.processes import handling_signals, is_main_process, process_count
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.recipe import override, read_settings, settings_to_yaml
from prefixprop.settings.resolve import check_settings, refuse_unused
from prefixprop.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from prefixprop.train.plan import RunPlan
    from prefixprop.train.results import RunResult

OF_MIXES = {"accuracy": "accuracy", "ece": "ECE", "nll": "log-loss"}
OF_SEVERAL_LABELS = {
    "average_precision": "average precision",
    "micro_f1": "micro-F1",
    "macro_f1": "macro-F1",
    "ece": "ECE",
}


@with_settings_options(RunSettings)
def train(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A recipe, as YAML; flags override it.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", "-o", help="Where the run is written. Default: runs/TASK-METHOD-SEED.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run-dir, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --run-dir.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, parameters and steps, and write nothing.")
    ] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model on your documents or a task, then evaluate and calibrate it: one run.

    Every setting is a flag here and a key of a recipe (--config).

    Example: prefixprop train --train-files letters.csv --text-column body --run-dir runs/letters
    """
    # Progress bars and notes go to standard error, apart from the results on standard output.
    messages = Console(stderr=True, quiet=not is_main_process())
    console = Console(quiet=not is_main_process())
    with clean_errors(resumable=True):
        wanted = _settings(config, settings, run_dir if resume else None)

        with messages.status("loading PyTorch"):
            from prefixprop.train.callbacks import GracefulStop
            from prefixprop.train.plan import plan
            from prefixprop.train.run import train as train_run
            from prefixprop.train.run import train_label_columns

        silence_libraries()
        directory = run_dir or Path("runs", f"{wanted.data_name}-{wanted.method_row.name}-{wanted.seed}")
        started = time.monotonic()
        with TerminalProgress(messages) as progress:
            if dry_run:
                planned = plan(replace(wanted, label_column=wanted.label_column[:1]), progress)
            else:
                stop = GracefulStop(progress)
                alone = process_count() == 1
                with handling_signals(stop.ask) if alone else contextlib.nullcontext():
                    how = (resume, overwrite, progress, [stop] if alone else [])
                    if len(wanted.label_column) > 1:
                        results = train_label_columns(wanted, directory, *how)
                    else:
                        results = [train_run(wanted, directory, *how)]
        if dry_run:
            _show_plan(console, planned)
            return
        for result in results:
            show = _show_mix if wanted.is_mix else _show_result
            show(console, result, wanted, time.monotonic() - started)
            if trust := RunDirectory(result.run_dir).read_trust():
                console.print(str(trust), highlight=False, soft_wrap=True)


def _settings(config: Path | None, flags: dict[str, Any], resumed: Path | None) -> RunSettings:
    """Flags override the recipe, which overrides the resumed run, which overrides the defaults."""
    usual = RunSettings()
    if resumed is not None and RunDirectory(resumed).is_run():
        usual = RunDirectory(resumed).read_settings()
    settings = usual if config is None else override(usual, read_settings(config))
    settings = override(settings, flags)
    check_settings(settings, process_count())
    refuse_unused(settings, flags)
    return settings


def _show_plan(console: Console, run: RunPlan) -> None:
    console.print(settings_to_yaml(run.settings), highlight=False, markup=False, end="")
    evaluated = [f"{name} {len(split):,}" for name, split in run.data.evaluated.items()]
    documents = ", ".join([f"training {len(run.data.train_lengths):,}", *evaluated])
    console.print(f"\n# Documents: {documents}", highlight=False)
    console.print(f"# Steps: {run.steps:,} ({run.steps_per_epoch:,} per epoch)", highlight=False)
    if not run.settings.is_mix:  # which decides only when it is trained how much it keeps
        model = f"# Base model: {run.base.name}; parameters, in percent of its encoder:"
        console.print(model, highlight=False, markup=False)
        for line in str(run.parameters).splitlines():
            console.print(f"#   {line}", highlight=False)
    for note in run.notes:
        console.print(f"# Note: {printable(note)}", highlight=False, markup=False, soft_wrap=True)


def _show_result(console: Console, result: RunResult, settings: RunSettings, seconds: float) -> None:
    from prefixprop.evaluate.calibration import is_bound

    metrics = result.metrics
    title = f"Best epoch: {metrics['best_epoch']} of {metrics['epochs']}"
    if settings.keep == "last":
        title = f"Last epoch: {metrics['epochs']} (best on the dev set: {metrics['best_epoch']})"
    baseline = metrics.get("baseline", {})
    columns = {name: metrics.get(name) for name in ("dev", "dev_calibrated", "test", "test_calibrated")}
    simple = "BM25" if settings.answers_questions else "TF-IDF"
    columns |= {f"{split}_{simple}": baseline.get(split) for split in ("dev", "test")}
    shown = {name: values for name, values in columns.items() if values}
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    for name in shown:
        table.add_column(name.replace("_", ", "), justify="right")
    for metric in SHOWN_METRICS:
        # Where it is the same number as micro-F1.
        is_shown = metric == "accuracy" and "micro_f1" in metrics["dev"] and "thresholds" not in metrics
        if metric in metrics["dev"] and not is_shown:
            table.add_row(metric, *(f"{values[metric]:.4f}" for values in shown.values()))
    console.print(table)
    if baseline:
        console.print(f"{simple} baseline: {baseline['model']}; whole documents.", highlight=False, soft_wrap=True)
    parameters = metrics["parameters"]
    console.print(
        f"Temperature {metrics['temperature']:.4g}; {parameters['trainable']:,} parameters trained "
        f"({parameters['trainable_percent']:.3f} % of the encoder); {seconds:.0f} s.",
        highlight=False,
    )
    if is_bound(metrics["temperature"]):
        console.print(
            "This temperature is at the limit of the search: the dev set has too few documents or mistakes to "
            "calibrate on. Do not trust calibrated probabilities.",
            highlight=False,
            soft_wrap=True,
        )
    metric = RunDirectory(result.run_dir).read_settings().metric  # which the documents may have decided
    if baseline and baseline["dev"][metric] > metrics["dev"][metric]:
        console.print(
            f"The {simple} baseline is better here: {baseline['dev'][metric]:.3f} against "
            f"{metrics['dev'][metric]:.3f} on the dev set. More epochs, another --learning-rate or "
            "longer documents may help; see docs/training.md.",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"Run directory: {printable(str(result.run_dir))}", highlight=False, markup=False, soft_wrap=True)


def _show_mix(console: Console, result: RunResult, settings: RunSettings, seconds: float) -> None:
    """The table and the verdict of a run that chose everything on left-out documents."""
    metrics = result.metrics
    rows = {"TF-IDF": metrics.get("baseline"), "readers": metrics.get("readers"), "mix": metrics}
    judged = "dev" if metrics["judged_on"] == "dev" else "left out"
    splits = {split: name for split, name in (("dev", judged), ("test", "test")) if split in metrics}
    several_labels = "thresholds" in metrics
    shown = OF_SEVERAL_LABELS if several_labels else OF_MIXES
    # The columns of two splits would not fit beside each other with several labels.
    for group in [[split] for split in splits] if several_labels else [[*splits]]:
        table = Table()
        table.add_column("")
        for split in group:
            for metric in shown.values():
                table.add_column(f"{splits[split]}, {metric}", justify="right")
        for row, found in rows.items():
            if found and (row != "mix" or metrics.get("readers")):
                table.add_row(row, *(f"{found[split][metric]:.4f}" for split in group for metric in shown))
        console.print(table)
    headline = "average_precision" if several_labels else "accuracy"
    expected = metrics[f"expected_{headline}"]
    where = "the dev set" if metrics["judged_on"] == "dev" else metrics["judged_on"]
    chosen = ", ".join(
        f"{'learning rate' if part == 'readers' else 'C'} {value:g}"
        for part, value in metrics["mix"]["chosen"].items()
    )
    weights = ", ".join(f"{part} {weight:.3g}" for part, weight in metrics["mix"]["weights"].items())
    for text in (
        f"Expected {headline.replace('_', ' ')}: {expected[headline]:.3f} (95 % interval {expected['low']:.3f} to "
        f"{expected['high']:.3f}), cross-fitted on {where}.",
        f"Chosen: {chosen}; weights of the mix: {weights}. {seconds:.0f} s.",
        f"Run directory: {printable(str(result.run_dir))}",
    ):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def silence_libraries() -> None:
    """Hide the warnings of libraries, which are for programmers; this command prints what a user should know."""
    from transformers.utils import logging as transformers_logging

    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
