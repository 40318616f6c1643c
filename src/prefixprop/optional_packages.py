"""Packages that only some users need: imported where they are used, with a plain message if they are missing."""

from __future__ import annotations

import importlib
from typing import Any


def import_optional(module: str, purpose: str) -> Any:
    """Import `module`; where its package is not installed, say what it is needed for and how to get it.

    >>> parquet = import_optional("pyarrow.parquet", "Parquet files")
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} need the package {package}: pip install {package} ({error}).") from error
