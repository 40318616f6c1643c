"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from prefixprop.report.canvas import svg_of
from prefixprop.report.table import capitalised

if TYPE_CHECKING:
    from prefixprop.report.report import Report


def html_page(report: Report) -> str:
    """The whole page, with the figures inside. Texts from runs and documents are always escaped."""
    loader = PackageLoader("prefixprop.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["units"] = lambda text: re.sub(" (?=[%↑↓])", "\u00a0", text)
    environment.filters["without"] = lambda text, start: capitalised(text.removeprefix(start).lstrip(",: "))
    environment.filters["svg"] = lambda figure: base64.b64encode(svg_of(figure)).decode()
    return environment.get_template("page.html").render(report=report, zip=zip)
