"""Trackers: refused where they are not installed, and told every epoch's numbers where they are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from transformers.integrations import integration_utils

from prefixprop.train import SettingsError, plan, train

from tiny_training import tiny_settings


def test_the_tracker_gets_every_epoch_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = MagicMock()

    def summary_writer(log_dir: str) -> MagicMock:
        """As TensorBoard's, it makes its folder."""
        Path(log_dir).mkdir(parents=True)
        return writer

    tensorboard = SimpleNamespace(SummaryWriter=summary_writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: True)
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    settings = tiny_settings(tmp_path, epochs=2, kernel="exp", alpha_mode="layer", keep="last")
    run = train(settings, tmp_path / "silent")
    assert not (run.run_dir / "runs").exists() and not writer.add_scalar.called, "without --report-to"

    run = train(replace(settings, report_to=("tensorboard",)), tmp_path / "run")
    assert len(list((run.run_dir / "runs").iterdir())) == 1 and not (run.run_dir / "checkpoints").exists()
    assert writer.close.called
    found = {(step, name): value for name, value, step in (call.args for call in writer.add_scalar.call_args_list)}
    told = ("train/loss", "train/learning_rate", "train/alpha/layer_1", "eval/micro_f1", "eval/ece", "eval/nll")
    assert {(step, name) for step in (3, 6) for name in told} <= found.keys()
    for metric, value in run.metrics["dev"].items():
        assert found[6, f"eval/{metric}"] == pytest.approx(value, abs=1e-6)


def test_trackers_that_are_not_installed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: False)
    with pytest.raises(SettingsError) as raised:
        plan(tiny_settings(tmp_path, report_to=("tensorboard", "nobody")))
    assert [problem.partition("; installed: ")[0] for problem in raised.value.problems] == [
        "--report-to: 'tensorboard' is unknown or its package is not installed",
        "--report-to: 'nobody' is unknown or its package is not installed",
    ]
    assert "tensorboard" not in raised.value.problems[1]
