"""What a run takes of a cluster, and clusters that cannot be had; none is started here."""

from __future__ import annotations

import socket
import sys

import pytest

from prefixprop.sweep import RayEngine
from prefixprop.sweep.engines.ray_cluster import Resources


@pytest.mark.parametrize(
    ("cpus", "gpus", "nodes", "room"),
    [
        (1, 0, [{"CPU": 4.0}, {"CPU": 2.0}], 6),
        (2, 0, [{"CPU": 3.0}, {"CPU": 1.0}], 1),
        (1, 1, [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0}], 2),
        (1, 0.1, [{"CPU": 64.0, "GPU": 1.0}], 10),
        (1, 0.4, [{"CPU": 64.0, "GPU": 4.0}], 8),
        (4, 0.25, [{"CPU": 8.0, "GPU": 1.0}], 2),
    ],
)
def test_room(cpus: int, gpus: float, nodes: list[dict[str, float]], room: int) -> None:
    assert Resources(cpus, gpus).room(nodes) == room


def test_gpus_are_used_where_there_are_any() -> None:
    with_gpu, without = [{"CPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}], [{"CPU": 1.0}]
    assert Resources(1, None).resolved(with_gpu).gpus_per_run == 1
    assert Resources(1, None).resolved(without).gpus_per_run == 0
    assert Resources(1, 0).resolved(with_gpu).gpus_per_run == 0


def test_what_no_single_node_has() -> None:
    with pytest.raises(ValueError, match=r"no node has 4 CPUs and 1 GPUs together\. .*8 CPUs and 0 GPUs, 2 "):
        Resources(4, 1).check_room([{"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}])


def test_numbers_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="--cpus-per-run: must be at least 1, got 0"):
        RayEngine(cpus_per_run=0)
    for gpus in (2, -1, float("nan")):
        with pytest.raises(ValueError, match=f"--gpus-per-run: must be 0, or from 0.01 to 1, got {gpus}"):
            RayEngine(gpus_per_run=gpus)


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"need the package ray: pip install 'prefixprop\[ray\]'"):
        RayEngine()


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port", ":0"])
def test_no_address(address: str) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(ValueError, match="--ray-address: expected HOST:PORT"):
        RayEngine(address)


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening
        port = unused.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"no Ray cluster at 127.0.0.1:{port} .*ray start --head"):
            RayEngine(f"127.0.0.1:{port}")
