"""Flags of a command, made from the fields of `RunSettings`: one declaration is flag, recipe key, help and check."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from prefixprop.settings.check import TEXTS, field_type
from prefixprop.settings.run_settings import SETTING_FIELDS, Limits, flag_of, help_of


def with_settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for every setting; it gets those that were given as `settings`, a dict.

    The command's own parameters come first, and its last must be `settings`.
    """
    own = [
        parameter
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "settings"
    ]

    def wrapped(**values: Any) -> None:
        settings = {name: values.pop(name) for name in SETTING_FIELDS}
        given = {name: value for name, value in settings.items() if value is not None}
        command(**values, settings=given)

    parameters = [*own, *(_parameter(name) for name in SETTING_FIELDS)]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


class SettingsCommand(TyperCommand):
    """A command with settings, whose help names what there is to choose when it is asked: `--import` adds to that."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            if parameter.name in SETTING_FIELDS:
                parameter.help = _help(parameter.name)
        return parameters


def _parameter(name: str) -> inspect.Parameter:
    metadata = SETTING_FIELDS[name].metadata
    expected, _ = field_type(name)
    flags = [flag_of(name)]
    if expected is bool:
        flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
    if metadata["alias"]:
        flags.append(f"--{metadata['alias']}")
    option = typer.Option(
        *flags,
        rich_help_panel=metadata["group"],
        show_default=False,
    )
    kind: Any = list[str] if expected == TEXTS else expected
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _help(name: str) -> str:
    declared = SETTING_FIELDS[name]
    limits: Limits = declared.metadata["limits"]
    text = help_of(name)
    if limits.choices is not None:
        text += f" One of {', '.join(limits.choices())}."
    if declared.default not in (None, (), False):
        default = " ".join(declared.default) if isinstance(declared.default, tuple) else declared.default
        text += f" Default: {default}."
    return text
