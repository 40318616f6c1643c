"""Prediction with the model of a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixprop.lazy_imports import lazy_names

if TYPE_CHECKING:
    from prefixprop.predict.explain import Explanation, Passage
    from prefixprop.predict.loading import load_run
    from prefixprop.predict.trained_model import Prediction, PredictionOptions, PredictionSummary, TrainedModel

__all__ = [
    "Explanation",
    "Passage",
    "Prediction",
    "PredictionOptions",
    "PredictionSummary",
    "TrainedModel",
    "load_run",
]

_ELSEWHERE = {"load_run": "loading", "Explanation": "explain", "Passage": "explain"}
__getattr__ = lazy_names(__name__, {name: "trained_model" for name in __all__} | _ELSEWHERE)
