"""Paths of one machine, shortened to their last component for an archive that is read on other machines."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from prefixprop.settings.run_settings import RunSettings

_DATA_FILES = ("train_files", "dev_files", "test_files")
# The beginning of a path that depends on the machine; `recipes/x.yaml` and `owner/model` do not.
_ROOTED = r"(?:~[^\s/\\'\"]*|\.{1,2}|[A-Za-z]:)?[/\\]"
_FOLDERS = re.compile(rf"(?<![^\s'\"`(\[=,]){_ROOTED}(?:[^\s/\\'\"`]+[/\\]+)*(?=[^\s/\\])")


def settings_without_folders(settings: RunSettings) -> RunSettings:
    """The settings with only the names of data, and of a model in a folder; reports group by these names anyway."""
    changes: dict[str, Any] = {
        name: tuple(_last_component(file) for file in getattr(settings, name)) for name in _DATA_FILES
    }
    if settings.data_dir is not None:
        changes["data_dir"] = _last_component(settings.data_dir)
    if _is_in_a_folder(settings.model):
        changes["model"] = _last_component(settings.model)
    return replace(settings, **changes)


def _is_in_a_folder(model: str) -> bool:
    """Whether a model is given by an absolute path; others are names of the hub, or look like them."""
    return PurePosixPath(model).is_absolute() or PureWindowsPath(model).is_absolute()


def text_without_folders(text: str) -> str:
    """A message with the paths in it shortened.

    >>> text_without_folders("/home/me/dev.jsonl:3: there is no label (see ../docs/x.md, recipes/a.yaml)")
    'dev.jsonl:3: there is no label (see x.md, recipes/a.yaml)'
    """
    return _FOLDERS.sub("", text)


def command_without_folders(command: str) -> str:
    """A command line with the paths among its arguments shortened, also those behind a `=`.

    >>> command_without_folders("/opt/bin/prefixprop sweep recipes/a.yaml --data-dir 'arxiv=/my data/arxiv'")
    'prefixprop sweep recipes/a.yaml --data-dir arxiv=arxiv'
    """
    try:
        arguments = shlex.split(command)
    except ValueError:  # not a line that this package wrote
        return text_without_folders(command)
    return shlex.join(_argument_without_folders(argument) for argument in arguments)


def _argument_without_folders(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if not equals:
        name, value = "", argument
    # Here a path may have spaces, because it is an argument of its own.
    return f"{name}{equals}{_last_component(value) if re.match(_ROOTED, value) else value}"


def _last_component(path: str) -> str:
    return PureWindowsPath(path).name or path  # it knows both kinds of slashes
