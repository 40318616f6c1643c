"""Connecting to a Ray cluster, or starting one on this machine, with problems told in a sentence."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from typing import Any

from prefixprop.lazy_imports import import_optional

_SECONDS_TO_ANSWER = 10
# Results go through files, so Ray has next to nothing to store; by default it reserves a third of the memory.
_OBJECT_STORE_BYTES = 100 * 2**20


def connect(address: str | None, purpose: str) -> Any:
    """The package ray, connected to the cluster at `address`, or to a new one on this machine."""
    ray = import_optional("ray", purpose, extra="ray")
    if ray.is_initialized():
        raise RuntimeError("This process already uses a Ray cluster; call ray.shutdown() first.")
    if address is not None and address != "auto":
        _check_answers(address)
    start: dict[str, Any] = {"address": address}
    if address is None:
        start = {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    _let_ray_print(ray, False)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **start)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        disconnect(ray)
        where = "on this machine" if address in (None, "auto") else f"at {address}"
        raise RuntimeError(f"--ray-address: there is no usable Ray cluster {where}: {error}") from error
    return ray


def disconnect(ray: Any) -> None:
    """End the connection; Ray's handler of SIGTERM, which it would leave behind, ends with it."""
    ray.shutdown()
    _let_ray_print(ray, True)
    handler = signal.getsignal(signal.SIGTERM)
    if (
        str(getattr(handler, "__module__", "")).startswith("ray.")
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def live_nodes(ray: Any) -> list[dict[str, float]]:
    """The resources of each live node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _check_answers(address: str) -> None:
    """Raise if nothing listens at the address: Ray would wait a quarter of an hour for it."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"--ray-address: expected HOST:PORT, as `ray start --head` prints it, or auto, got {address!r}. The "
            "command itself has to run on a node of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise RuntimeError(
            f"--ray-address: there is no Ray cluster at {address} ({error.strerror or error}); start one with "
            "`ray start --head`, or leave the option out to use this machine alone."
        ) from error


def _let_ray_print(ray: Any, allowed: bool) -> None:
    """Ray prints pages about every dead node into the progress table, and only this private switch stops it."""
    ray._private.worker._worker_logs_enabled = allowed
