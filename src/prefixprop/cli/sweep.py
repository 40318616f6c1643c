"""`prefixprop sweep`: a grid of runs from one YAML file, with tables of its plan and its results."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from prefixprop.cli.messages import REPEAT, clean_errors, refuse
from prefixprop.cli.predict import RayAddressOption

if TYPE_CHECKING:
    from prefixprop.sweep import Cell, Engine, Outcome, SweepState


def sweep(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, as YAML.")],
    runs_dir: Annotated[
        Path | None,
        typer.Option(
            "--runs-dir", "-o", metavar="FOLDER", help="Folder of the run directories. Default: runs/NAME-OF-PLAN."
        ),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Run on this machine, or on the nodes of a Ray cluster.")
    ] = "local",
    processes: Annotated[
        int, typer.Option(metavar="N", min=1, help="local: number of runs at once; they share a GPU if they fit.")
    ] = 1,
    ray_address: RayAddressOption = None,
    cpus_per_run: Annotated[int, typer.Option(metavar="N", min=1, help="ray: CPUs per run.")] = 1,
    gpus_per_run: Annotated[
        float | None,
        typer.Option(
            metavar="N", min=0, max=1, help="ray: GPUs per run; with 0.5, two share one. Default: 1 if there are any."
        ),
    ] = None,
    data_dir: Annotated[
        list[str] | None, typer.Option(metavar="TASK=FOLDER", help="A local copy of a task's data.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and its size, and run nothing.")] = False,
) -> None:
    """Train a grid of runs from one YAML file.

    Searched settings are chosen on the dev set; then all seeds train. The same command continues the sweep.

    Example: prefixprop sweep plan.yaml --data-dir arxiv=data/arxiv
    """
    console, messages = Console(), Console(stderr=True)
    with clean_errors(REPEAT):
        from prefixprop.sweep.plan import read_plan

        wanted = read_plan(plan, _folders(data_dir or []))
        if engine == "ray":
            refuse(context, ("processes",), "it is for --engine local")
        else:
            refuse(context, ("ray_address", "cpus_per_run", "gpus_per_run"), "it is for --engine ray")
        folder = runs_dir or Path("runs", wanted.name)

        with messages.status("loading PyTorch"):
            from prefixprop.sweep import LocalEngine, RayEngine, SweepState, run_sweep, settle_finished

        if dry_run:
            state = SweepState(wanted, folder)
            settle_finished(state)
            console.print(plan_table(state))
            finished = sum(cell.size - state.remaining(cell) for cell in wanted.cells)
            typer.echo(f"{wanted.size} runs in {folder}, {finished} of them finished.")
            return
        # The modules of --import, which every process of the sweep must import too.
        modules = context.find_root().params.get("modules") or []
        computing: Engine
        if engine == "ray":
            computing = RayEngine(ray_address, cpus_per_run, gpus_per_run, modules, tell=messages.print)
        else:
            computing = LocalEngine(processes, modules, messages.print)
        with messages.status("looking for finished runs") as status:
            state = run_sweep(wanted, folder, computing, _Watch(status, computing))
        console.print(result_table(state))
        typer.echo(f"Run directories: {folder}")
    if state.failures:
        failed = f"{len(state.failures)} of the runs failed."
        messages.print(f"[bold red]{failed}[/] The same command tries them again.", highlight=False)
        raise typer.Exit(1)


def _folders(options: list[str]) -> dict[str, str]:
    folders = {}
    for option in options:
        task, equals, folder = option.partition("=")
        if not equals:
            raise ValueError(f"--data-dir: expected TASK=FOLDER, got {option!r}.")
        folders[task] = folder
    return folders


class _Watch:
    """Prints a line for every run that has ended, and below them how far the sweep is."""

    def __init__(self, status: Status, engine: Engine) -> None:
        self.status, self.engine = status, engine
        self.shown = 0

    def __call__(self, state: SweepState) -> None:
        for name, outcome in list(state.outcomes.items())[self.shown :]:
            self.status.console.print(Text(_line(outcome, name)), soft_wrap=True)
        self.shown = len(state.outcomes)
        seconds = state.seconds_left(self.engine.slots)
        time_left = "time unknown" if seconds is None else f"about {timedelta(seconds=round(seconds))} left"
        self.status.update(f"{self.shown} of {state.plan.size} done, {len(state.running)} running, {time_left}")


def _line(outcome: Outcome, name: str) -> str:
    if outcome.error is not None:
        return f"failed    {name}: {outcome.error}"
    state = "finished" if outcome.is_new else "found"
    judged_on = "dev" if outcome.settings.fold is None else f"fold {outcome.settings.fold}"
    return f"{state:<9} {name}: {judged_on} {outcome.metric} {outcome.score:.4f}"


def plan_table(state: SweepState) -> Table:
    """A row per cell with its model, its stages and their sizes."""
    table = _table(f"Plan {state.plan.name}", "cell and model", "searched, in this order", "seeds")
    table.add_column("done", justify="right", no_wrap=True)
    for cell in state.plan.cells:
        judged = f" (each by the mean of {len(cell.judges)} runs)" if len(cell.judges) > 1 else ""
        searched = "\n".join(f"{name}: {_texts(values)}{judged}" for name, values in cell.searched.items()) or "-"
        # Without the owner or folder of the model, to fit a narrow terminal.
        named = f"{cell.name}\n{Path(cell.settings.model).name}"
        done = f"{cell.size - state.remaining(cell)}/{cell.size}"
        table.add_row(Text(named), Text(searched), " ".join(map(str, cell.seeds)), done)
    return table


def result_table(state: SweepState) -> Table:
    """A row per cell with what was chosen, and the dev metric over its seeds."""
    table = _table("Results on the dev set", "cell", "chosen")
    table.add_column("metric\nseeds", no_wrap=True)
    table.add_column("mean ± deviation\n95 % interval", justify="right", no_wrap=True)
    for cell in state.plan.cells:
        count, summary = _seeds(state, cell)
        metric = f"{state.metric_of(cell)}\n{count}"
        table.add_row(Text(cell.name), Text(_chosen(state, cell)), metric, summary, end_section=True)
    return table


def _chosen(state: SweepState, cell: Cell) -> str:
    """What was chosen, and the candidates that could not be, because one of their runs failed."""
    progress = state.progress(cell)
    chosen = "nothing"
    for settings in progress.final.values():
        chosen = "\n".join(f"{name} {getattr(settings, name)}" for name in cell.searched) or "-"
    out = [f"{candidate.axis}={candidate.value}" for candidate in progress.candidates if candidate.score is None]
    return f"{chosen}\nfailed: {' '.join(out)}" if out else chosen


def _seeds(state: SweepState, cell: Cell) -> tuple[int, str]:
    """How many seeds have a score, and the metric over them."""
    from prefixprop.evaluate import summarise_seeds

    outcomes = state.outcomes_of(state.progress(cell).final)
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    if not scores:
        return 0, "-"
    summary = summarise_seeds(scores)
    deviation = "" if summary.deviation is None else f" ± {summary.deviation:.4f}"
    interval = "" if summary.interval is None else "\n{:.4f} to {:.4f}".format(*summary.interval)
    return summary.count, f"{summary.mean:.4f}{deviation}{interval}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _texts(values: tuple[Any, ...]) -> str:
    return " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
