"""Longformer's attention, computed block by block for any sequence length."""

from prefixprop.attention.sliding_window import longformer_self_attention

__all__ = ["longformer_self_attention"]
