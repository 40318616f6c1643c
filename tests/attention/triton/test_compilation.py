"""Kernels compile for NVIDIA GPUs with the Triton that is installed: the interpreter does not tell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
from prefixprop.attention import triton

SCRIPT = Path(__file__).with_name("compile_kernels.py")
LEAST_SHARED = 99 * 1024  # what a block may have on a GeForce since Ampere (8.6); data centre cards have more


def test_all_kernels_compile(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SCRIPT), "86", "bfloat16", "64"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    shared = dict(line.split(": ") for line in done.stdout.splitlines())
    sources = (path.read_text(encoding="utf-8") for path in Path(triton.__file__).parent.glob("*.py"))
    kernels = {name for source in sources for name in re.findall(r"TritonKernel\((?:\w+\.)?(\w+)\)", source)}
    assert {variant.split()[0] for variant in shared} == kernels
    assert len(shared) == 41  # with dropout and without, forward and backward, kernels of Eq. 3
    assert max(map(int, shared.values())) <= LEAST_SHARED
