"""What the site shows besides the pages of this folder: settings, notebooks, the changes, and equations as MathML."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from prefixprop.cli.settings_options import help_of
from prefixprop.settings.run_settings import SETTINGS

CHANGES = Path(__file__).parents[1] / "CHANGELOG.md"
EQUATION = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """A page for each notebook, which is the only source of both, one for the changes, and one for the settings."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = as_markdown(json.loads(notebook.content_string), notebook.name)
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=page))
    changes = CHANGES.read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changes))
    files.append(File.generated(config, "reference/settings.md", content=settings_page()))
    return files


def settings_page() -> str:
    """Every setting of a run, from its declaration."""
    parts = ["# Settings", "Each is a key of a recipe and, with dashes, a flag of `prefixprop train`."]
    for group in dict.fromkeys(setting.group for setting in SETTINGS.values()):
        rows = [f"| `{name}` | {help_of(setting)} |" for name, setting in SETTINGS.items() if setting.group == group]
        parts += [f"## {group}", "\n".join(["| key | what it does |", "| --- | --- |", *rows])]
    return "\n\n".join(parts)


def as_markdown(notebook: dict[str, Any], name: str) -> str:
    """The cells of a notebook and what they printed, and where to get it."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join("".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout")
        if printed:
            parts.append(f"```text\n{printed}```")
    parts.insert(1, f'<p><a href="{name}.ipynb" download>This page as a notebook</a></p>')
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links to notebooks lead to their pages. Browsers draw MathML themselves, without a script or a font."""
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # a list of one page; its tables need the room
    markdown = markdown.replace(".ipynb)", ".md)")
    return EQUATION.sub(lambda found: f'<div class="equation">{convert(found[1], display="block")}</div>', markdown)
