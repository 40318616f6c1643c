"""`prefixprop cache`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from prefixprop.cli.app import app
from prefixprop.data.cache import entries, stored


def test_shows_and_clears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXPROP_CACHE", str(tmp_path / "cache"))
    runner = CliRunner(env={"COLUMNS": "180"})
    assert runner.invoke(app, ["cache"]).output == f"{tmp_path / 'cache'}: 0 entries, 0.0 MB\n"
    stored("tokens", "key", lambda writer: writer.append("zeros", np.zeros(2_500_000, dtype=np.uint8)))
    shown = runner.invoke(app, ["cache"]).output
    assert entries()[0].path.name in shown and f"{tmp_path / 'cache'}: 1 entry, 2.5 MB\n" in shown
    assert runner.invoke(app, ["cache", "--clear"]).output.endswith("1 entry, 2.5 MB removed\n")
    assert entries() == []
