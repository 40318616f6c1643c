"""Trackers: refused where they are not installed, and told every epoch's numbers where they are."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers.integrations import integration_utils

from prefixprop.train import SettingsError, plan, train

from tiny_training import tiny_settings


class Writer:
    """Stands in for TensorBoard's, and writes what it is told into its folder as that would."""

    def __init__(self, log_dir: str) -> None:
        self.folder = Path(log_dir)
        self.folder.mkdir(parents=True)

    def add_text(self, *_: Any) -> None:
        pass

    def add_scalar(self, name: str, value: float, step: int) -> None:
        with (self.folder / "events").open("a") as file:
            file.write(f"{step} {name} {value!r}\n")

    def flush(self) -> None:
        pass

    def close(self) -> None:
        (self.folder / "closed").touch()


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard, as far as the Trainer's own callback looks at it."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: True)
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)


def scalars(run_dir: Path) -> dict[tuple[int, str], float]:
    (events,) = run_dir.glob("runs/*/events")
    assert (events.parent / "closed").exists()
    lines = [line.split() for line in events.read_text().splitlines()]
    return {(int(step), name): float(value) for step, name, value in lines}


@pytest.mark.usefixtures("tensorboard")
def test_the_tracker_gets_every_epoch_and_keeps_it(tmp_path: Path) -> None:
    settings = tiny_settings(
        tmp_path, epochs=2, kernel="exp", alpha_mode="layer", report_to=("tensorboard",), keep="last"
    )
    run = train(settings, tmp_path / "run")
    found = scalars(run.run_dir)
    told = ("train/loss", "train/learning_rate", "train/alpha/layer_1", "eval/micro_f1", "eval/ece", "eval/nll")
    assert {(step, name) for step in (3, 6) for name in told} <= found.keys()
    for metric, value in run.metrics["dev"].items():
        assert found[6, f"eval/{metric}"] == pytest.approx(value, abs=1e-6)
    assert not (run.run_dir / "checkpoints").exists()


def test_trackers_that_are_not_installed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: False)
    with pytest.raises(SettingsError) as raised:
        plan(tiny_settings(tmp_path, report_to=("tensorboard", "nobody")))
    assert [problem.partition("; installed: ")[0] for problem in raised.value.problems] == [
        "--report-to: 'tensorboard' is unknown or its package is not installed",
        "--report-to: 'nobody' is unknown or its package is not installed",
    ]
    assert "tensorboard" not in raised.value.problems[1]
