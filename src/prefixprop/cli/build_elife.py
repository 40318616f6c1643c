"""`prefixprop build-elife`: the files of the task elife, from the public articles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from prefixprop.cli.messages import clean_errors


def build_elife(
    clone: Annotated[
        Path, typer.Argument(metavar="CLONE", help="A clone of https://github.com/elifesciences/elife-article-xml.")
    ],
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Where to write train, dev and test, which are replaced."),
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
