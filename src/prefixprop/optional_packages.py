"""Packages that only some users need: imported where they are used, with a plain message if they are missing."""

from __future__ import annotations

import importlib
from typing import Any


def import_optional(module: str, purpose: str, extra: str | None = None) -> Any:
    """Import `module`; if its package is not installed, say what it is for and how to install it.

    `extra` is the extra of prefixprop that installs it, in a version that works.

    >>> parquet = import_optional("pyarrow.parquet", "Parquet files")
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wanted = package if extra is None else f"'prefixprop[{extra}]'"
        raise ImportError(f"{purpose} need the package {package}: pip install {wanted} ({error}).") from error
