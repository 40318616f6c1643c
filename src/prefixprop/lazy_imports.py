"""Imports that wait until they are needed.

PyTorch and peft take seconds to load, and `--help` needs neither. Some packages only some users have.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str | None]) -> Callable[[str], Any]:
    """The package's `__getattr__`: `homes` has the module of every name, or None for one that is a module itself."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        if home is None:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(f"{package}.{home}"), name)

    return get


class _Finder(MetaPathFinder):
    """Comes before the standard finders until peft is imported; then it removes itself."""

    def __init__(self, module: str) -> None:
        self.module = module

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "peft" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load: Any = spec.loader.exec_module

            def load_and_follow(peft: ModuleType) -> None:
                load(peft)
                importlib.import_module(self.module)

            spec.loader.exec_module = load_and_follow  # type: ignore[assignment, method-assign]
        return spec


def after_peft(module: str) -> None:
    """Import `module` right after peft."""
    sys.meta_path.insert(0, _Finder(module))


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
