"""Flags of a command, made from a class of settings: one declaration is flag, recipe key, help and check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from prefixprop.settings.declaration import TEXTS, Setting, declared


def with_settings_options(
    settings: type, everyday: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every setting of a class; it gets those that were given as `settings`, a dict.

    The command's own parameters come first, and its last must be `settings`. A setting that is one of its own
    parameters gets no flag. Where some settings are `everyday`, `--help` shows these and `--help-all` all of them.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
            if name != "settings"
        ]

        names = {parameter.name for parameter in own}
        flags = [setting for setting in declared(settings).values() if setting.name not in names]

        def wrapped(**values: Any) -> None:
            values.pop("help_all", None)
            given = {setting.name: values.pop(setting.name) for setting in flags}
            command(**values, settings={name: value for name, value in given.items() if value is not None})

        hidden = {setting.name for setting in flags if setting.name not in everyday} if everyday else set()
        parameters = [*own, *(_parameter(setting, setting.name in hidden) for setting in flags)]
        if hidden:
            parameters.append(_HELP_ALL)
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
        return wrapped

    return decorate


def settings_command(settings: type) -> type[TyperCommand]:
    """A command with settings, whose help names the choices when it is asked: `--import` adds to them."""

    class SettingsCommand(TyperCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            parameters: list[Any] = super().get_params(ctx)
            for parameter in parameters:
                if parameter.name in declared(settings) and parameter.help is None:
                    parameter.help = help_of(declared(settings)[parameter.name])
            return parameters

        def format_options(self, ctx: Any, formatter: Any) -> None:
            groups: dict[str, list[Any]] = {}
            for parameter in self.get_params(ctx):
                if row := parameter.get_help_record(ctx):
                    groups.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(row)
            for heading, rows in groups.items():
                with formatter.section(heading):
                    formatter.write_dl(rows)

    return SettingsCommand


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
