"""Measures of predictions, their calibration, significance and files, and the baselines to compare them with."""

from __future__ import annotations

from prefixprop.evaluate.baselines import majority_baseline, measure_floor, tfidf_baseline, tfidf_classifier
from prefixprop.evaluate.calibration import (
    CalibrationMetrics,
    Reliability,
    adaptive_calibration_error,
    adaptive_reliability,
    brier_score,
    calibration_metrics,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability,
)
from prefixprop.evaluate.metrics import (
    ClassificationMetrics,
    classification_metrics,
    confusion_counts,
    evaluate_predictions,
    question_accuracy,
)
from prefixprop.evaluate.paired_tests import (
    McNemarTest,
    PairedBootstrap,
    mcnemar_test,
    paired_bootstrap,
    paired_scores,
)
from prefixprop.evaluate.prediction_file import (
    read_predictions,
    stored_predictions,
    write_predictions,
)
from prefixprop.evaluate.prediction_set import PredictionSet, question_predictions
from prefixprop.evaluate.predictions import checked_predictions, checked_probabilities, softmax
from prefixprop.evaluate.significance import (
    SeedSummary,
    SignificanceTest,
    holm_correction,
    summarise_seeds,
    t_test,
    welch_test,
)
from prefixprop.evaluate.temperature import Temperature, fit_temperature

__all__ = [
    "CalibrationMetrics",
    "ClassificationMetrics",
    "McNemarTest",
    "PairedBootstrap",
    "PredictionSet",
    "Reliability",
    "SeedSummary",
    "SignificanceTest",
    "Temperature",
    "adaptive_calibration_error",
    "adaptive_reliability",
    "brier_score",
    "calibration_metrics",
    "checked_predictions",
    "checked_probabilities",
    "classification_metrics",
    "confusion_counts",
    "evaluate_predictions",
    "expected_calibration_error",
    "fit_temperature",
    "holm_correction",
    "majority_baseline",
    "maximum_calibration_error",
    "mcnemar_test",
    "measure_floor",
    "negative_log_likelihood",
    "paired_bootstrap",
    "paired_scores",
    "question_accuracy",
    "question_predictions",
    "read_predictions",
    "reliability",
    "softmax",
    "stored_predictions",
    "summarise_seeds",
    "t_test",
    "tfidf_baseline",
    "tfidf_classifier",
    "welch_test",
    "write_predictions",
]
