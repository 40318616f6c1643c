"""`prefixprop tasks`: the named data sets."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from prefixprop.data.registry import TASKS
from prefixprop.data.rows import KINDS


def tasks() -> None:
    """List the named data sets: what they are, where they come from, and their metric.

    Example: prefixprop tasks
    """
    console = Console()
    table = Table(title="Tasks", title_justify="left")
    for column in ("task", "what it is (training / dev / test set)", "where it comes from", "metric"):
        table.add_column(column)
    for source in TASKS.values():
        table.add_row(source.name, source.summary, source.origin, source.metric)
    console.print(table)
    console.print("Every task can be read from a local copy (--data-dir).")
    console.print(f"Your documents: {KINDS} files, a folder per label, or a data set of the hub.", highlight=False)
