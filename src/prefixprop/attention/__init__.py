"""Longformer's and ModernBERT's attention, computed block by block for any sequence length."""

from prefixprop.attention.install import install, uninstall
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.sliding_window import longformer_self_attention
from prefixprop.choices import BACKENDS

__all__ = ["BACKENDS", "AttentionPattern", "install", "longformer_self_attention", "uninstall"]
