"""Attention of models with other lengths in every batch."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch.nn.attention import SDPBackend, sdpa_kernel


def without_cudnn() -> AbstractContextManager[None]:
    """Let PyTorch's attention leave out cuDNN, which makes a plan for every length that it meets for the first time.

    For documents of thousands of lengths these plans take several times as long as the training itself.
    """
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
