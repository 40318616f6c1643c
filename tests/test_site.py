"""The site builds without a warning, asks nothing of other servers, and its reference has the public names."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
PACKAGES = re.findall(
    r"^::: (prefixprop(?:\.[a-z]+)?)$", "".join(page.read_text() for page in REFERENCE), re.MULTILINE
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]* src=\"([^\"]+)|<link[^>]* href=\"([^\"]+)")
    found = {(page.name, *link) for page in pages for link in loaded.findall(page.read_text(encoding="utf-8"))}
    assert len(found) > len(pages)
    assert not [link for link in found if "//" in "".join(link[1:])]


def test_notebooks_equations_and_changes_are_pages(site: Path) -> None:
    notebook = (site / "tutorials" / "own-files.html").read_text(encoding="utf-8")
    assert "load_run" in notebook and "TF-IDF:" in notebook and 'href="own-files.ipynb"' in notebook
    methods = (site / "methods.html").read_text(encoding="utf-8")
    assert "<math" in methods and "$$" not in methods
    assert "0.2.0" in (site / "changelog.html").read_text(encoding="utf-8")


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    shown = {found.rpartition(".")[2] for found in re.findall(r'id="(prefixprop\.[\w.]+)"', text)}
    packages = [importlib.import_module(package) for package in PACKAGES]
    public = {
        name
        for package in packages
        for name in getattr(package, "__all__", ())
        if inspect.isclass(getattr(package, name)) or inspect.isfunction(getattr(package, name))
    }
    assert len(public) > 100
    assert public - shown == set()
    # From the declarations of settings, one of which is known at run time only.
    assert "Your training set" in text and "Passes over the training set." in text
