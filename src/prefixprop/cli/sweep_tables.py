"""Tables of a sweep: its plan, its progress, its results."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from prefixprop.evaluate import summarise_seeds
from prefixprop.sweep import Axis, Cell, SweepState

WIDEST_WORD = 30  # of a cell that is not broken where the terminal has 80 columns


def plan_table(state: SweepState) -> Table:
    """A row per cell with its stages and their sizes; the model in every row, or in the title if all share it."""
    # A model of the hub or in a folder is shown without its owner or folder, to fit a narrow terminal.
    models = [Path(cell.settings.model).name for cell in state.plan.cells]
    is_shared = len(set(models)) == 1
    title = f"Plan {state.plan.name}" + (f", model {models[0]}" if is_shared else "")
    table = _table(title, "cell" if is_shared else "cell and model", "searched, in this order", "seeds")
    table.add_column("done", justify="right", no_wrap=True)
    for cell, model in zip(state.plan.cells, models, strict=True):
        judged = f" (each by the mean of {len(cell.judges)} runs)" if len(cell.judges) > 1 else ""
        searched = "\n".join(f"{axis.name}: {_values(axis)}{judged}" for axis in cell.searched) or "-"
        named = cell.name if is_shared else f"{cell.name}\n{model}"
        done = f"{cell.size - state.remaining(cell)}/{cell.size}"
        table.add_row(Text(named), Text(searched), " ".join(map(str, cell.seeds)), done)
    return table


def progress_table(state: SweepState, slots: int) -> Table:
    """A row per cell with its stage and counts, and the time left in the title.

    "best" is the best candidate of what is searched, by the mean of the runs that judge it; without a search it is
    the best run.
    """
    left = state.seconds_left(slots)
    title = f"{len(state.running)} running, " + (
        f"about {_duration(left)} left" if left is not None else "time unknown"
    )
    table = _table(title, "cell", "stage")
    for column in ("done", "running", "failed", "best"):
        table.add_column(column, justify="right")
    for cell in state.plan.cells:
        progress = state.progress(cell)
        settled = state.outcomes_of(progress.requested)
        running = sum(job.settings in progress.requested for job in state.running.values())
        failed = sum(outcome.error is not None for outcome in settled)
        stage = "all failed" if progress.stuck else progress.stage if state.remaining(cell) else "finished"
        judged = progress.candidates or settled
        scores = [one.score for one in judged if one.score is not None]
        best = f"{max(scores):.4f}" if scores else "-"
        table.add_row(Text(cell.name), stage, f"{len(settled)}/{cell.size}", str(running), str(failed), best)
    return table


def result_table(state: SweepState) -> Table:
    """A row per cell with what was chosen, and the dev metric over its seeds."""
    table = _table("Results on dev", "cell", "chosen")
    words = [word for cell in state.plan.cells for word in cell.name.split()]
    table.columns[0].min_width = min(max(map(len, words), default=0), WIDEST_WORD)
    table.add_column("metric\nseeds", no_wrap=True)
    table.add_column("mean ± deviation\n95 % interval", justify="right", no_wrap=True)
    for cell in state.plan.cells:
        count, summary = _seeds(state, cell)
        metric = f"{cell.settings.metric}\n{count}"
        table.add_row(Text(cell.name), Text(_chosen(state, cell)), metric, summary, end_section=True)
    return table


def _chosen(state: SweepState, cell: Cell) -> str:
    """What was chosen, and the candidates that are out because one of their runs failed."""
    progress = state.progress(cell)
    chosen = "nothing"
    if progress.final:
        chosen = "\n".join(f"{axis.name} {getattr(progress.final[0], axis.name)}" for axis in cell.searched) or "-"
    out = [f"{candidate.axis}={candidate.value}" for candidate in progress.candidates if candidate.score is None]
    return f"{chosen}\nout, as runs failed: {' '.join(out)}" if out else chosen


def _seeds(state: SweepState, cell: Cell) -> tuple[int, str]:
    """How many seeds were measured, and the metric over them."""
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


def _values(axis: Axis) -> str:
    return " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in axis.values)


def _duration(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds: `2 h 05 min`, `3 min 20 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s"
