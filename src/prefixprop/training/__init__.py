"""Helpers for training with Hugging Face's Trainer."""

from prefixprop.training.alpha_log import AlphaLogger, log_alpha, trained_alpha

__all__ = ["AlphaLogger", "log_alpha", "trained_alpha"]
