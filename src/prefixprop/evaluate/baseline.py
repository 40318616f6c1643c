"""The TF-IDF baseline: what a linear model of words reaches on the documents of a run, as a bar for encoders."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.documents import ClassificationTask, Document
from prefixprop.evaluate.calibration import fit_temperature
from prefixprop.evaluate.metrics import evaluate_predictions

# Bounds of time and memory. Terms are hashed, so that a large vocabulary takes no more than a small one. A core reads
# 14 million characters a second, or half as many with pairs. Fitting takes longer the more labels there are, so that
# above _FEW_LABELS fewer characters are read.
_COLUMNS, _MOST_TERMS = 2**20, 100_000
_MOST_CHARACTERS, _MOST_CHARACTERS_WITH_PAIRS = 200_000_000, 30_000_000
_FEW_LABELS = 20
_READ_AT_ONCE = 500


def measure_baseline(task: ClassificationTask) -> dict[str, Any]:
    """Fit the baseline on the training set; return its name and all metrics of the dev set and, if any, the test set.

    Its scores become probabilities by a temperature fitted on the dev set. `ValueError` if there is nothing to learn
    in the training set.

    >>> measure_baseline(task)
    {"model": "TF-IDF of words and word pairs, linear SVM", "dev": {"accuracy": 0.8, ...}, "test": {...}}
    """
    model = TfidfModel(task.train)
    name = model.name
    if model.documents < len(task.train):
        name += f", on {model.documents:,} of {len(task.train):,} training documents"
    splits = {split: documents for split in ("dev", "test") if (documents := task.split(split))}
    labels = {split: [document.label for document in documents] for split, documents in splits.items()}
    scores = {split: model.scores(documents, task.num_labels) for split, documents in splits.items()}
    temperature = fit_temperature(scores["dev"], labels["dev"])
    return {
        "model": name,
        **{split: evaluate_predictions(temperature.apply(scores[split]), labels[split]) for split in splits},
    }


class TfidfModel:
    """A linear SVM on the TF-IDF of words and word pairs, or of words alone where there is much text.

    Of very much text it reads a random part, always the same, in whole documents; `documents` is their number.
    """

    def __init__(self, train_documents: Sequence[Document]) -> None:
        from scipy.sparse import vstack
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
        from sklearn.pipeline import make_pipeline
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
        # A term of a single document says nothing about others, and there are so many such pairs that they do harm.
        occurrences = np.bincount(counts.indices, minlength=_COLUMNS)
        terms = np.argsort(-occurrences, kind="stable")[:_MOST_TERMS]
        self._terms = np.sort(terms[occurrences[terms] > 1])
        if not self._terms.size:
            raise ValueError("The TF-IDF baseline needs a word that occurs in two training documents.")
        svm = LinearSVC(class_weight="balanced", random_state=0)
        self._model = make_pipeline(TfidfTransformer(sublinear_tf=True), svm).fit(counts[:, self._terms], labels)

    def scores(self, documents: Iterable[Document], num_labels: int) -> NDArray[np.float64]:
        """The score of every label [documents, labels]; a label that was not trained on is below the others."""
        found = np.concatenate(
            [self._model.decision_function(counts[:, self._terms]) for counts in self._counts(documents)]
        )
        if found.ndim == 1:  # two labels have one score, that of the second
            found = np.stack([np.zeros_like(found), found], axis=1)
        scores = np.repeat(found.min(axis=1, keepdims=True) - 1, num_labels, axis=1)
        scores[:, self._model.classes_] = found
        return scores

    def _counts(self, documents: Iterable[Document]) -> Iterator[Any]:
        """How often every term occurs, as sparse matrices of some documents at a time, to save memory."""
        texts = (document.text for document in documents)
        while batch := list(islice(texts, _READ_AT_ONCE)):
            yield self._vectorizer.transform(batch)


def _drawn(documents: Sequence[Document]) -> Iterator[Document]:
    """The documents in a random order, always the same, until there is as much text as the baseline reads."""
    characters, labels = 0, set()
    for index in random.Random(0).sample(range(len(documents)), len(documents)):
        document = documents[index]
        yield document
        characters += len(document.text)
        labels.add(document.label)
        if characters * max(len(labels), _FEW_LABELS) >= _MOST_CHARACTERS * _FEW_LABELS:
            return
