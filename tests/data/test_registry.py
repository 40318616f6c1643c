from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixprop.data import TASKS, load_hyperpartisan, load_task


def test_every_task_says_what_it_is() -> None:
    assert {"hyperpartisan", "newsgroups", "arxiv"} <= set(TASKS)
    for name, source in TASKS.items():
        assert source.name == name
        assert source.summary and "\n" not in source.summary and source.origin
        assert source.metric in {"micro_f1", "accuracy"} and source.max_length == 4096


def test_a_task_is_loaded_by_its_name() -> None:
    assert load_task("hyperpartisan") == load_hyperpartisan()


def test_a_task_is_loaded_from_a_folder(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        lines = [json.dumps({"text": f"paper {label}", "label": label}) for label in ("cs.AI", "cs.CV")]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    assert load_task("arxiv", str(tmp_path)).label_names == ("cs.AI", "cs.CV")


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(ValueError, match="Unknown task 'newsgroup'; choose one of hyperpartisan, newsgroups, arxiv"):
        load_task("newsgroup")
