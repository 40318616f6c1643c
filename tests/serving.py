"""A service in a thread of this process, at a real socket."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from command_line import wait_until
from prefixprop.serve.app import bound_socket, create_app, new_server
from prefixprop.serve.encoder import Encoder, EncoderProcess

from tiny_runs import make_run


def make_runs(folder: Path) -> dict[str, Path]:
    """Two runs of readers and one of another kind, on one encoder."""
    base = {"model": str(folder / "tone" / "base")}
    options: dict[str, dict[str, Any]] = {
        "tone": {"method": "prefix-reading"},
        "topic": {"method": "prefix-reading", "weights": 8, "label_names": ("no", "yes"), **base},
        "tuned": {"method": "prefix-tuning", "weights": 9, **base},
    }
    made = {name: make_run(folder / name, family="roberta", **own) for name, own in options.items()}
    return {name: run.rename(run.with_name(name)) for name, run in made.items()}


@contextlib.contextmanager
def served(encoder: Encoder | EncoderProcess, *arguments: Any, **options: Any) -> Iterator[httpx.Client]:
    """A client of an application with this encoder and these further arguments."""
    bound = bound_socket("127.0.0.1", 0)
    server = new_server(create_app(encoder, *arguments, **options), finish_seconds=5)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    wait_until(lambda: server.started)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{bound.getsockname()[1]}", timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
        bound.close()
