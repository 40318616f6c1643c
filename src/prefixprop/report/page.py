"""A report as one HTML page that needs nothing else: the findings of every task first, details folded away.

Tables sort by a click, and the pictures are inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from prefixprop.report.figures.canvas import BLUE, GREEN, PINK, SKY, VERMILION, svg_of
from prefixprop.report.figures.gallery import Picture
from prefixprop.report.tables.markup import to_html
from prefixprop.report.tables.table import Table, capitalised, with_units

# The colours of pictures follow the page's. On a dark page those of the palette are lightened, in the same hue, until
# they stand out from it and from each other.
_ON_DARK = {BLUE: "#3D9BE0", VERMILION: "#E8662A", GREEN: "#2CC79A", PINK: "#E39BC5", SKY: "#A6DCFF"}
_VARIABLES = {colour: f"--series-{index}" for index, colour in enumerate(_ON_DARK)}
_LIGHT_SERIES = " ".join(f"{name}: {colour};" for colour, name in _VARIABLES.items())
_DARK_SERIES = " ".join(f"{name}: {_ON_DARK[colour]};" for colour, name in _VARIABLES.items())
_THEMED = {
    "#000000": "currentColor",
    "#ffffff": "var(--paper)",
    **{colour.lower(): f"var({name})" for colour, name in _VARIABLES.items()},
}

_COLOURS = f"""
:root {{ color-scheme: light dark;
  --ink: #1a1a1a; --paper: #ffffff; --line: #d0d0d0; --soft: #f3f5f7; --dim: #5a5a5a; {_LIGHT_SERIES} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e8e8e8; --paper: #15181b; --line: #3c4146; --soft: #20252a; --dim: #a8a8a8;
    {_DARK_SERIES} }}
}}
"""
_STYLE = """
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h3 { margin-top: 2rem; }
a { color: inherit; }
.wide { overflow-x: auto; }
nav { font-size: 0.9rem; }
.finding { font-size: 1.1rem; max-width: 60rem; }
details { margin: 0.5rem 0; }
summary { cursor: pointer; font-weight: 600; }
details.note summary { font-weight: 400; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.4rem; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { background: var(--soft); vertical-align: bottom; white-space: normal; }
th.text, td.text { text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; z-index: 1; }
td:first-child { background: var(--paper); }
td.text { white-space: normal; }
td.long { min-width: min(28rem, 60vw); }
td.text span { white-space: nowrap; }
td:first-child { min-width: min(7rem, 25vw); }
th.paper, td.paper { color: var(--dim); font-style: italic; border-left: 1px dashed var(--line); }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid currentColor; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
li, .note { overflow-wrap: anywhere; }
.note { margin: 0.4rem 0; color: var(--dim); font-size: 0.85rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: 0.5rem; border: 1px solid var(--line); min-width: 0; }
figure svg { display: block; width: 100%; height: auto; max-height: 36rem; fill: currentColor; }
figcaption { font-size: 0.85rem; overflow-wrap: anywhere; }
"""

# Cells carry what they are sorted by; empty ones stay last in either direction.
_SCRIPT = """
for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, table = head.closest("table"), body = table.tBodies[0];
    const index = head.cellIndex, isText = head.classList.contains("text");
    const [first, second] = isText ? ["ascending", "descending"] : ["descending", "ascending"];
    const wanted = head.getAttribute("aria-sort") === first ? second : first;
    for (const other of table.querySelectorAll("th")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", wanted);
    const direction = wanted === "ascending" ? 1 : -1;
    const key = (row) => row.cells[index].dataset.key;
    const compare = (a, b) => {
      if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
      return direction * (isText ? key(a).localeCompare(key(b)) : Number(key(a)) - Number(key(b)));
    };
    body.append(...[...body.rows].sort(compare));
  });
}
"""


def html_page(
    tables: Sequence[Table], pictures: Sequence[Picture] = (), remarks: Sequence[str] = (), summary: str = ""
) -> str:
    """The whole page, with the sections that tables and pictures name, in their order."""
    sections = list(dict.fromkeys([*(one.section for one in tables), *(one.section for one in pictures)]))
    parts = [f"<h1>Report on runs</h1>\n<p>{escape(summary)}</p>"]
    if remarks:
        items = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
        parts.append(_folded(f"Notes ({len(remarks)})", f"<ul>{items}</ul>"))
    if len(sections) > 1:
        links = (f'<a href="#section-{number}">{escape(name)}</a>' for number, name in enumerate(sections))
        parts.append(f"<nav>{' · '.join(links)}</nav>")
    for number, name in enumerate(sections):
        parts.append(f'<section id="section-{number}">\n<h2>{escape(name)}</h2>')
        parts += _section(
            [table for table in tables if table.section == name],
            [picture for picture in pictures if picture.section == name],
        )
        parts.append("</section>")
    content = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Report on runs</title>\n'
        f"<style>{_COLOURS}{_STYLE}</style>\n</head>\n<body>\n<main>\n{content}\n</main>\n<script>{_SCRIPT}</script>\n"
        "</body>\n</html>\n"
    )


def _section(tables: Sequence[Table], pictures: Sequence[Picture]) -> Iterator[str]:
    """What is open first, and then what is folded away."""
    for table in tables:
        if not table.fold:
            yield from (f'<p class="finding">{escape(with_units(finding))}</p>' for finding in table.findings)
            yield _titled(table)
    if shown := [picture for picture in pictures if not picture.fold]:
        yield _figures(shown)
    folds = dict.fromkeys([*(table.fold for table in tables), *(picture.fold for picture in pictures)])
    for fold in filter(None, folds):
        inside = [_titled(table) for table in tables if table.fold == fold]
        if folded := [picture for picture in pictures if picture.fold == fold]:
            inside.append(_figures(folded))
        yield _folded(fold, "\n".join(inside))


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def _titled(table: Table) -> str:
    return f"<h3>{escape(_short_title(table))}</h3>\n{to_html(table)}"


def _short_title(table: Table) -> str:
    """The title without what the heading of the section says already."""
    return capitalised(table.title.removeprefix(table.section).lstrip(",: "))


def _figures(pictures: Sequence[Picture]) -> str:
    drawn = "\n".join(map(_figure, pictures))
    return f'<div class="pictures">\n{drawn}\n</div>'


def _figure(picture: Picture) -> str:
    caption = escape(picture.caption)
    svg = _inline_svg(picture).replace("<svg ", f'<svg role="img" aria-label="{caption}" ', 1)
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _inline_svg(picture: Picture) -> str:
    """The picture as an SVG element to stand among others in one page, in the page's colours."""
    text = svg_of(picture.figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'style="[^"]*"', lambda style: _in_theme(style[0]), text)
    # A page may have an id once only, and every picture of matplotlib has a `figure_1`.
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{picture.name}-", text)


def _in_theme(style: str) -> str:
    return re.sub("|".join(_THEMED), lambda colour: _THEMED[colour[0]], style)
