"""`prefixprop methods`: what can be trained, with which options and kernels."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields

from rich.console import Console
from rich.table import Table

from prefixprop.kernels import KERNELS
from prefixprop.settings.methods import METHODS


def methods() -> None:
    """List the prefix methods, their options, the kernels and the models they work on.

    Example: prefixprop methods
    """
    with Console(stderr=True).status("loading peft"):
        from peft import PeftConfig

        from prefixprop.backbones import FAMILIES
        from prefixprop.config import PrefixPropagationConfig

    console = Console()
    table = Table(title="Methods", title_justify="left")
    for column in ("method", "configuration", "peft type", "what is trained"):
        table.add_column(column)
    for method in METHODS.values():
        config = None if method.config is None else method.config_class
        peft = ("", "") if config is None else (config.__name__, config().peft_type.value)
        table.add_row(method.name, *peft, method.summary)
    console.print(table)

    table = Table(title="Options of the prefix methods", title_justify="left")
    for column in ("option", "default", "meaning"):
        table.add_column(column)
    inherited = {option.name for option in fields(PeftConfig)}
    for option in fields(PrefixPropagationConfig):
        meaning = option.metadata.get("help", "")
        if option.name not in inherited and not meaning.startswith("Recorded"):
            table.add_row(option.name, default(option), meaning)
    console.print(table)

    table = Table(title="Kernels (option kernel)", title_justify="left")
    for column in ("kernel", "parameters", "similarity"):
        table.add_column(column)
    for name, kernel in sorted(KERNELS.items()):
        parameters = ", ".join(f"kernel_{parameter.name}" for parameter in fields(kernel))
        table.add_row(name, parameters, first_line(kernel))
    console.print(table)
    console.print(f"Models: {', '.join(sorted(FAMILIES))}")


def first_line(documented: type) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


def default(option: Field) -> str:
    return "" if option.default is MISSING else repr(option.default)
