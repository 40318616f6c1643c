"""Predictions of questions with candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from prefixprop.evaluation.prediction_set import PredictionSet
from prefixprop.tasks.wikihop import Question

# How far the answer of a question that was not read is put behind the other candidates: it then counts as wrong, and
# hardly otherwise.
_NUDGE = 1e-6


def question_predictions(questions: Sequence[Question], logits: Mapping[str, NDArray[np.float64]]) -> PredictionSet:
    """From logits by question id, at least one per candidate; a question without (too long to read) is wrong."""
    rows = []
    for question in questions:
        count = len(question.candidates)
        row = np.zeros(count)
        if question.id in logits:
            row = np.asarray(logits[question.id], dtype=np.float64)[:count]
        else:
            row[question.answer] = -_NUDGE
        rows.append(row)
    return PredictionSet.of_candidates(
        [question.id for question in questions],
        [question.answer for question in questions],
        rows,
        [question.candidates for question in questions],
    )
