"""`prefixprop train`: from documents to a calibrated model in a run directory."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefixprop.cli.messages import clean_errors
from prefixprop.cli.settings_options import with_settings_options
from prefixprop.processes import handling_signals, is_main_process, process_count
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.check import check_settings
from prefixprop.settings.recipe import override, read_settings, settings_to_yaml
from prefixprop.settings.resolve import refuse_idle
from prefixprop.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from prefixprop.train.train import RunPlan, RunResult

# Of `metrics.json`, which has more.
SHOWN = ("accuracy", "micro_f1", "macro_precision", "macro_recall", "binary_f1", "ece", "nll")


@with_settings_options
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
            from prefixprop.cli.progress import ProgressBars
            from prefixprop.train.stopping import StopWatch
            from prefixprop.train.train import plan
            from prefixprop.train.train import train as train_run

        silence_libraries()
        directory = run_dir or Path("runs", f"{wanted.data_name}-{wanted.method_row.name}-{wanted.seed}")
        if dry_run:
            with messages.status("") as status:
                planned = plan(wanted, status.update)
            _show_plan(console, planned)
            return
        bars = ProgressBars(messages, wanted.metric)
        started = time.monotonic()

        def print_note(note: str) -> None:
            messages.print(Text.assemble(("Note:", "yellow"), f" {note}"), highlight=False, soft_wrap=True)

        stop = StopWatch(print_note)
        alone = process_count() == 1
        try:
            with handling_signals(stop.ask) if alone else contextlib.nullcontext():
                callbacks = [bars, stop] if alone else [bars]
                result = train_run(wanted, directory, resume, overwrite, callbacks, print_note, bars.show)
        finally:
            bars.stop()
        _show_result(console, result, wanted, time.monotonic() - started)


def _settings(config: Path | None, flags: dict[str, Any], resumed: Path | None) -> RunSettings:
    """Flags override the recipe, which overrides the resumed run, which overrides the defaults."""
    usual = RunSettings()
    if resumed is not None and RunDirectory(resumed).is_run():
        usual = RunDirectory(resumed).read_settings()
    settings = usual if config is None else override(usual, read_settings(config))
    settings = override(settings, flags)
    check_settings(settings, process_count())
    refuse_idle(settings, flags)
    return settings


def _show_plan(console: Console, run: RunPlan) -> None:
    console.print(settings_to_yaml(run.settings), highlight=False, markup=False, end="")
    evaluated = ", ".join(f"{name} {len(split):,}" for name, split in run.data.evaluated.items())
    console.print(f"\n# Documents: train {len(run.data.train_lengths):,}, {evaluated}", highlight=False)
    console.print(f"# Steps: {run.steps:,} ({run.steps_per_epoch:,} per epoch)", highlight=False)
    model = f"# Base model: {run.base.name}; parameters, in percent of its encoder:"
    console.print(model, highlight=False, markup=False)
    for line in str(run.parameters).splitlines():
        console.print(f"#   {line}", highlight=False)
    for note in run.notes:
        console.print(f"# Note: {note}", highlight=False, markup=False, soft_wrap=True)


def _show_result(console: Console, result: RunResult, settings: RunSettings, seconds: float) -> None:
    from prefixprop.evaluate.temperature import is_bound

    metrics = result.metrics
    title = f"Best checkpoint: epoch {metrics['best_epoch']} of {metrics['epochs']}"
    if settings.keep == "last":
        title = f"Last checkpoint: epoch {metrics['epochs']} (best on dev: {metrics['best_epoch']})"
    floor = metrics.get("floor", {})
    columns = {name: metrics.get(name) for name in ("dev", "dev_calibrated", "test", "test_calibrated")}
    columns |= {f"{split}_floor": floor.get(split) for split in ("dev", "test")}
    shown = {name: measures for name, measures in columns.items() if measures}
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    for name in shown:
        table.add_column(name.replace("_", ", "), justify="right")
    for measure in SHOWN:
        is_told = measure == "accuracy" and "micro_f1" in metrics["dev"]  # where it is the same number
        if measure in metrics["dev"] and not is_told:
            table.add_row(measure, *(f"{measures[measure]:.4f}" for measures in shown.values()))
    console.print(table)
    if floor:
        console.print(f"Floor: {floor['model']}; whole documents.", highlight=False, soft_wrap=True)
    parameters = metrics["parameters"]
    console.print(
        f"Temperature {metrics['temperature']:.4g}; {parameters['trainable']:,} parameters trained "
        f"({parameters['trainable_percent']:.3f} % of the encoder); {seconds:.0f} s.",
        highlight=False,
    )
    if is_bound(metrics["temperature"]):
        console.print(
            "This temperature is a bound of the search: dev has too few documents or mistakes to calibrate with. Do "
            "not trust calibrated probabilities.",
            highlight=False,
            soft_wrap=True,
        )
    if floor and floor["dev"][settings.metric] > metrics["dev"][settings.metric]:
        console.print(
            f"A linear model of words is better here: {floor['dev'][settings.metric]:.3f} against "
            f"{metrics['dev'][settings.metric]:.3f} on dev. More epochs, another --learning-rate or longer documents "
            "may help; see docs/training.md.",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"Run directory: {result.run_dir}", highlight=False, markup=False, soft_wrap=True)


def silence_libraries() -> None:
    """Hide the warnings of libraries, which are for programmers; this command prints what a user should know."""
    from transformers.utils import logging as transformers_logging

    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
