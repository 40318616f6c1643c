"""`prefixprop methods`: what can be trained, with which options and kernels."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields

from rich.console import Console
from rich.table import Table

from prefixprop.kernels import KERNELS


def methods() -> None:
    """List the prefix methods, their options, the kernels and the models they work on.

    Example: prefixprop methods
    """
    from peft import PeftConfig

    from prefixprop.backbones import SUPPORTED_MODEL_TYPES
    from prefixprop.config import PrefixConfig
    from prefixprop.tuners.registration import METHODS

    console = Console()
    table = Table(title="Methods", title_justify="left")
    for column in ("configuration", "peft type", "what it is"):
        table.add_column(column)
    for config, tuner in METHODS:
        table.add_row(config.__name__, tuner.peft_type.value, first_line(config))
    console.print(table)

    table = Table(title="Options", title_justify="left")
    for column in ("option", "default", "meaning"):
        table.add_column(column)
    inherited = {option.name for option in fields(PeftConfig)}
    for option in fields(PrefixConfig):
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
    console.print(f"Models: {', '.join(SUPPORTED_MODEL_TYPES)}")


def first_line(documented: type) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


def default(option: Field) -> str:
    return "" if option.default is MISSING else repr(option.default)
