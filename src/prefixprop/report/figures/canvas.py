"""What all pictures share: colours that everyone can tell apart, a new figure, and how it is saved."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixprop.atomic_files import replacing_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of the palette of Okabe & Ito (2008), which colour-blind readers can tell apart.
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
PINK, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"
PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, "#000000")
# Beside the colours, for who prints in grey and for more lines than colours.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_LONGEST_BESIDE = 34  # letters of a legend's name that leave room for another beside it
_LEGEND_LINES, _LINE = 2, 0.17  # of a legend that a figure has room for, and the height of one more in inches

# Without dates and random names, the same picture is the same file.
_METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def style_of(index: int) -> dict[str, str]:
    """Colour and marker of one of several lines; more lines than colours still differ in their markers.

    >>> style_of(0)
    {'color': '#0072B2', 'marker': 'o'}
    """
    return {"color": PALETTE[index % len(PALETTE)], "marker": MARKERS[index % len(MARKERS)]}


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'prefixprop[plots]'.") from error
    return Figure(figsize=(max(width, 4.0), height), layout="constrained", dpi=150)


def legend_below(figure: Figure) -> None:
    """A legend under the axes, where it hides no data; in one column where names are long.

    The figure grows by what a long one takes, so that the axes keep their size.
    """
    names = [name for axis in figure.axes for name in axis.get_legend_handles_labels()[1]]
    columns = 2 if max(map(len, names), default=0) <= _LONGEST_BESIDE else 1
    lines = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + _LINE * max(0, lines - _LEGEND_LINES))
    figure.legend(fontsize=8, loc="outside lower center", ncols=columns, frameon=False)


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """Write the figure to `path`, if given, in the format its ending says, and return it."""
    if path is not None:
        ending = check_ending(path)
        with replacing_file(path) as temporary:
            _write(figure, temporary, ending)
    return figure


def svg_of(figure: Figure) -> str:
    """The figure as the text of an SVG file."""
    stream = BytesIO()
    _write(figure, stream, ".svg")
    return stream.getvalue().decode("utf-8")


def _write(figure: Figure, target: Path | BytesIO, ending: str) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "prefixprop"}):
        figure.savefig(target, format=ending.removeprefix("."), metadata=_METADATA[ending])
    figure.set_layout_engine("none")  # it stays as it was laid out, which takes long, for the next format


def check_ending(path: str | Path) -> str:
    """Return the ending of a picture's name, or raise if no format has it; for who has long work to do before."""
    ending = Path(path).suffix.lower()
    if ending not in _METADATA:
        raise ValueError(
            f"{path}: pictures are written as {', '.join(_METADATA)}; choose a name with such an ending."
        )
    return ending


def plain(text: str) -> str:
    """Return a text such as a label's name so that matplotlib shows it as it is, not as a formula."""
    return text.replace("$", r"\$")
