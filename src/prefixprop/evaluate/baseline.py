"""The TF-IDF baseline: what a linear model of words reaches on the documents of a run, as a bar for encoders."""

from __future__ import annotations

from typing import Any

from prefixprop.data.documents import ClassificationTask, labels_of, texts_of
from prefixprop.evaluate.calibration import fit_temperature
from prefixprop.evaluate.metrics import evaluate_predictions
from prefixprop.evaluate.tfidf import DEFAULT_C, fit_tfidf


def measure_baseline(task: ClassificationTask) -> dict[str, Any]:
    """Fit the baseline on the training set; return its name and all metrics of the dev set and, if any, the test set.

    Its scores become probabilities by a temperature fitted on the dev set. `ValueError` if there is nothing to learn
    in the training set.

    >>> measure_baseline(task)
    {"model": "TF-IDF of words and word pairs, linear SVM", "dev": {"accuracy": 0.8, ...}, "test": {...}}
    """
    (model,) = fit_tfidf(texts_of(task.train), labels_of(task.train), task.num_labels, [DEFAULT_C])
    name = model.name
    if model.documents < len(task.train):
        name += f", on {model.documents:,} of {len(task.train):,} training documents"
    splits = {split: documents for split in ("dev", "test") if (documents := task.split(split))}
    labels = {split: labels_of(documents) for split, documents in splits.items()}
    scores = {split: model.scores(texts_of(documents)) for split, documents in splits.items()}
    temperature = fit_temperature(scores["dev"], labels["dev"])
    return {
        "model": name,
        **{split: evaluate_predictions(temperature.apply(scores[split]), labels[split]) for split in splits},
    }
