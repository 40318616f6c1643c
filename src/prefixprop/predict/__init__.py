"""Prediction with the model of a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixprop.lazy_imports import lazy_names

if TYPE_CHECKING:
    from prefixprop.predict.predictor import Prediction, PredictionOptions
    from prefixprop.predict.summary import PredictionSummary
    from prefixprop.predict.trained_model import TrainedModel, load_run

__all__ = ["Prediction", "PredictionOptions", "PredictionSummary", "TrainedModel", "load_run"]

__getattr__ = lazy_names(
    __name__,
    {
        "Prediction": "predictor",
        "PredictionOptions": "predictor",
        "PredictionSummary": "summary",
        "TrainedModel": "trained_model",
        "load_run": "trained_model",
    },
)
