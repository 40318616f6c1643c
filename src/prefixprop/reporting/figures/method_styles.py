"""Which name, colour and marker a method has, the same in every picture and for every task."""

from __future__ import annotations

from collections import Counter

from prefixprop.reporting.choose.comparisons import Comparison, Contender
from prefixprop.reporting.figures.canvas import style_of
from prefixprop.settings.methods import METHODS


def method_styles(comparison: Comparison) -> list[dict[str, str]]:
    """Colour and marker of every row: that of its method, and one of the others where a row before has it already.

    A method keeps its own on the model that most rows have, so that a single run on another model does not change
    the colours of a whole picture.
    """
    rows = comparison.contenders
    most = Counter(row.model for row in rows).most_common(1)[0][0]
    places: dict[int, int] = {}
    for number in sorted(range(len(rows)), key=lambda number: rows[number].model != most):
        own = list(METHODS).index(rows[number].best.settings.method)
        places[number] = own if own not in places.values() else max(len(METHODS) - 1, *places.values()) + 1
    return [style_of(places[number]) for number in range(len(rows))]


def picture_name(comparison: Comparison, contender: Contender, separator: str = ", ") -> str:
    """The method, and where models differ the model, without who made it: pictures have little room."""
    if len(comparison.models) == 1:
        return contender.method
    return f"{contender.method}{separator}{contender.model.rsplit('/', 1)[-1]}"
