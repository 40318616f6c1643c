"""Paths of a machine in what an archive keeps."""

from __future__ import annotations

import pytest

from prefixprop.runs.archived_paths import (
    command_without_folders,
    settings_without_folders,
    text_without_folders,
)
from prefixprop.train import RunSettings


@pytest.mark.parametrize(
    ("text", "shortened"),
    [
        ("/home/me/data/dev.jsonl:3: no label", "dev.jsonl:3: no label"),
        ("no folder '/home/me/data'; see recipes/a.yaml", "no folder 'data'; see recipes/a.yaml"),
        ("--data-dir=../data/arxiv (~/x/y), C:\\Users\\me\\z.csv", "--data-dir=arxiv (y), z.csv"),
        ("~me/x/y.log and ./logs/a.log", "y.log and a.log"),
        ("3 / 4 of owner/model, 1/2, and/or", "3 / 4 of owner/model, 1/2, and/or"),
        ("/", "/"),
    ],
)
def test_messages(text: str, shortened: str) -> None:
    assert text_without_folders(text) == shortened


@pytest.mark.parametrize(
    ("command", "shortened"),
    [
        (
            "/opt/x/__main__.py sweep recipes/a.yaml --runs-dir /tmp/r/a --processes 8",
            "__main__.py sweep recipes/a.yaml --runs-dir a --processes 8",
        ),
        (
            "prefixprop sweep a.yaml --data-dir 'arxiv=/my data/the set'",
            "prefixprop sweep a.yaml --data-dir 'arxiv=the set'",
        ),
        ("prefixprop train --model owner/model --lr=1e-3", "prefixprop train --model owner/model --lr=1e-3"),
        ("it's broken: /home/me/x", "it's broken: x"),
    ],
)
def test_commands(command: str, shortened: str) -> None:
    assert command_without_folders(command) == shortened


def test_settings() -> None:
    settings = RunSettings(
        data_dir="/home/me/arxiv/",
        train_files=("/a/train.jsonl", "b/more.jsonl", "C:\\data\\rest.csv"),
        model="/models/base",
        seed=7,
    )
    assert settings_without_folders(settings) == RunSettings(
        data_dir="arxiv", train_files=("train.jsonl", "more.jsonl", "rest.csv"), model="base", seed=7
    )
    of_the_hub = RunSettings(task="hyperpartisan", model="allenai/longformer-base-4096")
    assert settings_without_folders(of_the_hub) == of_the_hub
