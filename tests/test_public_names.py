"""Every name that the README and the docs mention exists."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_the_docs_are_there(page: Path) -> None:
    for name in _mentioned(page.read_text(encoding="utf-8")):
        pkgutil.resolve_name(name)


def test_names_are_found_in_prose_and_in_code() -> None:
    found = _mentioned(PAGES[0].read_text(encoding="utf-8"))
    assert {"prefixprop.attention.install", "prefixprop.models.load_default"} <= found


def _mentioned(text: str) -> set[str]:
    """Dotted names, in prose and in code, and what code imports."""
    dotted = set(re.findall(r"\bprefixprop(?:\.[A-Za-z_]\w*)+", text))
    imports = re.findall(r"^from (prefixprop[\w.]*) import (.+)$", text, re.MULTILINE)
    return dotted | {f"{package}.{name.strip()}" for package, names in imports for name in names.split(",")}
