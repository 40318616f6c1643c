"""Metrics of predictions, their calibration, significance and files, the TF-IDF baseline, and mixes of models."""

from __future__ import annotations

from prefixprop.evaluate.baseline import C_VALUES, TfidfModel, fit_tfidf, held_out_scores, measure_baseline
from prefixprop.evaluate.calibration import (
    TEMPERATURE_SPREAD,
    Temperature,
    Trust,
    decide,
    fit_temperature,
    fit_thresholds,
    fit_trust,
    measure_trust,
)
from prefixprop.evaluate.metrics import (
    Reliability,
    confusion_counts,
    evaluate_predictions,
    evaluate_several_labels,
    reliability,
    softmax,
)
from prefixprop.evaluate.mixing import CrossFitted, Mix, Part, cross_fit, may_be_dropped
from prefixprop.evaluate.predictions import (
    LabelRow,
    PredictionSet,
    label_table,
    never_predicted,
    question_predictions,
    read_predictions,
    write_predictions,
)
from prefixprop.evaluate.significance import (
    SeedSummary,
    SignificanceTest,
    accuracy_interval,
    average_precision_interval,
    holm_correction,
    paired_bootstrap,
    paired_scores,
    summarise_seeds,
    t_test,
)

__all__ = [
    "C_VALUES",
    "TEMPERATURE_SPREAD",
    "CrossFitted",
    "LabelRow",
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
    "average_precision_interval",
    "confusion_counts",
    "cross_fit",
    "decide",
    "evaluate_predictions",
    "evaluate_several_labels",
    "fit_temperature",
    "fit_tfidf",
    "fit_thresholds",
    "fit_trust",
    "held_out_scores",
    "holm_correction",
    "label_table",
    "may_be_dropped",
    "measure_baseline",
    "measure_trust",
    "never_predicted",
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
