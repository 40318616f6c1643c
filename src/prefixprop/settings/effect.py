"""Settings that change nothing beside others: a rank without LoRA, an alpha without a kernel.

A recipe for several methods may have them, and a sweep may share them among its variants. What says how a prefix
works (its kernel, layout, pooling, ...) is no such setting: with another method `check_settings` refuses it anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from prefixprop.settings.check import SettingsError
from prefixprop.settings.run_settings import RunSettings, flag_of

USUAL = RunSettings()


@dataclass(frozen=True)
class _Scope:
    """Where the fields of these names have an effect, and what that is called."""

    holds: Callable[[RunSettings], bool]
    owner: str
    names: tuple[str, ...]


_SCOPES = (
    _Scope(
        lambda settings: settings.is_prefix_method,
        "--method prefix-propagation and prefix-tuning",
        ("num_virtual_tokens", "prefix_dropout"),
    ),
    _Scope(lambda settings: settings.kernel is not None, "a --kernel, such as exp", ("alpha",)),
    _Scope(
        lambda settings: settings.method == "lora",
        "--method lora",
        ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
    ),
    _Scope(lambda settings: settings.is_question_task, "--task wikihop", ("chunk_reduction", "max_chunks")),
    _Scope(
        lambda settings: settings.task is None,
        "--train-files and --hub-dataset",
        ("text_column", "label_column", "id_column"),
    ),
)


def without_effect(settings: RunSettings) -> dict[str, str]:
    """The fields that change nothing in such a run, each with what it belongs to."""
    return {name: scope.owner for scope in _SCOPES if not scope.holds(settings) for name in scope.names}


def check_effect(settings: RunSettings, given: Iterable[str]) -> None:
    """Raise `SettingsError` if one of the `given` fields changes nothing: whoever set it expects that it does."""
    idle = without_effect(settings)
    problems = [
        f"{flag_of(name)}: belongs to {idle[name]}, and would change nothing here; leave it out."
        for name in given
        if name in idle
    ]
    if problems:
        raise SettingsError(problems)


def reset(settings: RunSettings, names: Iterable[str], usual: RunSettings = USUAL) -> RunSettings:
    """The settings with these fields as `usual` has them."""
    return replace(settings, **{name: getattr(usual, name) for name in names})
