"""Commands on two processes of this machine's CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def launch_two(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`accelerate launch -m prefixprop ...` on two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # --cpu would start one process, or need MPI; without a GPU the processes of --multi_gpu are on the CPU.
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launcher += ["--main_process_port", port, "--num_cpu_threads_per_process", "1"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}
    command = [*launcher, "-m", "prefixprop", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
