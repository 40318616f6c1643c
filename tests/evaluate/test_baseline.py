"""The baselines of a task: TF-IDF and what it reaches, BM25 by hand and the row that it chooses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from prefixprop.data import ClassificationTask, Document, Question, QuestionTask, load_task
from prefixprop.evaluate import evaluate_predictions, fit_temperature, fit_tfidf, measure_baseline, tfidf
from prefixprop.evaluate.baseline import bm25, measure_bm25

FRUIT = tuple(Document(f"f{i}", f"apples and pears number {i}", 0) for i in range(6))
METAL = tuple(Document(f"m{i}", f"iron with copper number {i}", 2) for i in range(4))
DEV = (Document("d0", "pears", 0), Document("d1", "copper iron", 2), Document("d2", "unseen", 1))
TOY = ClassificationTask("toy", ("fruit", "stone", "metal"), train=FRUIT + METAL, dev=DEV, test=())


def test_measures_calibrated_answers_to_the_dev_and_the_test_set() -> None:
    (model,) = fit_tfidf([document.text for document in TOY.train], [0] * 6 + [2] * 4, 3, [tfidf.DEFAULT_C])
    scores = model.scores([document.text for document in DEV])
    assert measure_baseline(TOY) == {
        "model": "TF-IDF of words and word pairs, linear SVM",
        "dev": evaluate_predictions(fit_temperature(scores, [0, 2, 1]).apply(scores), [0, 2, 1]),
    }
    assert set(measure_baseline(replace(TOY, test=DEV))) == {"model", "dev", "test"}


def test_the_name_says_how_much_of_very_much_text_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfidf, "_MOST_CHARACTERS", 6 * len(FRUIT[0].text))
    assert measure_baseline(TOY)["model"].endswith(" of 10 training documents")


def test_hyperpartisan() -> None:
    found = measure_baseline(load_task("hyperpartisan"))
    for split in ("dev", "test"):
        assert found[split]["accuracy"] > 0.72 and found[split]["binary_f1"] > 0.65


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
    assert found["dev"]["documents"] == 4
