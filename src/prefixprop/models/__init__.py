"""Models to tune: a default that ships with the package, and a way to lengthen your own."""

from __future__ import annotations

from prefixprop.models.embedded import load_default
from prefixprop.models.lengthen import lengthen

__all__ = ["lengthen", "load_default"]
