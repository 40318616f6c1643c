"""`prefixprop tasks`, `methods`, `cache` and `build-elife`: lists, the cache, and the files of eLife."""

from __future__ import annotations

import time
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from prefixprop.cli.messages import clean_errors, print_rows
from prefixprop.data.cache import cache_folder, clear, entries
from prefixprop.data.rows import KINDS
from prefixprop.data.tasks import TASKS
from prefixprop.kernels import KERNELS
from prefixprop.settings.methods import METHODS


def tasks() -> None:
    """List the named data sets.

    Example: prefixprop tasks
    """
    console = Console()
    rows = {one.name: f"{one.summary}; metric {one.metric}; from {one.origin}" for one in TASKS.values()}
    print_rows(console, "Tasks (training / dev / test set)", rows)
    console.print("Every task can be read from a local copy (--data-dir).")
    console.print(f"Your documents: {KINDS} files, a folder per label, or a data set of the hub.", highlight=False)


def methods() -> None:
    """List methods, their options, kernels and models.

    Example: prefixprop methods
    """
    with Console(stderr=True).status("loading peft"):
        from peft import PeftConfig

        from prefixprop.backbones import FAMILIES
        from prefixprop.config import PrefixPropagationConfig

    console = Console()
    rows = {}
    for method in METHODS.values():
        config = None if method.config is None else method.config_class
        peft = "" if config is None else f" ({config.__name__}, {config().peft_type.value})"
        rows[method.name] = f"{method.summary}{peft}"
    print_rows(console, "Methods, and what each trains", rows)
    inherited = {option.name for option in fields(PeftConfig)}
    rows = {}
    for option in fields(PrefixPropagationConfig):
        meaning = option.metadata.get("help", "")
        if option.name not in inherited and not meaning.startswith("Recorded"):
            rows[option.name] = meaning + f" Default: {option.default!r}." * (option.default is not MISSING)
    print_rows(console, "Options of the prefix methods", rows)
    rows = {}
    for name, kernel in sorted(KERNELS.items()):
        parameters = ", ".join(f"kernel_{parameter.name}" for parameter in fields(kernel))
        summary = (kernel.__doc__ or "").strip().splitlines()[0]
        rows[name] = f"{summary}{f' Options: {parameters}.' * bool(parameters)}"
    print_rows(console, "Kernels (option kernel)", rows)
    console.print(f"Models: {', '.join(sorted(FAMILIES))}")


def cache(
    remove: Annotated[
        bool, typer.Option("--clear", help="Remove all entries; later runs make those that they need.")
    ] = False,
) -> None:
    """Show or clear cached documents and tokens.

    Example: prefixprop cache --clear
    """
    with clean_errors():
        found = entries()
        size = sum(entry.size for entry in found)
        if remove:
            clear()
        if found and not remove:
            table = Table("entry", "MB", "last used")
            for entry in found:
                used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
                table.add_row(entry.path.name, f"{entry.size / 1e6:,.1f}", used)
            Console().print(table)
        count = f"{len(found)} {'entry' if len(found) == 1 else 'entries'}"
        typer.echo(f"{cache_folder()}: {count}, {size / 1e6:,.1f} MB{' removed' if remove else ''}")


def build_elife(
    clone: Annotated[
        Path, typer.Argument(metavar="CLONE", help="A clone of https://github.com/elifesciences/elife-article-xml.")
    ],
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Where the three files go; existing ones are replaced."),
    ],
) -> None:
    """Build the files of the task elife from its public articles.

    The newest version of each article is read. A newer clone may have newer texts, but the splits stay the same.

    Example: prefixprop build-elife elife-article-xml data/elife
    """
    with clean_errors():
        from prefixprop.data.elife import articles, split_numbers, write_split

        for split, numbers in split_numbers().items():
            path = folder / f"{split}.jsonl.xz"
            found = track(articles(clone, numbers), split, len(numbers), console=Console(stderr=True))
            typer.echo(f"{path}: {write_split(path, found):,} of {len(numbers):,} articles.")
