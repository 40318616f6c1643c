"""All commands together."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from prefixprop import __version__
from prefixprop.cli import (
    data,
    evaluate,
    explain,
    lengthen,
    methods,
    predict,
    report,
    serve,
    sweep,
    train,
)
from prefixprop.cli.settings_options import settings_command
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.settings.run_settings import RunSettings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command("train", cls=settings_command(RunSettings))(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("explain")(explain.explain)
app.command("serve")(serve.serve)
app.command("sweep")(sweep.sweep)
app.command("report")(report.report)
app.command("lengthen", cls=settings_command(LengthenSettings))(lengthen.lengthen)
app.command("archive")(report.archive)
app.command("tasks")(data.tasks)
app.command("build-elife")(data.build_elife)
app.command("methods")(methods.methods)
app.command("cache")(data.cache)


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
    """Prefix methods for long-document encoders."""
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
