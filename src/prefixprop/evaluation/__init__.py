"""Measures of predictions, and the baselines to compare them with."""

from __future__ import annotations

from prefixprop.evaluation.baselines import majority_baseline, tfidf_baseline, tfidf_classifier
from prefixprop.evaluation.calibration import expected_calibration_error
from prefixprop.evaluation.metrics import ClassificationMetrics, classification_metrics
from prefixprop.evaluation.predictions import checked_predictions, checked_probabilities

__all__ = [
    "ClassificationMetrics",
    "checked_predictions",
    "checked_probabilities",
    "classification_metrics",
    "expected_calibration_error",
    "majority_baseline",
    "tfidf_baseline",
    "tfidf_classifier",
]
