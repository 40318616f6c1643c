"""BM25: values computed by hand, and the row that it chooses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prefixprop.data import Question, QuestionTask
from prefixprop.evaluate.bm25 import bm25, measure_bm25


def test_scores_are_those_of_the_formula() -> None:
    texts = ["the cat sat", "the dog sat on the mat", "birds"]
    rare, common = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)  # of words that one and two of three texts have
    norms = [1.5 * (0.25 + 0.75 * length / (10 / 3)) for length in (3, 6, 1)]
    expected = [
        common * 2.5 / (1 + norms[0]) + rare * 2.5 / (1 + norms[0]),
        common * 2 * 2.5 / (2 + norms[1]),
        0.0,
    ]
    np.testing.assert_allclose(bm25("The CAT, unseen", texts), expected)
    np.testing.assert_allclose(bm25("cat cat", texts)[0], 2 * bm25("cat", texts)[0])
    assert bm25("", texts).tolist() == bm25("cat", ["", "", ""]).tolist() == [0, 0, 0]


def test_the_row_with_the_words_of_the_question_is_chosen() -> None:
    rows = ("Oslo", "Rome", "Lima")
    supports = ("city : Oslo ; a fjord", "city : Rome ; seven hills", "city : Lima ; by the sea")
    asked = ["which city lies at a fjord ?", "which city has seven hills ?", "which city is by the sea ?"]
    questions = [Question(str(place), text, rows, supports, place) for place, text in enumerate(asked)]
    wrong = Question("9", "seven hills", rows, supports, 0)
    task = QuestionTask("rows", (), (*questions, wrong), tuple(questions))
    found = measure_bm25(task)
    assert found["dev"]["accuracy"] == 0.75 and found["test"]["accuracy"] == 1.0
    assert found["dev"]["documents"] == 4 and found["dev"]["nll"] == pytest.approx(found["dev"]["nll"])
