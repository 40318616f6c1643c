"""Connecting to a Ray cluster, and whether it has room for a run."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.optional_packages import import_optional

_SECONDS_TO_ANSWER = 10
_SMALLEST_SHARE = 0.01
# Runs go through files, so that Ray itself has next to nothing to store; its default is a third of the memory.
_OBJECT_STORE_BYTES = 100 * 2**20


@dataclass(frozen=True)
class Resources:
    """What a run takes of a node: whole CPUs, and a GPU, a share of one, or none."""

    cpus_per_run: int
    gpus_per_run: float | None

    def __post_init__(self) -> None:
        if self.cpus_per_run < 1:
            raise ValueError(f"--cpus-per-run: must be at least 1, got {self.cpus_per_run}.")
        share = self.gpus_per_run
        if share and not _SMALLEST_SHARE <= share <= 1:
            raise ValueError(
                f"--gpus-per-run: must be 0, or from {_SMALLEST_SHARE:g} to 1, got {share:g}; a run computes on one "
                "GPU, and with 0.5 two runs share one."
            )

    @property
    def gpus_of_run(self) -> float:
        return self.gpus_per_run or 0.0

    def resolved(self, nodes: Sequence[dict[str, float]]) -> Resources:
        """With a number of GPUs, also where it was left to the cluster."""
        if self.gpus_per_run is not None:
            return self
        return replace(self, gpus_per_run=1.0 if any(node.get("GPU", 0) for node in nodes) else 0.0)

    def room(self, nodes: Sequence[dict[str, float]]) -> int:
        """How many runs the nodes have room for at once, if nobody else uses them."""
        return sum(self._room_on(node) for node in nodes)

    def check_room(self, nodes: Sequence[dict[str, float]]) -> None:
        """Raise if no node has what a run takes, for which it would wait for ever."""
        if self.room(nodes):
            return
        problems = []
        if all(node.get("CPU", 0) < self.cpus_per_run for node in nodes):
            problems.append(f"--cpus-per-run: no node has {self.cpus_per_run} CPUs")
        if all(node.get("GPU", 0) < self.gpus_of_run for node in nodes):
            problems.append(f"--gpus-per-run: no node has {self.gpus_of_run:g} GPUs")
        both = f"no node has {self.cpus_per_run} CPUs and {self.gpus_of_run:g} GPUs together"
        has = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise ValueError(f"{'; '.join(problems) or both}. The nodes of the cluster have: {has or 'nothing'}.")

    def _room_on(self, node: dict[str, float]) -> int:
        room = int(node.get("CPU", 0) // self.cpus_per_run)
        if self.gpus_of_run:
            # A share is of one GPU: two of 0.6 do not fit on one, and what is left of two is no third. The product
            # with a share such as 0.1 may come out a little below the whole number it is.
            room = min(room, int(node.get("GPU", 0)) * math.floor(1 / self.gpus_of_run + 1e-6))
        return room


def connect(address: str | None) -> Any:
    """The package ray, connected to the cluster at `address`, or to one of this machine that is started for it."""
    ray = import_optional("ray", "Sweeps with --engine ray", extra="ray")
    if ray.is_initialized():
        raise RuntimeError("This process already uses a Ray cluster; call ray.shutdown() first.")
    if address is not None and address != "auto":
        _check_answers(address)
    start: dict[str, Any] = (
        {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        if address is None
        else {"address": address}
    )
    _let_ray_speak(ray, False)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **start)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        disconnect(ray)
        where = "on this machine" if address in (None, "auto") else f"at {address}"
        raise RuntimeError(f"--ray-address: there is no Ray cluster {where} to be used: {error}") from error
    return ray


def disconnect(ray: Any) -> None:
    ray.shutdown()
    _let_ray_speak(ray, True)


def _check_answers(address: str) -> None:
    """Raise if nobody listens at the address, for whom Ray would wait a quarter of an hour."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"--ray-address: expected HOST:PORT, as `ray start --head` prints it, or auto, got {address!r}. The "
            "sweep itself has to run on a node of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise RuntimeError(
            f"--ray-address: there is no Ray cluster at {address} ({error.strerror or error}); start one with "
            "`ray start --head`, or leave the option out to use this machine alone."
        ) from error


def _let_ray_speak(ray: Any, allowed: bool) -> None:
    """Ray prints pages about every dead node into the progress table, and only its own debugger may stop that."""
    ray._private.worker._worker_logs_enabled = allowed
