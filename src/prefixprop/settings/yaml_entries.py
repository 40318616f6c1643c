"""A YAML file as entries that know their lines, so that errors can name `file:line`."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prefixprop.settings.check import SettingsError

MOST_VALUES = 100_000  # in a file; those behind an alias count as often as it is used
FAST_LOADER: Any = getattr(yaml, "CSafeLoader", None)  # where PyYAML was built with libyaml


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
    if FAST_LOADER is not None:
        # A report reads thousands of runs. The slow loader explains errors better.
        with contextlib.suppress(yaml.YAMLError):
            return _parse(FAST_LOADER(text), path)
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
        _count(node, path, {})
        return _entries(loader, node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, path: Path, counts: dict[yaml.Node, int]) -> int:
    """How many values a node stands for; an alias is the node that it names, whose count is cached."""
    if node not in counts:
        counts[node] = 1  # meanwhile, for a node that contains itself; constructing it is refused
        parts = () if isinstance(node, yaml.ScalarNode) else node.value
        for part in itertools.chain(*parts) if isinstance(node, yaml.MappingNode) else parts:
            counts[node] += _count(part, path, counts)
        if counts[node] > MOST_VALUES:
            raise SettingsError(
                [
                    f"{path}:{node.start_mark.line + 1}: with its aliases (*) written out this is more than "
                    f"{MOST_VALUES:,} values; write what you mean without them."
                ]
            )
    return counts[node]


def _entries(loader: Any, node: yaml.MappingNode) -> tuple[YamlEntry, ...]:
    return tuple(
        YamlEntry(key.start_mark.line + 1, loader.construct_object(key, deep=True), _value(loader, value))
        for key, value in node.value
    )


def _value(loader: Any, node: yaml.Node) -> YamlValue:
    # Before its parts, because this refuses a list or mapping that contains itself.
    plain = loader.construct_object(node, deep=True)
    return YamlValue(
        node.start_mark.line + 1,
        plain,
        tuple(_value(loader, item) for item in node.value) if isinstance(node, yaml.SequenceNode) else None,
        _entries(loader, node) if isinstance(node, yaml.MappingNode) else None,
    )
