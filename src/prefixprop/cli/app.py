"""All commands together."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prefixprop import __version__
from prefixprop.cli import data, evaluate, explain, lengthen, predict, report, serve, sweep, train
from prefixprop.cli.settings_options import settings_command
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.settings.run_settings import RunSettings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # tables of rich cut long names at 80 columns
    context_settings={"max_content_width": 400},
)
COMMANDS: tuple[Any, ...] = (
    train.train, evaluate.evaluate, predict.predict, explain.explain, serve.serve, sweep.sweep, report.report,
    lengthen.lengthen, report.archive, data.tasks, data.build_elife, data.methods, data.cache,
)  # fmt: skip
SETTINGS_OF = {"train": RunSettings, "lengthen": LengthenSettings}
for command in COMMANDS:
    name = command.__name__.replace("_", "-")
    text = (inspect.getdoc(command) or "").replace("Example:", "\b\nExample:")  # click wraps no text after \b
    app.command(name, help=text, cls=settings_command(SETTINGS_OF[name]) if name in SETTINGS_OF else None)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def prefixprop(
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module first: one that adds a kernel, a method, a task or a backbone.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Classify long documents with a few trained vectors and a frozen encoder."""
    if modules:
        sys.path.insert(0, str(Path.cwd()))
    for module in modules or []:
        try:
            importlib.import_module(module)
        except Exception as error:  # the user sees whatever the module raises, in one line
            raise typer.BadParameter(
                f"module {module!r} cannot be imported ({type(error).__name__}: {error}); give a module in this "
                "folder or an installed one.",
                param_hint="--import",
            ) from error
