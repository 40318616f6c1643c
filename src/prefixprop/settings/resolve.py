"""From the user's settings to those of a run: without idle ones, and with the paper's values for open ones.

A rank without LoRA changes nothing, nor does an alpha without a kernel. Such an idle setting returns to its default.
Given as a flag it is an error; in a recipe, which may serve several methods, it is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.settings.check import SettingsError
from prefixprop.settings.methods import owners
from prefixprop.settings.run_settings import SETTING_FIELDS, RunSettings, flag_of


@dataclass(frozen=True)
class _Scope:
    """Fields that only have an effect if `holds`; `owner` is what they belong to, in words."""

    holds: Callable[[RunSettings], bool]
    owner: str
    names: tuple[str, ...]


_SCOPES = (
    _Scope(lambda settings: settings.kernel is not None, "a --kernel, such as exp", ("alpha", "alpha_mode")),
    _Scope(
        lambda settings: settings.answers_questions,
        "a --task with questions, such as wikihop",
        ("chunk_reduction", "max_chunks"),
    ),
    _Scope(lambda settings: not settings.answers_questions, "tasks that classify documents", ("pooling", "floor")),
    _Scope(
        lambda settings: settings.task is None,
        "--train-files and --hub-dataset",
        ("text_column", "label_column", "id_column"),
    ),
)


def idle_settings(settings: RunSettings) -> dict[str, str]:
    """The fields that change nothing in such a run, each with what it belongs to."""
    idle = {name: scope.owner for scope in _SCOPES if not scope.holds(settings) for name in scope.names}
    used = settings.method_row.options
    of_methods = {name: f"--method {_listed(owners(name))}" for name in SETTING_FIELDS if owners(name)}
    return idle | {name: owner for name, owner in of_methods.items() if name not in used}


def _listed(names: tuple[str, ...]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def refuse_idle(settings: RunSettings, given: Iterable[str]) -> None:
    """Raise `SettingsError` if one of the `given` fields changes nothing: the user expects that it does."""
    idle = idle_settings(settings)
    problems = [
        f"{flag_of(name)}: belongs to {idle[name]}, and would change nothing here; leave it out."
        for name in given
        if name in idle
    ]
    if problems:
        raise SettingsError(problems)


def idle_notes(settings: RunSettings) -> list[str]:
    """A sentence for every setting that is not at its default and changes nothing."""
    return [
        f"{name} belongs to {owner}, and changes nothing here"
        for name, owner in idle_settings(settings).items()
        if getattr(settings, name) != SETTING_FIELDS[name].default
    ]


def without_idle(settings: RunSettings) -> RunSettings:
    """The settings with everything that changes nothing at its default."""
    return with_defaults(settings, idle_settings(settings))


def with_defaults(settings: RunSettings, names: Iterable[str]) -> RunSettings:
    """The settings with these fields at their defaults."""
    defaults: dict[str, Any] = {name: SETTING_FIELDS[name].default for name in names}
    return replace(settings, **defaults)


def resolve(settings: RunSettings) -> RunSettings:
    """The settings with a value for every number that was left open and needs no model or documents.

    Left are `max_length`, and `epochs` where the number of documents decides.
    Runs whose resolved settings agree are the same run, so this is what names, rows and resumption compare.
    """
    settings = without_idle(settings)
    defaults: dict[str, Any] = {
        "method": settings.method_row.name,
        "batch_size": settings.documents_per_step,
        "epochs": settings.task_row.epochs,
        "num_virtual_tokens": settings.task_row.num_virtual_tokens,
        "learning_rate": settings.method_row.learning_rate,
        "attention_dropout": settings.dropout,
    }
    return replace(settings, **{name: value for name, value in defaults.items() if getattr(settings, name) is None})
