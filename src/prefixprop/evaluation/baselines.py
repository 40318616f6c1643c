"""What a model must beat: predictions that need no encoder.

Both baselines train on `train_documents` (by default the task's train split) and return probabilities of
shape [documents, labels] for `documents` (by default its dev split), ready for the measures of this package.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from prefixprop.tasks.documents import ClassificationTask, Document


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
    """Fit logistic regression on the TF-IDF of words and word pairs; labels not trained on get 0."""
    documents, train_documents = _evaluated_and_train(task, documents, train_documents)
    classifier = tfidf_classifier(train_documents)
    probabilities = np.zeros((len(documents), task.num_labels))
    probabilities[:, classifier.classes_] = classifier.predict_proba([document.text for document in documents])
    return probabilities


def tfidf_classifier(train_documents: Sequence[Document]) -> Pipeline:
    """The fitted classifier behind `tfidf_baseline`."""
    labels = [document.label for document in train_documents]
    if len(set(labels)) < 2:
        raise ValueError("The TF-IDF baseline needs training documents of at least two labels.")
    # Chosen by repeated cross-validation on the 516 training articles of Hyperpartisan, where a weaker
    # regularisation or a larger vocabulary made no difference beyond the noise.
    classifier = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=50_000),
        LogisticRegression(C=30.0, class_weight="balanced", max_iter=1000),
    )
    return classifier.fit([document.text for document in train_documents], labels)


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
