"""The TF-IDF baseline: what a linear model of words reaches on the documents of a run, as a bar for encoders."""

from __future__ import annotations

from typing import Any

from prefixprop.data.documents import ClassificationTask, texts_of
from prefixprop.data.splits import dev_folds
from prefixprop.evaluate.calibration import fit_temperature
from prefixprop.evaluate.predictions import PredictionSet
from prefixprop.evaluate.tfidf import DEFAULT_C, fit_tfidf
from prefixprop.evaluate.thresholds import decide


def measure_baseline(task: ClassificationTask, class_weight: str | None = "balanced") -> dict[str, Any]:
    """Fit the baseline on the training set; return its name and all metrics of the dev set and, if any, the test set.

    Its scores become probabilities by a temperature fitted on the dev set. `ValueError` if there is nothing to learn
    in the training set.

    >>> measure_baseline(task)
    {"model": "TF-IDF of words and word pairs, linear SVM", "dev": {"accuracy": 0.8, ...}, "test": {...}}
    """
    labels = task.label_array(task.train)
    (model,) = fit_tfidf(texts_of(task.train), labels, task.num_labels, [DEFAULT_C], class_weight)
    name = model.name
    if model.documents < len(task.train):
        name += f", on {model.documents:,} of {len(task.train):,} training documents"
    splits = {
        split: PredictionSet.of_documents(task, documents, model.scores(texts_of(documents)))
        for split in ("dev", "test")
        if (documents := task.split(split))
    }
    temperature = fit_temperature(splits["dev"].logits, splits["dev"].known_labels)
    if task.several_labels:
        splits, _ = decide(splits, temperature, dev_folds(task.dev))
    return {"model": name, **{split: one.with_temperature(temperature).evaluate() for split, one in splits.items()}}
