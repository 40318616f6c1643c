"""BM25 (Robertson & Zaragoza, 2009): which of some texts shares most words with a question, rare words above all.

A text d has the score Σ over words t of the question of

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

from prefixprop.data.wikihop import Question, QuestionTask
from prefixprop.evaluate.calibration import fit_temperature
from prefixprop.evaluate.predictions import question_predictions

K1, B = 1.5, 0.75  # the usual values
_WORD = re.compile(r"\w+")


def bm25(question: str, texts: Sequence[str], k1: float = K1, b: float = B) -> NDArray[np.float64]:
    """The score of every text; words are compared in lower case."""
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    lengths = np.array([found.total() for found in counts], dtype=np.float64)
    norms = k1 * (1 - b + b * lengths / max(lengths.mean(), 1.0))
    scores = np.zeros(len(texts))
    for word in _WORD.findall(question.lower()):
        found = np.array([each[word] for each in counts], dtype=np.float64)
        having = np.count_nonzero(found)
        idf = np.log1p((len(texts) - having + 0.5) / (having + 0.5))
        scores += idf * found * (k1 + 1) / (found + norms)
    return scores


def measure_bm25(task: QuestionTask) -> dict[str, Any]:
    """Choose the candidate whose own support has the highest score; metrics as `measure_baseline` returns them.

    It is for tasks whose candidates have one support each, in the same order.
    """
    splits = {
        split: question_predictions(questions, {one.id: row_scores(one) for one in questions})
        for split in ("dev", "test")
        if (questions := task.split(split))
    }
    temperature = fit_temperature(splits["dev"].logits, splits["dev"].known_labels)
    found = {split: one.with_temperature(temperature).evaluate() for split, one in splits.items()}
    return {"model": "BM25 of the question and each candidate's own support", **found}


def row_scores(question: Question) -> NDArray[np.float64]:
    """The score of every candidate of a question: that of its own support."""
    return bm25(question.query, question.supports)
