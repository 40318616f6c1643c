"""The TF-IDF baseline of a task: its name, its splits, and what it reaches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefixprop.data import ClassificationTask, Document, load_task
from prefixprop.evaluate import evaluate_predictions, fit_temperature, fit_tfidf, measure_baseline, tfidf

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
