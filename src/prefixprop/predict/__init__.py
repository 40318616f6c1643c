"""Prediction with the model of a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixprop.lazy_imports import lazy_names

if TYPE_CHECKING:
    from prefixprop.predict.loading import load_run
    from prefixprop.predict.trained_model import Prediction, PredictionOptions, PredictionSummary, TrainedModel

__all__ = ["Prediction", "PredictionOptions", "PredictionSummary", "TrainedModel", "load_run"]

__getattr__ = lazy_names(__name__, {name: "trained_model" for name in __all__} | {"load_run": "loading"})
