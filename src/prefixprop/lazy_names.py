"""Names of a package whose modules are imported when a name is asked for: PyTorch and peft take seconds to load."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
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
