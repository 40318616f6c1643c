"""All commands together, and the flags that `train` and `lengthen` get: one for every setting.

The flag, recipe key, help and check of a setting come from one declaration.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from prefixprop import __version__
from prefixprop.cli import data, evaluate, explain, lengthen, predict, report, serve, sweep, train
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.settings.declaration import TEXTS, Setting, declared
from prefixprop.settings.run_settings import RunSettings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # tables of rich cut long names at 80 columns
    context_settings={"max_content_width": 400},
)
COMMANDS: tuple[Callable[..., None], ...] = (
    train.train, evaluate.evaluate, predict.predict, explain.explain, serve.serve, sweep.sweep, report.report,
    lengthen.lengthen, report.archive, data.tasks, data.build_elife, data.methods, data.cache,
)  # fmt: skip
SETTINGS_OF = {"train": declared(RunSettings), "lengthen": declared(LengthenSettings)}
# The flags that `--help` shows; `--help-all` shows all. Without an entry `--help` shows all.
EVERYDAY = {
    "train": {
        "task", "train_files", "test_files", "text_column", "label_column", "model", "max_length", "method",
        "target_precision", "learning_rate", "epochs", "seed",
    },
}  # fmt: skip


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


# --- flags of settings ----------------------------------------------------------------------------------------------


class Command(TyperCommand):
    """A command whose help shows settings by group, and arguments without their types in Python.

    It names the choices of settings only when help is shown, because `--import` adds to them.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)
        settings = SETTINGS_OF.get(self.name or "", {})
        for parameter in parameters:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None
            if parameter.name in settings and parameter.help is None:
                parameter.help = help_of(settings[parameter.name])
        return parameters

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            if row := parameter.get_help_record(ctx):
                kind = f"{parameter.param_type_name.title()}s"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(row)
        for heading, rows in groups.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def with_flags(
    command: Callable[..., None], settings: dict[str, Setting], everyday: Collection[str]
) -> Callable[..., None]:
    """The command with a flag for every setting; it gets those that were given as `settings`, a dict.

    A setting that is one of its own parameters gets no flag.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["settings"]
    flags = [setting for name, setting in settings.items() if name not in own]

    def wrapped(**values: Any) -> None:
        values.pop("help_all", None)
        given = {setting.name: values.pop(setting.name) for setting in flags}
        command(**values, settings={name: value for name, value in given.items() if value is not None})

    hidden = {setting.name for setting in flags if setting.name not in everyday} if everyday else set()
    parameters = [*own.values(), *(_parameter(setting, setting.name in hidden) for setting in flags)]
    if hidden:
        parameters.append(_HELP_ALL)
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def help_of(setting: Setting) -> str:
    """The help of a setting, with its choices and its default."""
    text = setting.help
    if setting.choices is not None:
        text += f" One of {', '.join(setting.choices)}."
    if setting.default not in (None, (), False):
        default = " ".join(setting.default) if isinstance(setting.default, tuple) else setting.default
        text += f" Default: {default}."
    return text


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        print(context.get_help())
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--help-all", help="Show every setting and exit.", callback=_show_all, is_eager=True)
    ],
)


def _parameter(setting: Setting, hidden: bool) -> inspect.Parameter:
    flags = [setting.flag]
    if setting.kind is bool:
        flags = [f"{setting.flag}/--no-{setting.flag[2:]}"]
    if setting.alias:
        flags.append(f"--{setting.alias}")
    metavar = None if setting.kind is bool else "N" if setting.kind in (int, float) else "TEXT"
    option = typer.Option(*flags, metavar=metavar, rich_help_panel=setting.group, show_default=False, hidden=hidden)
    kind: Any = list[str] if setting.kind == TEXTS else setting.kind
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


for command in COMMANDS:
    name = command.__name__.replace("_", "-")
    text = (inspect.getdoc(command) or "").replace("Example:", "\b\nExample:")  # click wraps no text after \b
    if name in SETTINGS_OF:
        command = with_flags(command, SETTINGS_OF[name], EVERYDAY.get(name, ()))
    app.command(name, help=text, cls=Command)(command)
