from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from prefixprop.data import ClassificationTask, Document, load_hyperpartisan
from prefixprop.evaluate import (
    baselines,
    classification_metrics,
    evaluate_predictions,
    expected_calibration_error,
    majority_baseline,
    measure_floor,
    tfidf_baseline,
    tfidf_classifier,
)

FRUIT = tuple(Document(f"f{i}", f"apples and pears number {i}", 0) for i in range(6))
METAL = tuple(Document(f"m{i}", f"iron with copper number {i}", 2) for i in range(4))


@pytest.fixture(scope="module")
def hyperpartisan() -> ClassificationTask:
    return load_hyperpartisan()


@pytest.fixture
def toy() -> ClassificationTask:
    dev = (Document("d0", "pears", 0), Document("d1", "copper iron", 2), Document("d2", "unseen", 1))
    return ClassificationTask("toy", ("fruit", "stone", "metal"), train=FRUIT + METAL, dev=dev, test=())


def labels(documents: tuple[Document, ...]) -> list[int]:
    return [document.label for document in documents]


def test_majority_gives_the_label_frequencies(toy: ClassificationTask) -> None:
    np.testing.assert_allclose(majority_baseline(toy), [[0.6, 0.0, 0.4]] * 3)


def test_majority_follows_the_training_documents(toy: ClassificationTask) -> None:
    probabilities = majority_baseline(toy, documents=FRUIT[:2], train_documents=METAL)
    np.testing.assert_allclose(probabilities, [[0.0, 0.0, 1.0]] * 2)


def test_tfidf_learns_words_and_never_predicts_a_label_it_never_saw(toy: ClassificationTask) -> None:
    probabilities = tfidf_baseline(toy)
    assert probabilities.shape == (3, 3)
    assert probabilities[:2].argmax(axis=1).tolist() == [0, 2]
    assert (probabilities[:, 1] < probabilities[:, [0, 2]].min(axis=1)).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_tfidf_reads_pairs_of_words_and_words_alone_where_there_is_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("not good but bad", "not bad but good")
    train = [Document(f"{label}{i}", texts[label], label) for label in (0, 1) for i in range(3)]
    asked = [Document("a", "not good", 0), Document("b", "not bad", 1)]
    model = tfidf_classifier(train)
    assert model.scores(asked, 2).argmax(axis=1).tolist() == [0, 1] and "pairs" in model.name
    monkeypatch.setattr(baselines, "_MOST_CHARACTERS_WITH_PAIRS", 10)
    model = tfidf_classifier(train)
    np.testing.assert_allclose(*model.scores(asked, 2))
    assert "pairs" not in model.name


def test_tfidf_tells_three_labels_apart() -> None:
    train = [Document(f"{word}{i}", word, label) for label, word in enumerate(("iron", "pear", "salt")) for i in "ab"]
    assert tfidf_classifier(train).scores(train, 3).argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 2]


def test_tfidf_follows_the_training_documents(toy: ClassificationTask) -> None:
    swapped = [Document(f"a{i}", "copper iron", 0) for i in range(2)]
    swapped += [Document(f"b{i}", "pears apples", 1) for i in range(2)]
    assert tfidf_baseline(toy, toy.dev[:2], train_documents=swapped).argmax(axis=1).tolist() == [1, 0]


def test_tfidf_needs_two_labels(toy: ClassificationTask) -> None:
    with pytest.raises(ValueError, match="at least two labels"):
        tfidf_baseline(toy, train_documents=FRUIT)


def test_tfidf_needs_a_word_of_two_documents(toy: ClassificationTask) -> None:
    with pytest.raises(ValueError, match="a word that occurs in two"):
        tfidf_baseline(toy, train_documents=[Document("a", "iron", 0), Document("b", "pears", 1)])


def test_the_floor_has_every_measure_of_dev_and_of_test_where_there_is_one(toy: ClassificationTask) -> None:
    floor = measure_floor(toy)
    assert floor == {
        "model": "TF-IDF of words and word pairs, linear SVM",
        "dev": evaluate_predictions(tfidf_baseline(toy), labels(toy.dev)),
    }
    assert set(measure_floor(replace(toy, test=toy.dev))) == {"model", "dev", "test"}


def test_of_very_much_text_a_part_is_read_and_the_floor_says_so(
    toy: ClassificationTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "_MOST_CHARACTERS", 6 * len(FRUIT[0].text))
    read = tfidf_classifier(toy.train).documents
    assert 5 <= read <= 7
    assert measure_floor(toy)["model"].endswith(f", on {read} of 10 train documents")
    monkeypatch.setattr(baselines, "_FEW_LABELS", 1)
    assert tfidf_classifier(toy.train).documents < read, "more labels take longer"


@pytest.mark.parametrize("baseline", [majority_baseline, tfidf_baseline])
def test_empty_lists_are_refused(toy: ClassificationTask, baseline: Callable[..., np.ndarray]) -> None:
    with pytest.raises(ValueError, match="no documents to evaluate"):
        baseline(toy, documents=toy.test)
    with pytest.raises(ValueError, match="no documents to train"):
        baseline(toy, train_documents=[])


def test_majority_on_hyperpartisan(hyperpartisan: ClassificationTask) -> None:
    probabilities = majority_baseline(hyperpartisan)
    metrics = classification_metrics(probabilities, labels(hyperpartisan.dev))
    assert metrics.accuracy == pytest.approx(38 / 64)
    assert metrics.binary_f1 == 0
    error = expected_calibration_error(probabilities, labels(hyperpartisan.dev))
    assert error == pytest.approx(329 / 516 - 38 / 64)


@pytest.mark.parametrize("split", ["dev", "test"])
def test_tfidf_on_hyperpartisan_beats_the_majority(hyperpartisan: ClassificationTask, split: str) -> None:
    documents = hyperpartisan.split(split)
    metrics = classification_metrics(tfidf_baseline(hyperpartisan, documents), labels(documents))
    assert metrics.accuracy > 0.72
    assert metrics.binary_f1 is not None and metrics.binary_f1 > 0.65
