"""`prefixprop cache`: documents and tokens that runs keep on the disk."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from prefixprop.cli.messages import clean_errors
from prefixprop.data.cache import cache_folder, clear, entries


def cache(
    remove: Annotated[
        bool, typer.Option("--clear", help="Remove everything; runs that need it make it again.")
    ] = False,
) -> None:
    """Show or clear the folder of documents and tokens that the next run can use.

    Example: prefixprop cache --clear
    """
    with clean_errors():
        found = entries()
        size = sum(entry.size for entry in found)
        if remove:
            clear()
        console = Console()
        if found and not remove:
            table = Table("entry", "MB", "last used")
            for entry in found:
                used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
                table.add_row(entry.path.name, f"{entry.size / 1e6:,.1f}", used)
            console.print(table)
        count = f"{len(found)} {'entry' if len(found) == 1 else 'entries'}"
        what = f"{count}, {size / 1e6:,.1f} MB{' removed' if remove else ''}"
        console.print(f"{cache_folder()}: {what}", highlight=False, markup=False, soft_wrap=True)
