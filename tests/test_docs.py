"""The code of the README, the docs and the notebooks runs, the names in them exist, and links lead somewhere."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pkgutil
import re
from pathlib import Path

import pytest

import prefixprop.train  # noqa: F401 - what pages import, once for all of them

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
CODE = {page: "\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))) for page in PAGES}
# In place of the notebook's own numbers, which make it run for minutes.
SMALL = {"TRAIN": 24, "TEST": 8, "MAX_LENGTH": 32, "EPOCHS": 1}
# The same for the README: what is written there, and what runs here.
SMALLER = {"task.train[:200]": "task.train[:40]", "max_length=256": "max_length=32, epochs=1"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(code: str, folder: Path) -> str:
    """What the code prints, in a process of its own, which has imported everything already."""
    printed = folder / "printed"

    def work() -> None:
        os.chdir(folder)
        with printed.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            exec(code, {"__name__": "__main__"})

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(300)
    assert process.exitcode == 0  # its traceback is among what pytest captured
    return printed.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if CODE[page]], ids=name)
def test_code_runs(page: Path, tmp_path: Path) -> None:
    code = CODE[page]
    if page.name == "README.md":
        for written, small in SMALLER.items():
            assert written in code
            code = code.replace(written, small)
    run(code, tmp_path)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    cells = [
        cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    (parameters,) = (cell for cell in cells if "parameters" in cell["metadata"].get("tags", ()))
    assert all(name in "".join(parameters["source"]) for name in SMALL)
    parameters["source"] = [f"{name} = {value}\n" for name, value in SMALL.items()]
    printed = run("\n".join("".join(cell["source"]) for cell in cells), tmp_path)
    # The last cell predicts; what it printed when the notebook was made has the same shape.
    (shown,) = cells[-1]["outputs"]
    assert len(printed.splitlines()[-3:]) == len(shown["text"]) == 3
    assert all("; true: " in line for line in [*printed.splitlines()[-3:], *shown["text"]])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_inside_the_project_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_names_exist(page: Path) -> None:
    """Dotted names, in prose and in code, and what code imports."""
    text = page.read_text(encoding="utf-8")
    imports = re.findall(r"^from (prefixprop[\w.]*) import (.+)$", text, re.MULTILINE)
    dotted = re.findall(r"\bprefixprop(?:\.[A-Za-z_]\w*)+", text)
    imported = [f"{package}.{name.strip()}" for package, names in imports for name in names.split(",")]
    if page.name == "README.md":
        assert "prefixprop.attention.install" in dotted and "prefixprop.models.load_default" in imported
    for mentioned in {*dotted, *imported}:
        pkgutil.resolve_name(mentioned)
