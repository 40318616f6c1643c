"""The check that needs a GPU says so where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import check_gpu


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["check_gpu.py"])
    assert check_gpu.main() == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
