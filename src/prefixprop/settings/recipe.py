"""Settings as YAML: recipes are read, the resolved settings of a run are written."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from prefixprop.settings.check import TEXTS, SettingsError, close_match, field_type, value_problem
from prefixprop.settings.run_settings import SETTING_FIELDS, RunSettings, flag_of
from prefixprop.settings.yaml_entries import read_entries

ALIASES = {
    declared.metadata["alias"]: name for name, declared in SETTING_FIELDS.items() if declared.metadata["alias"]
}


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings that a YAML file names; `SettingsError` has all of its problems, each with `file:line`.

    >>> settings = override(RunSettings(), read_settings("recipes/hyperpartisan.yaml"))
    """
    values: dict[str, Any] = {}
    problems = []
    for entry in read_entries(Path(path)):
        location = f"{path}:{entry.line}"
        name = setting_name(entry.key)
        if name is None:
            problems.append(f"{location}: {unknown_setting(entry.key)}")
            continue
        if name in values:
            problems.append(f"{location}: {entry.key!r} is set twice; keep one of the lines.")
        values[name] = as_declared(name, entry.value.plain)
        problem = value_problem(name, values[name])
        if problem is not None:
            problems.append(f"{location}: {entry.key}: {problem}")
    if problems:
        raise SettingsError(problems)
    return values


def setting_name(key: Any) -> str | None:
    """The field that a key of a YAML file means, None if there is none."""
    name = ALIASES.get(str(key), str(key)).replace("-", "_")
    return name if name in SETTING_FIELDS else None


def unknown_setting(key: Any, *other_keys: str) -> str:
    """A sentence about a key that is neither a setting nor one of the other keys that the file may have."""
    known = (*other_keys, *SETTING_FIELDS, *ALIASES)
    hint = close_match(str(key).replace("-", "_"), known) or f"; the settings are {', '.join(known)}"
    return f"there is no setting {key!r}{hint}."


def override(settings: RunSettings, values: Mapping[str, Any]) -> RunSettings:
    """The settings with some of them changed; names that do not exist raise `SettingsError`."""
    unknown = [name for name in values if name not in SETTING_FIELDS]
    if unknown:
        raise SettingsError([f"There is no setting {name!r}{close_match(name, SETTING_FIELDS)}." for name in unknown])
    return replace(settings, **{name: as_declared(name, value) for name, value in values.items()})


def settings_to_yaml(settings: RunSettings) -> str:
    """All settings, in groups, as YAML that `read_settings` reads."""
    lines: list[str] = []
    group = None
    values = asdict(settings)
    for name, declared in SETTING_FIELDS.items():
        if declared.metadata["group"] != group:
            group = declared.metadata["group"]
            lines += ["", f"# {group}"] if lines else [f"# {group}"]
        value = list(values[name]) if isinstance(values[name], tuple) else values[name]
        lines.append(yaml.safe_dump({name: value}, allow_unicode=True, width=1000).strip())
    return "\n".join(lines) + "\n"


def has_all_settings(path: Path) -> bool:
    """Whether a file names every setting, as the output of `settings_to_yaml` does, unlike a recipe."""
    try:
        return set(read_settings(path)) >= set(SETTING_FIELDS)
    except (OSError, ValueError):
        return False


def differences(one: RunSettings, other: RunSettings) -> list[str]:
    """Flags of the settings that differ, except those that may differ when a run is resumed."""
    return [
        f"{flag_of(name)} (was {getattr(one, name)!r}, now {getattr(other, name)!r})"
        for name, declared in SETTING_FIELDS.items()
        if not declared.metadata["resumable"] and getattr(one, name) != getattr(other, name)
    ]


def as_declared(name: str, value: Any) -> Any:
    """A YAML or flag value in the type of the field, if only the spelling differs."""
    expected, _ = field_type(name)
    if expected == TEXTS:
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value
    if expected is float and isinstance(value, (str, int)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)  # YAML 1.1 reads 5e-3, which has no dot, as text
    return value
