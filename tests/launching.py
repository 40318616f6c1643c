"""Commands on two processes of this machine's CPU."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from pathlib import Path

from accelerate.state import AcceleratorState

from prefixprop.cli import main


def launch_two(folder: Path, *arguments: str) -> str:
    """What `prefixprop ...` prints on two processes that know of each other as `torchrun` and `accelerate` tell them.

    They are forked, which saves them the imports.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    printed = folder / "printed"

    def work(rank: int) -> None:
        os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank), "COLUMNS": "120"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
        AcceleratorState._reset_state(reset_partial_state=True)  # runs before this one had one process
        sys.stdout = printed.open("a", encoding="utf-8")
        sys.argv = ["prefixprop", *arguments]
        main()

    processes = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]  # pytest shows what they wrote to standard error
    return printed.read_text(encoding="utf-8")
