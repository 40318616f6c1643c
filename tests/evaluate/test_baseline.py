"""The TF-IDF baseline: what it learns, what it reads, and what it reaches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prefixprop.data import ClassificationTask, Document, load_task
from prefixprop.evaluate import baseline, evaluate_predictions, fit_temperature, measure_baseline
from prefixprop.evaluate.baseline import TfidfModel

FRUIT = tuple(Document(f"f{i}", f"apples and pears number {i}", 0) for i in range(6))
METAL = tuple(Document(f"m{i}", f"iron with copper number {i}", 2) for i in range(4))
DEV = (Document("d0", "pears", 0), Document("d1", "copper iron", 2), Document("d2", "unseen", 1))
TOY = ClassificationTask("toy", ("fruit", "stone", "metal"), train=FRUIT + METAL, dev=DEV, test=())


def test_learns_words_and_never_predicts_a_label_it_never_saw() -> None:
    scores = TfidfModel(TOY.train).scores(DEV, 3)
    assert scores[:2].argmax(axis=1).tolist() == [0, 2]
    assert (scores[:, 1] < scores[:, [0, 2]].min(axis=1)).all()
    probabilities = fit_temperature(scores, [0, 2, 1]).apply(scores)
    assert measure_baseline(TOY) == {
        "model": "TF-IDF of words and word pairs, linear SVM",
        "dev": evaluate_predictions(probabilities, [0, 2, 1]),
    }
    assert set(measure_baseline(replace(TOY, test=DEV))) == {"model", "dev", "test"}


def test_reads_pairs_of_words_and_words_alone_where_there_is_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("not good but bad", "not bad but good")
    train = [Document(f"{label}{i}", texts[label], label) for label in (0, 1) for i in range(3)]
    asked = [Document("a", "not good", 0), Document("b", "not bad", 1)]
    model = TfidfModel(train)
    assert model.scores(asked, 2).argmax(axis=1).tolist() == [0, 1] and "pairs" in model.name
    monkeypatch.setattr(baseline, "_MOST_CHARACTERS_WITH_PAIRS", 10)
    model = TfidfModel(train)
    np.testing.assert_allclose(*model.scores(asked, 2))
    assert "pairs" not in model.name


def test_tells_three_labels_apart() -> None:
    train = [Document(f"{word}{i}", word, label) for label, word in enumerate(("iron", "pear", "salt")) for i in "ab"]
    assert TfidfModel(train).scores(train, 3).argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("train", "complaint"),
    [
        (FRUIT, "at least two labels"),
        ((), "at least two labels"),
        ((Document("a", "iron", 0), Document("b", "pears", 1)), "a word that occurs in two"),
    ],
)
def test_nothing_to_learn(train: tuple[Document, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TfidfModel(train)


def test_of_very_much_text_a_part_is_read_and_the_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "_MOST_CHARACTERS", 6 * len(FRUIT[0].text))
    read = TfidfModel(TOY.train).documents
    assert 5 <= read <= 7
    assert measure_baseline(TOY)["model"].endswith(f", on {read} of 10 training documents")
    monkeypatch.setattr(baseline, "_FEW_LABELS", 1)
    assert TfidfModel(TOY.train).documents < read, "more labels take longer"


def test_hyperpartisan() -> None:
    found = measure_baseline(load_task("hyperpartisan"))
    for split in ("dev", "test"):
        assert found[split]["accuracy"] > 0.72 and found[split]["binary_f1"] > 0.65
