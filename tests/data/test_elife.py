from __future__ import annotations

from pathlib import Path

import pytest

from prefixprop.data import load_task
from prefixprop.data.elife_articles import Article, write_split


def test_a_folder_of_built_files(tmp_path: Path) -> None:
    found = [Article(number, "2021", (name,), "", "", "Text." * 4000) for number, name in enumerate(["B", "A"])]
    for split in ("train", "dev", "test"):
        write_split(tmp_path / f"{split}.jsonl.xz", found)
    task = load_task("elife", tmp_path)
    assert task.name == "elife" and task.label_names == ("A", "B")
    assert [(one.id, one.label, len(one.text)) for one in task.test] == [
        ("elife-00000", 1, 20_000),
        ("elife-00001", 0, 20_000),
    ]


def test_without_files_the_error_names_the_command_that_builds_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--data-dir FOLDER with train\.jsonl\.xz.*`prefixprop build-elife CLONE"):
        load_task("elife")
    with pytest.raises(FileNotFoundError, match=r"there is no train\. .*`prefixprop build-elife CLONE FOLDER`"):
        load_task("elife", tmp_path)
