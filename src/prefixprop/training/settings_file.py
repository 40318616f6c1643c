"""Settings as YAML: recipes are read, the resolved settings of a run are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from prefixprop.training.settings import SETTING_FIELDS, RunSettings, flag_of
from prefixprop.training.settings_check import TEXTS, SettingsError, close_match, field_type, value_problem

ALIASES = {
    declared.metadata["alias"]: name for name, declared in SETTING_FIELDS.items() if declared.metadata["alias"]
}


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings that a YAML file names; whatever is wrong in it is told at once, each with `file:line`.

    >>> settings = override(RunSettings(), read_settings("recipes/hyperpartisan.yaml"))
    """
    entries = _entries(Path(path))
    values: dict[str, Any] = {}
    problems = []
    for line, key, value in entries:
        place = f"{path}:{line}"
        name = ALIASES.get(str(key), str(key)).replace("-", "_")
        if name not in SETTING_FIELDS:
            known = (*SETTING_FIELDS, *ALIASES)
            hint = close_match(name, known) or f"; the settings are {', '.join(known)}"
            problems.append(f"{place}: there is no setting {key!r}{hint}.")
            continue
        if name in values:
            problems.append(f"{place}: {key!r} is set twice; keep one of the lines.")
        value = _as_declared(name, value)
        problem = value_problem(name, value)
        if problem is not None:
            problems.append(f"{place}: {key}: {problem}")
        values[name] = value
    if problems:
        raise SettingsError(problems)
    return values


def override(settings: RunSettings, values: Mapping[str, Any]) -> RunSettings:
    """The settings with some of them changed; names that do not exist raise `SettingsError`."""
    unknown = [name for name in values if name not in SETTING_FIELDS]
    if unknown:
        raise SettingsError([f"There is no setting {name!r}{close_match(name, SETTING_FIELDS)}." for name in unknown])
    return replace(settings, **{name: _as_declared(name, value) for name, value in values.items()})


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


def differences(one: RunSettings, other: RunSettings) -> list[str]:
    """Flags of the settings that differ, but for those that may differ when a run is resumed."""
    return [
        f"{flag_of(name)} (was {getattr(one, name)!r}, now {getattr(other, name)!r})"
        for name, declared in SETTING_FIELDS.items()
        if not declared.metadata["resumable"] and getattr(one, name) != getattr(other, name)
    ]


def _entries(path: Path) -> list[tuple[int, Any, Any]]:
    """Line, key and value of every entry of the mapping that the file is."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError([f"{path}: the file cannot be read ({error.strerror}); check --config."]) from error
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: the text is not UTF-8 ({error}); save the file as UTF-8."]) from error
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return []
        if not isinstance(node, yaml.MappingNode):
            raise SettingsError([f"{path}:{node.start_mark.line + 1}: expected lines such as 'epochs: 10'."])
        return [
            (key.start_mark.line + 1, loader.construct_object(key, deep=True), loader.construct_object(value, True))
            for key, value in node.value
        ]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise SettingsError([f"{path}{line}: broken YAML: {getattr(error, 'problem', None) or error}."]) from error
    finally:
        loader.dispose()


def _as_declared(name: str, value: Any) -> Any:
    """A YAML or flag value in the field's own type, where that is only a matter of spelling."""
    expected, _ = field_type(name)
    if expected == TEXTS:
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value
    if expected is float:
        if isinstance(value, str):  # YAML 1.1 takes 5e-3, which has no dot, for text
            try:
                return float(value)
            except ValueError:
                return value
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return value
