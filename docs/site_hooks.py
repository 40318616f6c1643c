"""Pages that are made from other files: settings, commands, notebooks, changes, protocol. Equations become MathML."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from prefixprop.cli.app import app, help_of
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.settings.declaration import declared
from prefixprop.settings.run_settings import SETTINGS

ROOT = Path(__file__).parents[1]
EQUATION = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """A page for each notebook, for three files of the repository, for the settings and for the commands."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = as_markdown(json.loads(notebook.content_string), notebook.name)
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=page))
    pages = {"reference/settings.md": settings_page(), "reference/cli.md": commands_page()}
    for source in (ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "PROTOCOL.md"):
        text = source.read_text(encoding="utf-8").replace("](docs/", "](")
        pages[source.name.lower()] = text.replace("](CHANGELOG.md)", "](changelog.md)")
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def commands_page() -> str:
    """Every command with its help, arguments and options; the settings of `train` have their own page."""
    parts = ["# Command line", "The flags of `train` that are settings are [on their own page](settings.md)."]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        text, _, example = (command.help or "").replace("\b", "").partition("Example: ")
        parts += [f"## prefixprop {name}", text, f"```sh\n{' '.join(example.split())}\n```"]
        shown = [parameter for parameter in command.params if getattr(parameter, "help", None)]
        names = [one.opts[0] if one.param_type_name == "option" else one.metavar for one in shown]
        rows = [f"| `{name}` | {one.help}{_default(one)} |" for name, one in zip(names, shown, strict=True)]
        if name == "lengthen":
            settings, own = declared(LengthenSettings), {one.name for one in shown}
            rows += [f"| `{one.flag}` | {help_of(one)} |" for one in settings.values() if one.name not in own]
        if rows:
            parts.append("\n".join(["| option | meaning |", "| --- | --- |", *rows]))
    return "\n\n".join(parts)


def _default(option: Any) -> str:
    is_value = isinstance(option.default, str | int | float) and not isinstance(option.default, bool)
    return f" Default: {option.default}." if is_value else ""


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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files lead to their pages. Browsers draw MathML themselves, without a script or a font."""
    markdown = markdown.replace(".ipynb)", ".md)").replace("](../results/PROTOCOL.md", "](protocol.md")
    return EQUATION.sub(lambda found: f'<div class="equation">{convert(found[1], display="block")}</div>', markdown)
