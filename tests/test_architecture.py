"""The rooms are those of docs/architecture.md, and each uses only rooms below it there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "prefixprop"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def test_every_room_has_a_line_and_stands_in_the_picture() -> None:
    assert sorted(ROOMS) == sorted(folder.parent.name for folder in PACKAGE.glob("*/__init__.py"))
    picture = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    assert all(f">{room}</text>" in picture for room in ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_only_rooms_below_it(room: str) -> None:
    above = set(ROOMS[: ROOMS.index(room)])
    upwards = {
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in (PACKAGE / room).rglob("*.py")
        for module in _imported(ast.parse(path.read_text(encoding="utf-8")))
        if module.split(".")[1] in above
    }
    assert not upwards


def _imported(tree: ast.AST) -> Iterator[str]:
    """Modules of the package, those that are imported late or for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith("prefixprop."))
