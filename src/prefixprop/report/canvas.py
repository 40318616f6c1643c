"""What all figures share: colours that everyone can tell apart, new axes, and how a figure is saved."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixprop.atomic_files import replacing_file
from prefixprop.optional_packages import import_optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of the palette of Okabe & Ito (2008), which colour-blind readers can tell apart; the markers are for print in grey.
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
_PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
# Without dates and random names, the same figure is the same file.
_METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def style_of(index: int) -> dict[str, Any]:
    """Colour and marker of one of several lines; more lines than colours still differ in their markers."""
    return {"color": _PALETTE[index % len(_PALETTE)], "marker": _MARKERS[index % len(_MARKERS)]}


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of this size in inches."""
    module = import_optional("matplotlib.figure", "Figures", extra="report")
    figure: Figure = module.Figure(figsize=(max(width, 4.0), height), layout="constrained", dpi=150)
    return figure


def new_axes(
    xlabel: str, ylabel: str, width: float = 4.8, height: float = 3.6, title: str | None = None
) -> tuple[Figure, Any]:
    """A figure with one pair of axes and a grid."""
    figure = new_figure(width, height)
    axes = figure.subplots()
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.set_title(plain(title or ""), fontsize=10)
    axes.grid(alpha=0.3)
    return figure, axes


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """Write the figure to `path`, if given, in the format its ending says, and return it."""
    if path is not None:
        ending = check_ending(path)
        with replacing_file(path) as temporary:
            _write(figure, temporary, ending)
    return figure


def svg_of(figure: Figure) -> bytes:
    """The figure as an SVG file, without a background."""
    stream = BytesIO()
    _write(figure, stream, ".svg", transparent=True)
    return stream.getvalue()


def _write(figure: Figure, target: Path | BytesIO, ending: str, transparent: bool = False) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "prefixprop"}):
        figure.savefig(target, format=ending.removeprefix("."), metadata=_METADATA[ending], transparent=transparent)
    figure.set_layout_engine("none")  # it stays as it was laid out, which takes long, for the next format


def check_ending(path: str | Path) -> str:
    """Return the ending of a figure's name, or raise if no format has it; for who has long work to do before."""
    ending = Path(path).suffix.lower()
    if ending not in _METADATA:
        raise ValueError(f"{path}: figures are written as {', '.join(_METADATA)}; choose a name with such an ending.")
    return ending


def plain(text: str) -> str:
    """Return a text such as a label's name so that matplotlib shows it as it is, not as a formula."""
    return text.replace("$", r"\$")
