"""What a model must beat: predictions that need no encoder.

Baselines train on `train_documents` (by default the task's train split) and return probabilities of shape [documents,
labels] for `documents` (by default its dev split), ready for the measures of this package. The floor of a run is what
the linear model reaches on the documents of the run.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.documents import ClassificationTask, Document
from prefixprop.evaluate.metrics import evaluate_predictions
from prefixprop.evaluate.temperature import Temperature, fit_temperature

# Bounds of time and memory. Terms are hashed, so that a large vocabulary takes no more than a small one. A core reads
# 14 million characters a second, or half as many with pairs. Fitting takes longer the more labels there are, so that
# above _FEW_LABELS fewer characters are read.
_COLUMNS, _MOST_TERMS = 2**20, 100_000
_MOST_CHARACTERS, _MOST_CHARACTERS_WITH_PAIRS = 200_000_000, 30_000_000
_FEW_LABELS = 20
_READ_AT_ONCE = 500


def majority_baseline(
    task: ClassificationTask,
    documents: Sequence[Document] | None = None,
    train_documents: Sequence[Document] | None = None,
) -> NDArray[np.float64]:
    """Give every document the label frequencies of the training documents, hence the majority label."""
    documents, train_documents = _evaluated_and_train(task, documents, train_documents)
    counts = np.bincount([document.label for document in train_documents], minlength=task.num_labels)
    return np.tile(counts / counts.sum(), (len(documents), 1))


def tfidf_baseline(
    task: ClassificationTask,
    documents: Sequence[Document] | None = None,
    train_documents: Sequence[Document] | None = None,
) -> NDArray[np.float64]:
    """Fit the linear model; its scores become probabilities by a temperature fitted on the task's dev split."""
    documents, train_documents = _evaluated_and_train(task, documents, train_documents)
    model = tfidf_classifier(train_documents)
    return _temperature(task, model.scores(task.dev, task.num_labels)).apply(model.scores(documents, task.num_labels))


def measure_floor(task: ClassificationTask) -> dict[str, Any]:
    """What the linear model is, and all its measures on dev, and on test where there is one.

    `ValueError` if there is nothing to learn in train.
    """
    model = tfidf_classifier(task.train)
    name = model.name
    if model.documents < len(task.train):
        name += f", on {model.documents:,} of {len(task.train):,} train documents"
    splits = {split: documents for split in ("dev", "test") if (documents := task.split(split))}
    scores = {split: model.scores(documents, task.num_labels) for split, documents in splits.items()}
    temperature = _temperature(task, scores["dev"])
    measures = {
        split: evaluate_predictions(temperature.apply(scores[split]), [document.label for document in documents])
        for split, documents in splits.items()
    }
    return {"model": name, **measures}


def tfidf_classifier(train_documents: Sequence[Document]) -> TfidfModel:
    """The fitted linear model behind `tfidf_baseline` and `measure_floor`."""
    return TfidfModel(train_documents)


class TfidfModel:
    """A linear SVM on the TF-IDF of words and word pairs, or of words alone where there is much text.

    Of very much text it reads a part, in whole documents that are drawn at random, always the same; `documents` is
    their number.
    """

    def __init__(self, train_documents: Sequence[Document]) -> None:
        from scipy.sparse import vstack
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
        from sklearn.svm import LinearSVC

        drawn = list(_drawn(train_documents))
        labels = [document.label for document in drawn]
        if len(set(labels)) < 2:
            raise ValueError("The TF-IDF baseline needs training documents of at least two labels.")
        with_pairs = sum(len(document.text) for document in drawn) <= _MOST_CHARACTERS_WITH_PAIRS
        self.documents = len(drawn)
        self.name = f"TF-IDF of words{' and word pairs' if with_pairs else ''}, linear SVM"
        self._vectorizer = HashingVectorizer(
            n_features=_COLUMNS,
            ngram_range=(1, 2 if with_pairs else 1),
            norm=None,
            alternate_sign=False,
            dtype=np.float32,
        )
        counts = vstack([*self._counts(drawn)])
        # A term of a single document tells nothing of others, and there are so many such pairs that they do harm.
        occurrences = np.bincount(counts.indices, minlength=_COLUMNS)
        terms = np.argsort(-occurrences, kind="stable")[:_MOST_TERMS]
        self._terms = np.sort(terms[occurrences[terms] > 1])
        if not self._terms.size:
            raise ValueError("The TF-IDF baseline needs a word that occurs in two training documents.")
        counts = counts[:, self._terms]
        self._tfidf = TfidfTransformer(sublinear_tf=True).fit(counts)
        self._svm = LinearSVC(class_weight="balanced", random_state=0).fit(self._tfidf.transform(counts), labels)

    def scores(self, documents: Iterable[Document], num_labels: int) -> NDArray[np.float64]:
        """The score of every label [documents, labels]; a label that was not trained on is below the others."""
        found = np.concatenate(
            [
                self._svm.decision_function(self._tfidf.transform(counts[:, self._terms]))
                for counts in self._counts(documents)
            ]
        )
        if found.ndim == 1:  # of two labels there is one score, that of the second
            found = np.stack([np.zeros_like(found), found], axis=1)
        scores = np.repeat(found.min(axis=1, keepdims=True) - 1, num_labels, axis=1)
        scores[:, self._svm.classes_] = found
        return scores

    def _counts(self, documents: Iterable[Document]) -> Iterator[Any]:
        """How often every term occurs in some documents at a time, which alone are in memory, as sparse matrices."""
        texts = (document.text for document in documents)
        while batch := list(islice(texts, _READ_AT_ONCE)):
            yield self._vectorizer.transform(batch)


def _drawn(documents: Sequence[Document]) -> Iterator[Document]:
    """All documents, or as many as make up the most text that is read, in a random order that is always the same."""
    characters, labels = 0, set()
    for index in random.Random(0).sample(range(len(documents)), len(documents)):
        document = documents[index]
        yield document
        characters += len(document.text)
        labels.add(document.label)
        if characters * max(len(labels), _FEW_LABELS) >= _MOST_CHARACTERS * _FEW_LABELS:
            return


def _temperature(task: ClassificationTask, scores_on_dev: NDArray[np.float64]) -> Temperature:
    return fit_temperature(scores_on_dev, [document.label for document in task.dev])


def _evaluated_and_train(
    task: ClassificationTask,
    documents: Sequence[Document] | None,
    train_documents: Sequence[Document] | None,
) -> tuple[Sequence[Document], Sequence[Document]]:
    documents = task.dev if documents is None else documents
    train_documents = task.train if train_documents is None else train_documents
    if not documents:
        raise ValueError("There are no documents to evaluate the baseline on.")
    if not train_documents:
        raise ValueError("There are no documents to train the baseline on.")
    return documents, train_documents
