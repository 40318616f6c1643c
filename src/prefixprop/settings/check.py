"""Checks of settings: all problems at once, each with the flag and what it may be."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from prefixprop.settings.run_settings import SETTING_FIELDS, Limits, RunSettings, flag_of


class SettingsError(ValueError):
    """Settings that cannot be run; `problems` has one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


def check_settings(settings: RunSettings, processes: int = 1) -> None:
    """Raise `SettingsError` with everything that is wrong, if anything is."""
    problems = [
        f"{flag_of(name)}: {problem}"
        for name in SETTING_FIELDS
        if (problem := value_problem(name, getattr(settings, name))) is not None
    ]
    # Fields can only be checked together if each of them makes sense.
    problems = problems or list(_joint_problems(settings, processes))
    if problems:
        raise SettingsError(problems)


def value_problem(name: str, value: Any) -> str | None:
    """What is wrong with the value of a field, if anything is."""
    expected, optional = field_type(name)
    if value is None:
        return None if optional else f"needs {DESCRIPTIONS[expected]}."
    if not _is_of_type(value, expected):
        return f"must be {DESCRIPTIONS[expected]}, got {value!r}."
    limits: Limits = SETTING_FIELDS[name].metadata["limits"]
    if limits.choices is not None and value not in (choices := tuple(limits.choices())):
        known = f"{value!r} is unknown{close_match(value, choices)}; choose one of {', '.join(choices)}."
        return f"{known} {limits.hint}".rstrip()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _range_problem(value, limits)
    return None


def close_match(word: str, known: typing.Iterable[str]) -> str:
    """` (did you mean 'x'?)` if a known word is close, otherwise nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


TEXTS = tuple[str, ...]
DESCRIPTIONS: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    TEXTS: "a list of texts",
}


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(RunSettings)


def field_type(name: str) -> tuple[Any, bool]:
    """The type of a field, and whether it may be None."""
    hint = _hints()[name]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
        return inner, True
    return hint, False


def _is_of_type(value: Any, expected: Any) -> bool:
    if expected == TEXTS:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool):
        return expected is bool
    if expected is float:
        return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, expected)


def _range_problem(value: float, limits: Limits) -> str | None:
    bounds = (
        (limits.low, "at least", lambda bound: value >= bound),
        (limits.above, "more than", lambda bound: value > bound),
        (limits.high, "at most", lambda bound: value <= bound),
        (limits.below, "less than", lambda bound: value < bound),
    )
    stated = [(f"{words} {bound:,}", holds(bound)) for bound, words, holds in bounds if bound is not None]
    if all(fits for _, fits in stated):
        return None
    return f"must be {' and '.join(words for words, _ in stated)}, got {value!r}."


def _joint_problems(settings: RunSettings, processes: int) -> Iterator[str]:
    yield from _source_problems(settings)
    yield from _fold_problems(settings)
    if settings.lora_targets == ():
        yield "--lora-targets: name at least one layer, such as query."
    if settings.keep_checkpoints and not settings.keep_weights:
        yield "--keep-checkpoints: checkpoints are weights, and --no-keep-weights keeps none; leave one of them out."
    at_once = settings.device_batch_size * processes
    if settings.documents_per_step % at_once:
        several = f" on each of {processes} processes" if processes > 1 else ""
        yield (
            f"--batch-size: {settings.documents_per_step} documents per step cannot be made of whole batches of "
            f"--device-batch-size {settings.device_batch_size}{several}; choose a multiple of {at_once}."
        )


def _source_problems(settings: RunSettings) -> Iterator[str]:
    sources = {"task": settings.task, "train_files": settings.train_files, "hub_dataset": settings.hub_dataset}
    given = [flag_of(name) for name, value in sources.items() if value]
    if len(given) != 1:
        flags = ", ".join(flag_of(name) for name in sources)
        yield f"Give one source of data, one of {flags}" + (f"; got {' and '.join(given)}." if given else ".")
    needed = {
        "data_dir": "task",
        "dev_files": "train_files",
        "test_files": "train_files",
        "hub_config": "hub_dataset",
    }
    for name, source in needed.items():
        if getattr(settings, name) and not sources[source]:
            yield f"{flag_of(name)}: belongs to {flag_of(source)}, which is not given."
    if settings.data_dir is not None and not Path(settings.data_dir).is_dir():
        yield f"--data-dir: {settings.data_dir} is not a folder."
    for name in ("train_files", "dev_files", "test_files"):
        for file in getattr(settings, name):
            if not (Path(file).is_file() or Path(file).is_dir()):
                yield f"{flag_of(name)}: {file}: there is no such file or folder."


def _fold_problems(settings: RunSettings) -> Iterator[str]:
    if settings.folds is not None and settings.fold is None:
        yield f"--fold: --folds is {settings.folds}, so say which is left out: 0 to {settings.folds - 1}."
    if settings.fold is not None and settings.folds is None:
        yield "--folds: --fold is given, so say how many there are: at least 2."
    if settings.folds is not None and settings.fold is not None and settings.fold >= settings.folds:
        yield f"--fold: of {settings.folds} --folds the last is {settings.folds - 1}, got {settings.fold}."
