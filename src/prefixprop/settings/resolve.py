"""From what a user says to what a run does: settings that change nothing are dropped, open ones are the paper's.

A rank without LoRA changes nothing, nor an alpha without a kernel. One rule: such a setting goes back to its default.
Whoever typed it for this very run is told so as an error; a recipe may serve several methods, so there it is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.settings.check import SettingsError
from prefixprop.settings.methods import METHODS, owners
from prefixprop.settings.run_settings import SETTING_FIELDS, RunSettings, flag_of


@dataclass(frozen=True)
class _Scope:
    """Where the fields of these names have an effect, and what that is called."""

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
    _Scope(lambda settings: not settings.answers_questions, "tasks that classify documents", ("pooling",)),
    _Scope(
        lambda settings: settings.task is None,
        "--train-files and --hub-dataset",
        ("text_column", "label_column", "id_column"),
    ),
)


def idle_settings(settings: RunSettings) -> dict[str, str]:
    """The fields that change nothing in such a run, each with what it belongs to."""
    idle = {name: scope.owner for scope in _SCOPES if not scope.holds(settings) for name in scope.names}
    own = METHODS[settings.method].options
    others = {name: f"--method {' and '.join(owners(name))}" for name in SETTING_FIELDS if owners(name)}
    return idle | {name: owner for name, owner in others.items() if name not in own}


def refuse_idle(settings: RunSettings, given: Iterable[str]) -> None:
    """Raise `SettingsError` if one of the `given` fields changes nothing: whoever typed it expects that it does."""
    idle = idle_settings(settings)
    problems = [
        f"{flag_of(name)}: belongs to {idle[name]}, and would change nothing here; leave it out."
        for name in given
        if name in idle
    ]
    if problems:
        raise SettingsError(problems)


def idle_notes(settings: RunSettings) -> list[str]:
    """A sentence for every setting that was changed and changes nothing."""
    return [
        f"{name} belongs to {owner}, and changes nothing here"
        for name, owner in idle_settings(settings).items()
        if getattr(settings, name) != SETTING_FIELDS[name].default
    ]


def without_idle(settings: RunSettings) -> RunSettings:
    """The settings with whatever changes nothing as it is by default."""
    return with_defaults(settings, idle_settings(settings))


def with_defaults(settings: RunSettings, names: Iterable[str]) -> RunSettings:
    """The settings with these fields as they are by default."""
    defaults: dict[str, Any] = {name: SETTING_FIELDS[name].default for name in names}
    return replace(settings, **defaults)


def resolve(settings: RunSettings) -> RunSettings:
    """The settings with every number that was left open, except `max_length`, which needs the model.

    Runs whose resolved settings agree are the same run, so this is what names, rows and resumption compare.
    """
    settings = without_idle(settings)
    defaults: dict[str, Any] = {
        "epochs": settings.task_row.epochs,
        "num_virtual_tokens": settings.task_row.num_virtual_tokens,
        "learning_rate": METHODS[settings.method].learning_rate,
        "attention_dropout": settings.dropout,
    }
    return replace(settings, **{name: value for name, value in defaults.items() if getattr(settings, name) is None})
