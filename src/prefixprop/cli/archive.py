"""`prefixprop archive`: finished runs without their weights, to keep and to publish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prefixprop.cli.messages import clean_errors


def archive(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS…", help="Run directories, archives, or folders of them.")
    ],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the archive goes; it must not have one yet.")],
) -> None:
    """Pack finished runs without their weights into two files, to keep or to publish.

    report makes the same tables of them, and sweep does not repeat them. Settings and commands are kept as they are,
    with the paths of this machine.

    Example: prefixprop archive runs/table2 --output results/table2
    """
    with clean_errors():
        messages = Console(stderr=True, highlight=False, soft_wrap=True)
        with messages.status("packing runs"):
            from prefixprop.runs.archive import archive_runs
            from prefixprop.runs.find import find_runs

            found = find_runs(runs)
            for remark in found.remarks:
                messages.print(remark, markup=False)
            archive_runs(found.runs, output)
        size = sum(file.stat().st_size for file in output.iterdir() if file.is_file())
        typer.echo(f"{output}: {len(found.runs)} runs, {size / 1e6:.2f} MB.")
