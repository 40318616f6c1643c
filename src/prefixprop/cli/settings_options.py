"""Flags of a command, made from a class of settings: one declaration is flag, recipe key, help and check."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from prefixprop.settings.declaration import TEXTS, Setting, declared


def with_settings_options(settings: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every setting of a class; it gets those that were given as `settings`, a dict.

    The command's own parameters come first, and its last must be `settings`. A setting that is one of its own
    parameters gets no flag.
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
            given = {setting.name: values.pop(setting.name) for setting in flags}
            command(**values, settings={name: value for name, value in given.items() if value is not None})

        parameters = [*own, *map(_parameter, flags)]
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

    return SettingsCommand


def help_of(setting: Setting) -> str:
    """The help of a setting, with its choices and its default."""
    text = setting.help
    if setting.choices is not None:
        text += f" One of {', '.join(setting.choices())}."
    if setting.default not in (None, (), False):
        default = " ".join(setting.default) if isinstance(setting.default, tuple) else setting.default
        text += f" Default: {default}."
    return text


def _parameter(setting: Setting) -> inspect.Parameter:
    flags = [setting.flag]
    if setting.kind is bool:
        flags = [f"{setting.flag}/--no-{setting.flag[2:]}"]
    if setting.alias:
        flags.append(f"--{setting.alias}")
    option = typer.Option(*flags, rich_help_panel=setting.group, show_default=False)
    kind: Any = list[str] if setting.kind == TEXTS else setting.kind
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )
