"""Longformer's attention, computed block by block for any sequence length."""

from prefixprop.attention.backends import BACKENDS
from prefixprop.attention.compiled import longformer_self_attention
from prefixprop.attention.install import install, uninstall
from prefixprop.attention.pattern import AttentionPattern

__all__ = ["BACKENDS", "AttentionPattern", "install", "longformer_self_attention", "uninstall"]
