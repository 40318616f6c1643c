"""The table of methods in docs/methods.md is the one that benchmarks/parameter_table.py prints."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import parameter_table  # noqa: E402


def test_the_docs_have_the_table() -> None:
    assert parameter_table.table() in (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
