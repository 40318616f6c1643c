"""`prefixprop train`: from documents to a calibrated model in a run directory."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefixprop.choices import MOST_TEMPERATURE
from prefixprop.cli.messages import RESUME, TerminalProgress, clean_errors, printable
from prefixprop.progress import handling_signals, is_main_process, process_count
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.resolve import check_settings, override, read_settings, refuse_unused, settings_to_yaml
from prefixprop.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from prefixprop.train.plan import RunPlan
    from prefixprop.train.run import RunResult

COLUMNS = {
    "average_precision": "average precision", "accuracy": "accuracy", "micro_f1": "micro-F1", "macro_f1": "macro-F1",
    "ece": "ECE", "nll": "log-loss",
}  # fmt: skip


def train(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A recipe, as YAML; flags override it.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", "-o", metavar="FOLDER", help="Where the run is written. Default: runs/TASK-METHOD-SEED."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run-dir, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --run-dir.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, parameters and steps, and write nothing.")
    ] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model on documents; evaluate and calibrate it.

    Every setting is a flag here and a key of a recipe (--config).

    Example: prefixprop train --train-files letters.csv --run-dir runs/letters
    """
    # Progress bars and notes go to standard error, apart from the results on standard output.
    messages = Console(stderr=True, quiet=not is_main_process())
    with clean_errors(RESUME):
        wanted = _settings(config, settings, run_dir if resume else None)

        with messages.status("loading PyTorch"):
            from prefixprop.train.plan import plan
            from prefixprop.train.run import train as train_run
            from prefixprop.train.run import train_label_columns
            from prefixprop.train.trainer import GracefulStop

        silence_libraries()
        # The method for your documents is only known when they have been counted.
        method = "default" if wanted.method is None and wanted.task is None else wanted.method_row.name
        directory = run_dir or Path("runs", f"{wanted.data_name}-{method}-{wanted.seed}")
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
        if not is_main_process():
            return
        if dry_run:
            typer.echo(_described(planned))
            return
        for result in results:
            _show_result(result, time.monotonic() - started)


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


def _described(run: RunPlan) -> str:
    """A recipe, with what will be trained in comments."""
    evaluated = [f"{name} {len(split):,}" for name, split in run.data.evaluated.items()]
    documents = ", ".join([f"training {len(run.data.train_lengths):,}", *evaluated])
    lines = [f"Documents: {documents}", f"Steps: {run.steps:,} ({run.steps_per_epoch:,} per epoch)"]
    if not run.settings.is_mix:  # which decides only when it is trained how much it keeps
        lines.append(f"Base model: {run.base.name}; parameters, in percent of its encoder:")
        lines += [f"  {line}" for line in str(run.parameters).splitlines()]
    lines += [f"Note: {note}" for note in run.notes]
    return "\n".join([settings_to_yaml(run.settings), *(f"# {printable(line)}" for line in lines)])


