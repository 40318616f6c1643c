"""Metrics of predictions, their calibration, significance and files, and the TF-IDF baseline."""

from __future__ import annotations

from prefixprop.evaluate.baseline import measure_baseline
from prefixprop.evaluate.calibration import Temperature, fit_temperature
from prefixprop.evaluate.metrics import Reliability, confusion_counts, evaluate_predictions, reliability, softmax
from prefixprop.evaluate.predictions import PredictionSet, question_predictions, read_predictions, write_predictions
from prefixprop.evaluate.significance import (
    SeedSummary,
    SignificanceTest,
    holm_correction,
    paired_bootstrap,
    paired_scores,
    summarise_seeds,
    t_test,
)

__all__ = [
    "PredictionSet",
    "Reliability",
    "SeedSummary",
    "SignificanceTest",
    "Temperature",
    "confusion_counts",
    "evaluate_predictions",
    "fit_temperature",
    "holm_correction",
    "measure_baseline",
    "paired_bootstrap",
    "paired_scores",
    "question_predictions",
    "read_predictions",
    "reliability",
    "softmax",
    "summarise_seeds",
    "t_test",
    "write_predictions",
]
