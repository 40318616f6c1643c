"""What a run records of the code it was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from prefixprop.train.run import describe_environment


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, whatever repository is above it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("PREFIXPROP_COMMIT", raising=False)
    return tmp_path


def recorded() -> Any:
    return describe_environment(1, torch.device("cpu"), 1)["git"]


def git(*arguments: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_and_what_differs_from_it(folder: Path) -> None:
    git("init", "--quiet")
    (folder / "code.py").write_text("1\n")
    git("add", "code.py")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")
    assert recorded() == {"commit": commit, "changed": False}
    names = []
    for content in (b"2\n", b"in Latin-1: \xe9\n", b"2\n"):
        (folder / "code.py").write_bytes(content)
        found = recorded()
        assert (found["commit"], found["changed"]) == (commit, True)
        names.append(found["difference"])
    assert names[0] == names[2] != names[1], "the same changes have the same name"


def test_without_a_repository_a_variable_or_a_file_has_the_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recorded() is None
    (folder / "COMMIT").write_text("abc123\n")
    assert recorded() == {"commit": "abc123", "changed": None}
    monkeypatch.setenv("PREFIXPROP_COMMIT", "def456")
    assert recorded() == {"commit": "def456", "changed": None}
