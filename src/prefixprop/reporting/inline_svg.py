"""Pictures inside a page: as SVG elements whose colours follow the page's, light or dark."""

from __future__ import annotations

import io
import re

from prefixprop.reporting.figures.canvas import BLUE, GREEN, PALETTE, PINK, SKY, VERMILION
from prefixprop.reporting.figures.gallery import Picture

# On a dark page the colours of the palette are lightened, in the same hue, until they are apart from it and another.
_ON_DARK = {BLUE: "#3D9BE0", VERMILION: "#E8662A", GREEN: "#2CC79A", PINK: "#E39BC5", SKY: "#A6DCFF"}
_FIXED = {"#000000": "currentColor", "#ffffff": "var(--paper)"}
_VARIABLES = {colour.lower(): f"--series-{place}" for place, colour in enumerate(PALETTE) if colour in _ON_DARK}
_COLOUR = re.compile("|".join(map(re.escape, [*_FIXED, *_VARIABLES])))


def colour_style(dark: bool) -> str:
    """The declarations of the variables that pictures are coloured by."""
    names = {colour: _VARIABLES[colour.lower()] for colour in _ON_DARK}
    return " ".join(f"{name}: {_ON_DARK[colour] if dark else colour};" for colour, name in names.items())


def svg_of(picture: Picture) -> str:
    """The picture as an SVG element to stand among others in one page, without ids that they have too."""
    from matplotlib import rc_context

    stream = io.BytesIO()
    with rc_context({"svg.hashsalt": "prefixprop"}):
        picture.figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'style="[^"]*"', lambda style: _COLOUR.sub(_themed, style[0]), text)
    # A page may have an id once only, and every picture of matplotlib has a `figure_1`.
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{picture.name}-", text)


def _themed(colour: re.Match[str]) -> str:
    return _FIXED.get(colour[0]) or f"var({_VARIABLES[colour[0]]})"