def _show_result(result: RunResult, seconds: float) -> None:
    """The run above the baseline, which of them is better, and what to do next."""
    console = Console()
    directory, metrics = RunDirectory(result.run_dir), result.metrics
    settings = directory.read_settings()
    split = "test" if metrics.get("test") else "dev"
    simple = "BM25" if settings.answers_questions else "TF-IDF"
    readers = metrics.get("readers", {}).get(split) if settings.mix_baseline == "auto" else None
    baseline = metrics.get("baseline", {}).get(split) if settings.method != "tfidf" else None
    found = metrics.get(f"{split}_calibrated") or metrics[split]
    name = str(settings.method)
    if readers and metrics["mix"]["weights"]["words"]:
        name += f", with {simple}" if metrics["mix"]["weights"]["readers"] else f": {simple} alone"
    rows = {name: found, "readers alone": readers, simple: baseline}
    several_labels = "thresholds" in metrics
    twice = "accuracy" if several_labels else "micro_f1"  # which is the accuracy where a document has one label
    shown = [metric for metric in COLUMNS if metric in found and metric != twice]
    judged = split if metrics.get("judged_on", "dev") == "dev" or split == "test" else "held-out"
    where = f"{found['documents']:,} {judged} {'questions' if settings.answers_questions else 'documents'}"
    table = Table(title=where, title_justify="left", box=None)
    table.add_column("")
    for metric in shown:
        table.add_column(COLUMNS[metric], justify="right")
    for name, row in rows.items():
        if row:
            table.add_row(name, *(f"{row[metric]:.4f}" if metric in row else "" for metric in shown))
    console.print(table)
    headline = "average_precision" if several_labels else "accuracy"
    if baseline:
        advice = ["More --epochs", "another --learning-rate", "a larger --max-length"]
        advice += [] if settings.is_mix else ["a mix (--method readers)"]
        _show_verdict(console, headline, found, baseline, simple, where, advice)
    for text in (*_details(metrics, settings, headline, seconds), directory.read_trust()):
        if text:
            typer.echo(text)
    temperature = metrics["temperature"]
    if not 1 / MOST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        console.print(
            f"[bold yellow]Warning:[/] the temperature is {temperature:.4g}: the dev set has too few documents or "
            "mistakes to calibrate on. Do not trust calibrated probabilities.",
            highlight=False,
            soft_wrap=True,
        )
    folder = printable(str(result.run_dir))
    typer.echo(f"Run directory: {folder}")
    if settings.keep_weights and not settings.answers_questions:
        column = settings.text_column[0]
        typer.echo(f"Next: prefixprop predict {folder} FILE{f' --text-column {column}' * (column != 'text')}")


def _show_verdict(
    console: Console,
    metric: str,
    found: dict[str, Any],
    baseline: dict[str, Any],
    simple: str,
    where: str,
    advice: Sequence[str],
) -> None:
    reached, other = found[metric], baseline[metric]
    numbers = f"{COLUMNS[metric]} {reached:.3f} against {other:.3f} on {where}"
    error = math.sqrt((reached * (1 - reached) + other * (1 - other)) / found["documents"])
    if metric == "accuracy" and abs(reached - other) <= error:
        verdict = Text(f"About level with {simple}: {numbers}, within a standard error.", "bold yellow")
    elif reached >= other:
        verdict = Text(f"Better than {simple}: {numbers}.", "bold green")
    else:
        may_help = f"{', '.join(advice[:-1])} or {advice[-1]} may help."
        verdict = Text.assemble((f"{simple} is better: {numbers}. ", "bold red"), may_help)
    console.print(verdict, soft_wrap=True)


def _details(metrics: dict[str, Any], settings: RunSettings, headline: str, seconds: float) -> list[str]:
    """What was expected and chosen, or which epoch was kept."""
    if not settings.is_mix:
        kept = f"Best epoch: {metrics['best_epoch']} of {metrics['epochs']}"
        if settings.keep == "last":
            kept = f"Last epoch: {metrics['epochs']} (best on the dev set: {metrics['best_epoch']})"
        return [f"{kept}; temperature {metrics['temperature']:.4g}; {seconds:.0f} s."]
    expected, mix = metrics[f"expected_{headline}"], metrics["mix"]
    where = "the dev set" if metrics["judged_on"] == "dev" else metrics["judged_on"]
    names = {"readers": "learning rate"}
    chosen = ", ".join(f"{names.get(part, 'C')} {value:g}" for part, value in mix["chosen"].items())
    weights = ", ".join(f"{part} {weight:.3g}" for part, weight in mix["weights"].items())
    weights = f"; weights of the mix: {weights}" * (len(mix["weights"]) > 1)
    interval = f"(95 % interval {expected['low']:.3f} to {expected['high']:.3f})"
    return [
        f"Expected {COLUMNS[headline]}: {expected[headline]:.3f} {interval}, cross-fitted on {where}.",
        f"Chosen: {chosen}{weights}. {seconds:.0f} s.",
    ]


def silence_libraries() -> None:
    """Hide the warnings of libraries, which are for programmers; this command prints what a user should know."""
    from transformers.utils import logging as transformers_logging

    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
