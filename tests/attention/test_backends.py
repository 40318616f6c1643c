"""Which backend serves, and what is said where one cannot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from prefixprop import attention
from prefixprop.attention import backends

from tiny import batch, tiny_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forget_the_gpu() -> Iterator[None]:
    """What a test pretends is not remembered."""
    backends.is_modern_gpu.cache_clear()
    yield
    backends.is_modern_gpu.cache_clear()


def test_unknown_name_lists_the_names() -> None:
    with pytest.raises(ValueError, match="backend='flash' is unknown; choose one of auto, sdpa, triton"):
        attention.install(tiny_model(), backend="flash")


def test_triton_without_a_gpu_lists_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HAS_TRITON", True)
    monkeypatch.setattr(backends, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = tiny_model()
    with pytest.raises(
        ValueError,
        match=r"backend='triton' needs an NVIDIA GPU of compute capability 8.0 or later; .* has: auto, sdpa",
    ):
        attention.install(model, backend="triton")
    assert not hasattr(model.longformer, "attention_patch")  # left as it was


def test_triton_without_the_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HAS_TRITON", False)
    with pytest.raises(ValueError, match=r"needs the package triton.*pip install triton.*has: auto, sdpa"):
        attention.install(tiny_model(), backend="triton")
    assert backends.choose("auto", CPU) == backends.choose("sdpa", CPU)


def test_model_that_left_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed where there was a GPU, run on the CPU."""
    monkeypatch.setattr(backends, "HAS_TRITON", True)
    model = tiny_model()
    inputs = batch(model, [9])
    monkeypatch.setattr(backends, "INTERPRETED", True)
    attention.install(model, backend="triton")
    monkeypatch.setattr(backends, "INTERPRETED", False)
    with pytest.raises(
        RuntimeError, match=r"needs an NVIDIA GPU of .* or later, and the model is on cpu; move the model, or call"
    ):
        model(**inputs)


@pytest.mark.parametrize("name", [None, "auto"])
def test_plain_pytorch_serves_the_cpu(name: str | None) -> None:
    """Even where Triton could, in its interpreter, which is for tests."""
    pytest.importorskip("triton")
    assert backends.choose(name, CPU) == backends.choose("sdpa", CPU) != backends.choose("triton", CPU)


@pytest.mark.parametrize(("capability", "served"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_older_gpus_are_served_by_plain_pytorch(
    capability: tuple[int, int], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(backends, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    gpu = torch.device("cuda", 0)
    assert backends.is_modern_gpu() == backends.is_modern_gpu(gpu) == served
    assert (backends.choose("auto", gpu) != backends.choose("sdpa", gpu)) == served
    if not served:
        with pytest.raises(ValueError, match=r"needs an NVIDIA GPU of compute capability 8.0 or later"):
            attention.install(tiny_model(), backend="triton")
