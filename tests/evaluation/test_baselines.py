from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from prefixprop.evaluation import (
    classification_metrics,
    expected_calibration_error,
    majority_baseline,
    tfidf_baseline,
)
from prefixprop.tasks import ClassificationTask, Document, load_hyperpartisan

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


def test_tfidf_learns_words_and_gives_nothing_to_a_label_it_never_saw(toy: ClassificationTask) -> None:
    probabilities = tfidf_baseline(toy)
    assert probabilities.shape == (3, 3)
    assert probabilities[:2].argmax(axis=1).tolist() == [0, 2]
    np.testing.assert_array_equal(probabilities[:, 1], 0)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_tfidf_follows_the_training_documents(toy: ClassificationTask) -> None:
    swapped = [Document("a", "copper iron", 0), Document("b", "pears apples", 1)]
    assert tfidf_baseline(toy, toy.dev[:2], train_documents=swapped).argmax(axis=1).tolist() == [1, 0]


def test_tfidf_needs_two_labels(toy: ClassificationTask) -> None:
    with pytest.raises(ValueError, match="at least two labels"):
        tfidf_baseline(toy, train_documents=FRUIT)


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
