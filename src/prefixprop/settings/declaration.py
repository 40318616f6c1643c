"""How settings are declared: one line gives a setting its type, bounds, help, flag and key in a recipe.

A class of settings is a frozen pydantic dataclass. Making one checks every value; `SettingsError` names all problems,
each with its flag.
"""

from __future__ import annotations

import contextlib
import difflib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import PydanticCustomError

TEXTS = tuple[str, ...]
Declared = TypeVar("Declared")


class SettingsError(ValueError):
    """Settings that cannot be used; `problems` has one sentence for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Setting:
    """A declared setting.

    Attributes:
        kind: Its type, without None.
        group: The heading it has in help.
        choices: The values it can have; users' modules (`--import`) add to some tables.
        alias: A second, short name.
        resumable: Whether it may change when a run is resumed, because results do not depend on it.
    """

    name: str
    kind: Any
    default: Any
    group: str
    describe: str | Callable[[], str]
    choices: Iterable[str] | None
    alias: str | None
    resumable: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def help(self) -> str:
        return self.describe if isinstance(self.describe, str) else self.describe()


def setting(
    default: Any,
    group: str,
    help: str | Callable[[], str],
    choices: Iterable[str] | None = None,
    alias: str | None = None,
    resumable: bool = False,
    **bounds: float,
) -> Any:
    """Declare a setting; `bounds` are pydantic's `ge`, `gt`, `le` and `lt`."""
    details = {"group": group, "describe": help, "choices": choices, "alias": alias, "resumable": resumable}
    options: dict[str, Any] = {"json_schema_extra": details, **bounds}
    return Field(default, **options)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings_class(cls: type[Declared]) -> type[Declared]:
    """Make a class of `setting` declarations one whose values are checked."""
    config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
    made: Any = pydantic_dataclass(frozen=True, kw_only=True, config=config)(cls)
    checked = made.__init__

    def __init__(self: Any, **values: Any) -> None:
        try:
            checked(self, **values)
        except ValidationError as error:
            raise SettingsError(_told(error, declared(made))) from None

    made.__init__ = __init__
    return made


@cache
def declared(cls: Any) -> dict[str, Setting]:
    """The settings that a class declares, in their order."""
    hints = typing.get_type_hints(cls)
    return {
        name: Setting(name, _without_none(hints[name]), field.default, **field.json_schema_extra)
        for name, field in cls.__pydantic_fields__.items()
    }


def problem_of(cls: type, name: str, value: Any) -> str | None:
    """What is wrong with one value of a setting, if anything is."""
    try:
        as_declared(cls, name, value)
    except SettingsError as error:
        return error.problems[0].partition(": ")[2]
    return None


def as_declared(cls: type, name: str, value: Any) -> Any:
    """A value in the type of the setting, such as a list for a single text; `SettingsError` if it cannot be."""
    return getattr(cls(**{name: value}), name)


def close_match(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` if a known word is close, otherwise nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@settings_class
class Settings:
    """What all settings share: values are taken as recipes and flags spell them, and choices are checked."""

    @field_validator("*", mode="before")
    @classmethod
    def _as_declared(cls, value: Any, info: ValidationInfo) -> Any:
        kind = declared(cls)[str(info.field_name)].kind  # type: ignore[arg-type]
        if kind == TEXTS:
            return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
        if kind is float and isinstance(value, str):
            with contextlib.suppress(ValueError):
                return float(value)  # YAML 1.1 reads 5e-3, which has no dot, as text
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _is_known(cls, value: Any, info: ValidationInfo) -> Any:
        choices = declared(cls)[str(info.field_name)].choices  # type: ignore[arg-type]
        if value is None or choices is None or value in (known := list(choices)):
            return value
        told = f"{value!r} is unknown{close_match(value, known)}; choose one of {', '.join(known)}."
        raise PydanticCustomError("choice", "{told}", {"told": told})


def _told(error: ValidationError, known: Mapping[str, Setting]) -> Iterator[str]:
    """What is wrong with each setting."""
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0])
        if name not in known:
            yield f"There is no setting {name!r}{close_match(name, known)}."
            continue
        said = problem["msg"].replace("Input should be", "must be").replace("a valid tuple", "a list of texts")
        got = "" if problem["type"] == "choice" else f", got {repr(problem['input'])[:40]}."
        yield f"{known[name].flag}: {said}{got}"


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return hint
