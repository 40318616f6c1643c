"""Kernels compile for NVIDIA GPUs with the Triton that is installed: the interpreter does not tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("compile_kernels.py")
KERNELS = """
_differentiate DROPOUT=False
_differentiate DROPOUT=True
_differentiate_all DROPOUT=False
_differentiate_all DROPOUT=True
_list_tokens
_normalise DROPOUT=False
_normalise DROPOUT=True
_prefix_part DROPOUT=False KERNEL=exp ALPHA=fixed
_prefix_part DROPOUT=False KERNEL=poly ALPHA=query
_prefix_part DROPOUT=False KERNEL=rbf ALPHA=head
_prefix_part DROPOUT=True KERNEL=exp ALPHA=fixed
_prefix_part DROPOUT=True KERNEL=poly ALPHA=query
_prefix_part DROPOUT=True KERNEL=rbf ALPHA=head
_prefix_part_backward DROPOUT=True KERNEL=exp ALPHA=fixed
_prefix_part_backward DROPOUT=True KERNEL=poly ALPHA=query
_prefix_part_backward DROPOUT=True KERNEL=rbf ALPHA=head
always_visible_keys_backward DROPOUT=True
dropped_add_back
dropped_down_gradient
dropped_lora_down
geglu_kernel BACKWARD=False
geglu_kernel BACKWARD=True
global_keys_backward DROPOUT=True ADD=False
global_keys_backward DROPOUT=True ADD=True
global_rows BACKWARD=False DROPOUT=False
global_rows BACKWARD=False DROPOUT=True
global_rows BACKWARD=True DROPOUT=True
local_rows BACKWARD=False DROPOUT=False
local_rows BACKWARD=False DROPOUT=True
local_rows BACKWARD=True DROPOUT=True
move_rows BACKWARD=False
move_rows BACKWARD=True
project_rows ADD=False
project_rows ADD=True
rope_kernel BACKWARD=False
rope_kernel BACKWARD=True
row_deltas
window_keys_backward DROPOUT=True
""".strip().splitlines()
LEAST_SHARED = 99 * 1024  # what a block may have on a GeForce since Ampere (8.6); data centre cards have more


def test_all_kernels_compile(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SCRIPT), "86", "bfloat16", "64"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    shared = dict(line.split(": ") for line in done.stdout.splitlines())
    assert list(shared) == KERNELS
    assert max(map(int, shared.values())) <= LEAST_SHARED
