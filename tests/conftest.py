"""Tiny models for the tests; everything runs offline on the CPU."""

from __future__ import annotations

import gc
import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# One thread, here and in whatever a test starts: two workers share the machine.
os.environ["OMP_NUM_THREADS"] = "1"
# Triton decides when it is imported whether its kernels run on the CPU.
os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "prefixprop",
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("prefixprop")
torch.set_num_threads(1)
# Tests send Ctrl-C to themselves and to what they start. `nohup make test &` would have all of them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported stays; whoever collects garbage, as every training run does, need not look through it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or fills the cache of whoever runs it."""
    os.environ["PREFIXPROP_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
