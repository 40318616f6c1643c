"""The check that needs a GPU says so where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "check_gpu.py"


def test_without_a_gpu() -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2
    assert "needs an NVIDIA GPU" in result.stderr and "Traceback" not in result.stderr
