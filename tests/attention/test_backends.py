"""Which backend serves, and what is said where one cannot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from prefixprop import attention
from prefixprop.attention import backends

from tiny import batch, tiny_model, with_triton

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forget_the_gpu() -> Iterator[None]:
    """What a test pretends is not remembered."""
    backends.is_modern_gpu.cache_clear()
    yield
    backends.is_modern_gpu.cache_clear()


@pytest.mark.parametrize(
    ("backend", "has_triton", "message"),
    [
        ("flash", True, "backend='flash' is unknown; choose one of auto, sdpa, triton"),
        (
            "triton",
            True,
            "backend='triton' needs an NVIDIA GPU of compute capability 8.0 or later; .* auto, sdpa",
        ),
        ("triton", False, r"needs the package triton.*pip install triton.*has: auto, sdpa"),
    ],
)
def test_a_backend_that_is_not_there(
    backend: str, has_triton: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "HAS_TRITON", has_triton)
    monkeypatch.setattr(backends, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = tiny_model()
    with pytest.raises(ValueError, match=message):
        attention.install(model, backend=backend)
    assert not hasattr(model.longformer, "attention_patch")  # left as it was
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


@with_triton
@pytest.mark.parametrize(
    ("device", "capability", "served"),
    [("cpu", (9, 0), False), ("cuda", (7, 5), False), ("cuda", (8, 0), True), ("cuda", (12, 0), True)],
)
def test_what_auto_chooses(
    device: str, capability: tuple[int, int], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain PyTorch for the CPU, even where Triton's interpreter could serve, and for old GPUs."""
    monkeypatch.setattr(backends, "INTERPRETED", device == "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    for name in ("auto", None):
        assert (backends.choose(name, torch.device(device)) != backends.choose("sdpa", CPU)) == served
    if device == "cuda":
        assert backends.is_modern_gpu() == served
    if capability == (7, 5):
        with pytest.raises(ValueError, match=r"needs an NVIDIA GPU of compute capability 8.0 or later"):
            attention.install(tiny_model(), backend="triton")
