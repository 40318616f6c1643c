"""`prefixprop sweep`: a grid of runs from one YAML file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from prefixprop.cli.messages import clean_errors, refuse
from prefixprop.processes import handling_signals, interrupt

if TYPE_CHECKING:
    from prefixprop.sweep import Engine, Outcome, SweepState


def sweep(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(help="The sweep, as YAML, such as recipes/sweeps/table2.yaml.")],
    runs_dir: Annotated[
        Path | None, typer.Option("--runs-dir", "-o", help="Where run directories are. Default: runs/NAME-OF-PLAN.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Processes of this machine, or the nodes of a Ray cluster.")
    ] = "local",
    processes: Annotated[
        int | None, typer.Option(help="local: runs at once; on a GPU they share it, if they fit. Default: 1.")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="ray: the cluster, or auto. Default: one that is started on this machine."
        ),
    ] = None,
    cpus_per_run: Annotated[int | None, typer.Option(help="ray: CPUs, and threads, of a run. Default: 1.")] = None,
    gpus_per_run: Annotated[
        float | None,
        typer.Option(help="ray: GPUs of a run; with 0.5 two share one. Default: 1 if the cluster has any, else 0."),
    ] = None,
    data_dir: Annotated[
        list[str] | None, typer.Option(metavar="TASK=FOLDER", help="A local copy of a task's data.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and its size, and run nothing.")] = False,
) -> None:
    """Run a grid of runs from one YAML file: choose what is searched on dev, then run the seeds.

    The same command continues where it stopped.

    Example: prefixprop sweep recipes/sweeps/table2.yaml --data-dir arxiv=data/arxiv
    """
    console, messages = Console(), Console(stderr=True)
    with clean_errors():
        from prefixprop.sweep.plan import read_plan

        wanted = read_plan(plan, _folders(data_dir or []))
        if engine == "ray":
            refuse({"--processes": processes}, "it is for --engine local")
        else:
            of_ray = {"--ray-address": ray_address, "--cpus-per-run": cpus_per_run, "--gpus-per-run": gpus_per_run}
            refuse(of_ray, "it is for --engine ray")
        for note in wanted.notes:
            messages.print(f"Note: {note}", highlight=False, markup=False, soft_wrap=True)
        folder = runs_dir or Path("runs", wanted.name)

        with messages.status("loading PyTorch"):
            from prefixprop.cli.sweep_tables import plan_table, result_table
            from prefixprop.sweep.engines import LocalEngine, RayEngine
            from prefixprop.sweep.sweep import SweepState, run_sweep, settle_finished

        if dry_run:
            state = SweepState(wanted, folder)
            settle_finished(state)
            console.print(plan_table(state))
            finished = sum(cell.size - state.remaining(cell) for cell in wanted.cells)
            summary = f"{wanted.size} runs in {folder}, {finished} of them finished."
            console.print(summary, highlight=False, markup=False)
            return
        computing: Engine
        if engine == "ray":
            cpus = 1 if cpus_per_run is None else cpus_per_run
            computing = RayEngine(ray_address, cpus, gpus_per_run, _modules(context), tell=messages.print)
        else:
            computing = LocalEngine(1 if processes is None else processes, _modules(context), messages.print)
        try:
            with handling_signals(interrupt), _live(messages) as live:
                state = run_sweep(wanted, folder, computing, _Watch(live, computing))
        except KeyboardInterrupt:
            messages.print("[bold red]Stopped.[/] The same command continues from here.", highlight=False)
            raise typer.Exit(130) from None
        console.print(result_table(state))
        console.print(f"Run directories: {folder}", highlight=False, markup=False, soft_wrap=True)
    if state.failures:
        messages.print(
            f"[bold red]{len(state.failures)} of the runs failed.[/] The same command tries them again.",
            highlight=False,
        )
        raise typer.Exit(1)


@contextmanager
def _live(console: Console) -> Iterator[Live]:
    """A table that is refreshed; if the output is a file, rich leaves its last line open, so that is ended here."""
    try:
        with Live(console=console, auto_refresh=False) as live:
            yield live
    finally:
        if not console.is_terminal:
            console.line()


class _Watch:
    """Refreshes the table, and prints a line above it for every run that has ended."""

    def __init__(self, live: Live, engine: Engine) -> None:
        self.live, self.engine = live, engine
        self.shown: set[str] = set()

    def __call__(self, state: SweepState) -> None:
        from prefixprop.cli.sweep_tables import progress_table

        for name, outcome in state.outcomes.items():
            if name not in self.shown:
                self.shown.add(name)
                self.live.console.print(Text(_line(outcome, name)), soft_wrap=True)
        self.live.update(progress_table(state, self.engine.slots), refresh=True)


def _line(outcome: Outcome, name: str) -> str:
    if outcome.error is not None:
        return f"failed    {name}: {outcome.error}"
    state = "finished" if outcome.is_new else "was there"
    judged_on = "dev" if outcome.settings.fold is None else f"fold {outcome.settings.fold}"
    return f"{state:<9} {name}: {judged_on} {outcome.settings.metric} {outcome.score:.4f}"


def _folders(options: list[str]) -> dict[str, str]:
    folders = {}
    for option in options:
        task, equals, folder = option.partition("=")
        if not equals:
            raise ValueError(f"--data-dir: expected TASK=FOLDER, got {option!r}.")
        folders[task] = folder
    return folders


def _modules(context: typer.Context) -> list[str]:
    """The modules of `--import`, which every process of the sweep must import too."""
    return list((context.parent.params.get("modules") if context.parent else None) or [])
