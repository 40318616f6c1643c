"""`prefixprop tasks`, `cache` and `build-elife`: the data sets, and what is kept of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from prefixprop.cli.messages import clean_errors
from prefixprop.data.cache import cache_folder, clear, entries
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


def build_elife(
    clone: Annotated[
        Path, typer.Argument(metavar="CLONE", help="A clone of https://github.com/elifesciences/elife-article-xml.")
    ],
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Where the three files go; existing ones are replaced."),
    ],
) -> None:
    """Build the files of the task elife from a clone of its public repository.

    The newest version of each article is read. A newer clone may have newer texts, but the splits stay the same.

    Example: prefixprop build-elife elife-article-xml data/elife
    """
    with clean_errors():
        from prefixprop.data.elife import articles, split_numbers, write_split

        for split, numbers in split_numbers().items():
            path = folder / f"{split}.jsonl.xz"
            found = track(articles(clone, numbers), split, len(numbers), console=Console(stderr=True))
            typer.echo(f"{path}: {write_split(path, found):,} of {len(numbers):,} articles.")
