"""`prefixprop tasks`."""

from __future__ import annotations

import pytest

from prefixprop.cli.tasks import tasks
from prefixprop.data import TASKS


def test_lists_every_task(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    tasks()
    printed = capsys.readouterr().out
    assert {"hyperpartisan", "newsgroups", "arxiv"} <= set(TASKS)
    for source in TASKS.values():
        row = next(line for line in printed.splitlines() if f" {source.name} " in line)
        for cell in (source.summary, source.origin, source.metric):
            assert cell in row
    assert "--data-dir" in printed and ".parquet" in printed
