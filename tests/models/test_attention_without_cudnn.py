"""Which of PyTorch's attention kernels are used."""

from __future__ import annotations

import torch

from prefixprop.models.gpu import without_cudnn


def test_leaves_out_cudnn_alone_and_puts_it_back() -> None:
    kinds = ("cudnn", "flash", "mem_efficient", "math")

    def enabled() -> list[bool]:
        return [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds]

    before = enabled()
    with without_cudnn():
        assert enabled() == [False, True, True, True]
    assert enabled() == before
