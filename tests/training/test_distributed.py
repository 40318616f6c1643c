"""Two processes on the CPU (gloo) end in the same as one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prefixprop.training import settings_to_yaml, train

from tiny_training import tiny_settings

SOURCE = Path(__file__).parents[2] / "src"

# The documents of a step are the same, but sums over them are formed in another order: float32 rounding, over nine
# steps of AdamW. Dropout is off: each process draws masks of its own.
TOLERANCE = 1e-4


def launch(config: Path, run_dir: Path) -> subprocess.CompletedProcess[str]:
    """`accelerate launch -m prefixprop train` on two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # --cpu would start one process, or need MPI; without a GPU the processes of --multi_gpu are on the CPU.
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launcher += ["--main_process_port", port, "--num_cpu_threads_per_process", "1"]
    command = [*launcher, "-m", "prefixprop", "train", "--config", str(config), "--run-dir", str(run_dir)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=config.parent)


def test_two_processes_end_like_one(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, dropout=0.0, prefix_dropout=0.0, device_batch_size=4)
    (tmp_path / "run.yaml").write_text(settings_to_yaml(settings))
    result = launch(tmp_path / "run.yaml", tmp_path / "two")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Run directory:") == 1, "only the main process speaks"
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
