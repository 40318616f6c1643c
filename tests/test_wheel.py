"""The wheel installs in a fresh environment, and its command trains and predicts there without the repository."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import prefixprop

ROOT = Path(__file__).parents[1]
MOST_BYTES = 48_000_000
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def run(*command: str | Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist", ".", folder=folder)
    (built,) = (folder / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel. Other packages are those of this one: to install them takes minutes."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, folder=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    return folder


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "prefixprop", f"prefixprop-{prefixprop.__version__}.dist-info",
    }  # fmt: skip
    assert {"py.typed", "__init__.pyi", "report/templates/page.html"} <= {name.partition("/")[2] for name in names}
    assert wheel.stat().st_size < MOST_BYTES


def test_it_trains_and_predicts_in_an_empty_folder(environment: Path, tmp_path: Path) -> None:
    shown = run(
        environment / "bin" / "python", "-c", "import prefixprop; print(prefixprop.__file__)", folder=tmp_path
    )
    assert Path(shown.strip()).is_relative_to(environment)

    command = environment / "bin" / "prefixprop"
    assert run(command, "--version", folder=tmp_path).strip() == prefixprop.__version__
    assert "hyperpartisan" in run(command, "tasks", folder=tmp_path)
    with (tmp_path / "letters.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        rows.writerows(
            [f"Please {verb} letter {number}.", verb] for number in range(8) for verb in ("answer", "burn")
        )
    few = ("--max-length", "16", "--epochs", "1", "--batch-size", "8", "--method", "readers")
    run(command, "train", "--train-files", "letters.csv", *few, "--run-dir", "run", folder=tmp_path)
    answers = run(command, "predict", "run", "letters.csv", folder=tmp_path).splitlines()
    assert len(answers) == 16 and {json.loads(answer)["label"] for answer in answers} <= {"answer", "burn"}


def test_one_version_everywhere() -> None:
    versions = {
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
        yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"],
        prefixprop.__version__,
    }
    assert len(versions) == 1
    assert f"\n## {versions.pop()} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
