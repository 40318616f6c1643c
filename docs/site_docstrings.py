"""Docstrings as the site's reference shows them: examples as code, the help of a dataclass's fields as a table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from griffe import Class, Extension, Module, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class SiteDocstrings(Extension):
    def on_package(self, *, pkg: Module, **_: Any) -> None:
        for one in _everything_in(pkg):
            if not one.docstring:
                continue
            one.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", one.docstring.value)
            rows = (
                [f"    {name}: {text}" for name, text in dict(_fields(one)).items()] if isinstance(one, Class) else []
            )
            if rows:
                one.docstring.value += "\n".join(["\n\nAttributes:", *rows])


def _everything_in(one: Object) -> Iterator[Object]:
    yield one
    for member in one.members.values():
        if isinstance(member, Object):  # not a name for something elsewhere
            yield from _everything_in(member)


def _fields(cls: Class) -> Iterator[tuple[str, str]]:
    """The fields that have a help, with those of a base in the same module."""
    for base in cls.bases:
        parent = cls.module.members.get(str(base))
        if isinstance(parent, Class):
            yield from _fields(parent)
    for name, attribute in cls.attributes.items():
        if text := _help(ast.parse(str(attribute.value), mode="eval").body):
            yield name, text


def _help(declared: ast.expr) -> str | None:
    """What the metadata of a field says of it."""
    match declared:
        case ast.Call(func=ast.Name("field"), keywords=[*_, ast.keyword("metadata", ast.Dict(values=[text]))]):
            return ast.literal_eval(text)
    return None
