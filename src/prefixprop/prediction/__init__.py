"""Prediction with the model of a finished run."""

from __future__ import annotations

from prefixprop.prediction.predictor import Prediction, PredictionOptions
from prefixprop.prediction.summary import PredictionSummary
from prefixprop.prediction.trained_model import TrainedModel, load_run

__all__ = ["Prediction", "PredictionOptions", "PredictionSummary", "TrainedModel", "load_run"]
