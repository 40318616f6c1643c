"""Two processes on the CPU (gloo) end in the same as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launching import launch_two
from prefixprop.train import settings_to_yaml, train

from tiny_training import tiny_settings

# The documents of a step are the same, but sums over them are formed in another order: float32 rounding, over nine
# steps of AdamW. Dropout is off: each process draws masks of its own.
TOLERANCE = 1e-4


def test_two_processes_end_like_one(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, dropout=0.0, prefix_dropout=0.0, device_batch_size=4)
    (tmp_path / "run.yaml").write_text(settings_to_yaml(settings))
    printed = launch_two(
        tmp_path, "train", "--config", str(tmp_path / "run.yaml"), "--run-dir", str(tmp_path / "two")
    )
    assert printed.count("Run directory:") == 1, "only the main process speaks"
    one = train(settings, tmp_path / "one").metrics
    two = json.loads((tmp_path / "two" / "metrics.json").read_text())
    for split in ("dev", "test", "dev_calibrated", "test_calibrated"):
        assert two[split] == pytest.approx(one[split], abs=TOLERANCE), split
    assert two["best_epoch"] == one["best_epoch"]
    histories = [
        [json.loads(line) for line in (tmp_path / run / "history.jsonl").read_text().splitlines()]
        for run in ("one", "two")
    ]
    for line, other in zip(*histories, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], abs=TOLERANCE)
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2
    names = {path.name for path in (tmp_path / "two").iterdir()}
    assert names == {path.name for path in (tmp_path / "one").iterdir()}
