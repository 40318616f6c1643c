"""`prefixprop archive`: finished runs without their weights, to keep and to publish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prefixprop.cli.messages import clean_errors


def archive(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Run directories, or folders of them.")],
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the copies go; runs that it already has are left alone.")
    ],
) -> None:
    """Pack finished runs without their weights into two files, to keep or to publish.

    report makes the same tables of them, and sweep does not repeat them.

    Example: prefixprop archive runs/table2 --output results/table2
    """
    with clean_errors():
        messages = Console(stderr=True, highlight=False, soft_wrap=True)
        with messages.status("packing runs"):
            from prefixprop.runs.archive import archive_runs

            result = archive_runs(runs, output)
        for skipped in result.skipped:
            messages.print(f"Skipped: {skipped}", markup=False)
        size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
        completed = f"{len(result.completed)} got missing predictions, " if result.completed else ""
        typer.echo(
            f"{output}: {len(result.added)} runs added, {completed}{len(result.present)} already there; "
            f"{size / 1e6:.2f} MB in all."
        )
