"""`prefixprop methods`: what can be trained, with which options and kernels."""

from __future__ import annotations

from dataclasses import MISSING, fields

from rich.console import Console

from prefixprop.cli.messages import print_rows
from prefixprop.kernels import KERNELS
from prefixprop.settings.methods import METHODS


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
            rows[option.name] = (
                f"{meaning} Default: {option.default!r}." if option.default is not MISSING else meaning
            )
    print_rows(console, "Options of the prefix methods", rows)
    rows = {}
    for name, kernel in sorted(KERNELS.items()):
        parameters = ", ".join(f"kernel_{parameter.name}" for parameter in fields(kernel))
        rows[name] = f"{first_line(kernel)}{f' Options: {parameters}.' * bool(parameters)}"
    print_rows(console, "Kernels (option kernel)", rows)
    console.print(f"Models: {', '.join(sorted(FAMILIES))}")


def first_line(documented: type) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
