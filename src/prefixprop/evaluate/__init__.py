"""Metrics of predictions, their calibration, significance and files, the TF-IDF baseline, and mixes of models."""

from __future__ import annotations

from prefixprop.evaluate.baseline import measure_baseline
from prefixprop.evaluate.calibration import Temperature, fit_temperature
from prefixprop.evaluate.metrics import Reliability, confusion_counts, evaluate_predictions, reliability, softmax
from prefixprop.evaluate.mixing import CrossFitted, Mix, Part, cross_fit, fit_mix, may_be_dropped
from prefixprop.evaluate.predictions import PredictionSet, question_predictions, read_predictions, write_predictions
from prefixprop.evaluate.significance import (
    SeedSummary,
    SignificanceTest,
    accuracy_interval,
    holm_correction,
    paired_bootstrap,
    paired_scores,
    summarise_seeds,
    t_test,
)
from prefixprop.evaluate.tfidf import C_VALUES, TfidfModel, fit_tfidf, left_out_scores
from prefixprop.evaluate.trust import Trust, fit_trust, measure_trust

__all__ = [
    "C_VALUES",
    "CrossFitted",
    "Mix",
    "Part",
    "PredictionSet",
    "Reliability",
    "SeedSummary",
    "SignificanceTest",
    "Temperature",
    "TfidfModel",
    "Trust",
    "accuracy_interval",
    "confusion_counts",
    "cross_fit",
    "evaluate_predictions",
    "fit_mix",
    "fit_temperature",
    "fit_tfidf",
    "fit_trust",
    "holm_correction",
    "left_out_scores",
    "may_be_dropped",
    "measure_baseline",
    "measure_trust",
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
