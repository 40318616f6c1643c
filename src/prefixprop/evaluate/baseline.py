"""What simple models reach on the data of a run, as a bar for encoders: TF-IDF for documents, BM25 for questions.

BM25 (Robertson & Zaragoza, 2009) says which of some texts shares most words with a question, rare words above all. A
text d has the score Σ over words t of the question of

    idf(t) · f(t, d) · (k1 + 1) / (f(t, d) + k1 · (1 - b + b · |d| / mean length))

with idf(t) = log(1 + (N - n + 1/2) / (n + 1/2)). Here f counts the word in the text, and n of the N texts have the
word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.documents import ClassificationTask, texts_of
from prefixprop.data.splits import dev_folds
from prefixprop.data.wikihop import QuestionTask
from prefixprop.evaluate.calibration import decide, fit_temperature
from prefixprop.evaluate.predictions import PredictionSet, question_predictions
from prefixprop.evaluate.tfidf import DEFAULT_C, fit_tfidf

K1, B = 1.5, 0.75  # the usual values
_WORD = re.compile(r"\w+")


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
    return _measured(name, splits, dev_folds(task.dev) if task.several_labels else None)


def measure_bm25(task: QuestionTask) -> dict[str, Any]:
    """Choose the candidate whose own support has the highest score; metrics as `measure_baseline` returns them.

    It is for tasks whose candidates have one support each, in the same order.
    """
    splits = {
        split: question_predictions(questions, {one.id: bm25(one.query, one.supports) for one in questions})
        for split in ("dev", "test")
        if (questions := task.split(split))
    }
    return _measured("BM25 of the question and each candidate's own support", splits)


def bm25(question: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """The score of every text; words are compared in lower case."""
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    lengths = np.array([found.total() for found in counts], dtype=np.float64)
    norms = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
    scores = np.zeros(len(texts))
    for word in _WORD.findall(question.lower()):
        found = np.array([each[word] for each in counts], dtype=np.float64)
        having = np.count_nonzero(found)
        idf = np.log1p((len(texts) - having + 0.5) / (having + 0.5))
        scores += idf * found * (K1 + 1) / (found + norms)
    return scores


def _measured(model: str, splits: dict[str, PredictionSet], folds: NDArray[np.int64] | None = None) -> dict[str, Any]:
    """The metrics of calibrated predictions; `folds` are those of dev documents that can have several labels."""
    temperature = fit_temperature(splits["dev"].logits, splits["dev"].known_labels)
    if folds is not None:
        splits, _ = decide(splits, temperature, folds)
    return {"model": model, **{split: one.with_temperature(temperature).evaluate() for split, one in splits.items()}}
