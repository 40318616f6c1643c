"""Settings as YAML: recipes are read, with errors that name `file:line`, and a run's settings are written."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from prefixprop.settings.declaration import SettingsError, close_match, problem_of
from prefixprop.settings.run_settings import SETTINGS, RunSettings

ALIASES = {setting.alias: name for name, setting in SETTINGS.items() if setting.alias}
_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", None)  # where PyYAML was built with libyaml


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
        values[name] = entry.value.plain
        if (problem := problem_of(RunSettings, name, entry.value.plain)) is not None:
            problems.append(f"{location}: {entry.key}: {problem}")
    if problems:
        raise SettingsError(problems)
    return values


def setting_name(key: Any) -> str | None:
    """The setting that a key of a YAML file means, None if there is none."""
    name = ALIASES.get(str(key), str(key)).replace("-", "_")
    return name if name in SETTINGS else None


def unknown_setting(key: Any, *other_keys: str) -> str:
    """A sentence about a key that is neither a setting nor one of the other keys that the file may have."""
    known = (*other_keys, *SETTINGS, *ALIASES)
    hint = close_match(str(key).replace("-", "_"), known) or f"; the settings are {', '.join(known)}"
    return f"there is no setting {key!r}{hint}."


def override(settings: RunSettings, values: Mapping[str, Any]) -> RunSettings:
    """The settings with some of them changed; what does not exist or cannot be raises `SettingsError`."""
    return replace(settings, **values)


def settings_to_yaml(settings: RunSettings) -> str:
    """All settings, in groups, as YAML that `read_settings` reads."""
    lines: list[str] = []
    group = None
    values = asdict(settings)
    for name, setting in SETTINGS.items():
        if setting.group != group:
            group = setting.group
            lines += ["", f"# {group}"] if lines else [f"# {group}"]
        value = list(values[name]) if isinstance(values[name], tuple) else values[name]
        lines.append(yaml.safe_dump({name: value}, allow_unicode=True, width=1000).strip())
    return "\n".join(lines) + "\n"


# --- YAML with the numbers of its lines ---------------------------------------------------------------------------


@dataclass(frozen=True)
class YamlValue:
    """A value: as plain Python, and for a list its items and for a mapping its entries, each with its line."""

    line: int
    plain: Any
    items: tuple[YamlValue, ...] | None = None
    entries: tuple[YamlEntry, ...] | None = None


@dataclass(frozen=True)
class YamlEntry:
    """A key of a mapping with its value, and the line of the key."""

    line: int
    key: Any
    value: YamlValue


def read_entries(path: Path) -> tuple[YamlEntry, ...]:
    """The entries of a file that holds one mapping; `SettingsError` for any other file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError([f"{path}: the file cannot be read ({error.strerror}); check its path."]) from error
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: the text is not UTF-8 ({error}); save the file as UTF-8."]) from error
    if _FAST_LOADER is not None:
        # A report reads thousands of runs. The slow loader explains errors better.
        with contextlib.suppress(yaml.YAMLError):
            return _parse(_FAST_LOADER(text), path)
    try:
        return _parse(yaml.SafeLoader(text), path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise SettingsError([f"{path}{line}: broken YAML: {getattr(error, 'problem', None) or error}."]) from error


def _parse(loader: Any, path: Path) -> tuple[YamlEntry, ...]:
    try:
        node = loader.get_single_node()
        if node is None:
            return ()
        if not isinstance(node, yaml.MappingNode):
            raise SettingsError([f"{path}:{node.start_mark.line + 1}: expected lines such as 'epochs: 10'."])
        _refuse_aliases(node, path, set())
        return _entries(loader, node)
    finally:
        loader.dispose()


def _refuse_aliases(node: yaml.Node, path: Path, seen: set[int]) -> None:
    """An alias (*) is the very node that its anchor (&) names; a few of them can stand for billions of values."""
    if id(node) in seen:
        line = node.start_mark.line + 1
        raise SettingsError([f"{path}:{line}: aliases (*) are not read here; write the value again."])
    seen.add(id(node))
    parts = () if isinstance(node, yaml.ScalarNode) else node.value
    for part in (item for pair in parts for item in pair) if isinstance(node, yaml.MappingNode) else parts:
        _refuse_aliases(part, path, seen)


def _entries(loader: Any, node: yaml.MappingNode) -> tuple[YamlEntry, ...]:
    return tuple(
        YamlEntry(key.start_mark.line + 1, loader.construct_object(key, deep=True), _value(loader, value))
        for key, value in node.value
    )


def _value(loader: Any, node: yaml.Node) -> YamlValue:
    return YamlValue(
        node.start_mark.line + 1,
        loader.construct_object(node, deep=True),
        tuple(_value(loader, item) for item in node.value) if isinstance(node, yaml.SequenceNode) else None,
        _entries(loader, node) if isinstance(node, yaml.MappingNode) else None,
    )
