"""Simple baselines: TF-IDF for documents, which is also mixed with readers, and BM25 for questions.

TF-IDF is a linear SVM on words and word pairs, which takes seconds to fit. The terms (words and pairs of neighbouring
words) are hashed. A document's term t has the feature (1 + log count(t)) · idf(t), with
idf(t) = 1 + log((1 + documents) / (1 + documents with t)). The words of a document are scaled to length 1 and its
pairs to 1/2: there are more pairs than words, and they say less about the topic but more about the tone. Terms and
IDF come from the training texts alone. Where a document can have several labels, labels are [documents, labels] of 0
and 1, and each label has an SVM.

BM25 (Robertson & Zaragoza, 2009) says which of some texts shares most words with a question, rare words above all. A
text d has the score Σ over words t of the question of

    idf(t) · f(t, d) · (k1 + 1) / (f(t, d) + k1 · (1 - b + b · |d| / mean length))

with idf(t) = log(1 + (N - n + 1/2) / (n + 1/2)). Here f counts the word in the text, and n of the N texts have the
word.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.atomic_files import replacing_file
from prefixprop.data.documents import ClassificationTask
from prefixprop.data.splits import dev_folds
from prefixprop.data.wikihop import QuestionTask
from prefixprop.evaluate.calibration import TEMPERATURE_SPREAD, decide, fit_temperature
from prefixprop.evaluate.predictions import PredictionSet, question_predictions

K1, B = 1.5, 0.75  # of BM25, the usual values
_WORD = re.compile(r"\w+")

# Candidates for the SVM's C, and the one that is best on average if there is no choice. On folds of eLife,
# 20-newsgroups and Hyperpartisan, 200 to 11,314 documents, 0.3 or 1 was the best.
C_VALUES = (0.3, 1.0, 3.0)
DEFAULT_C = 0.3
TFIDF_FILE = "tfidf.safetensors"
_LENGTH_OF_PAIRS = 0.5
# Margins times this are about calibrated as logits, so that the bounds of a temperature are far away. On folds of
# eLife, 20-newsgroups and Hyperpartisan the best factor was between 3 and 17.
_LOGITS_PER_MARGIN = 8.0

# Bounds of time and memory. Terms are hashed, so that a large vocabulary takes no more than a small one. A core reads
# 14 million characters a second, or half as many with pairs. Fitting takes longer the more labels there are, so that
# above _FEW_LABELS fewer characters are read.
_COLUMNS, _MOST_TERMS = 2**20, 100_000
_MOST_CHARACTERS, _MOST_CHARACTERS_WITH_PAIRS = 200_000_000, 30_000_000
_FEW_LABELS = 20
_READ_AT_ONCE = 500


@dataclass(frozen=True, eq=False)
class TfidfModel:
    """A fitted model: which hashed terms it knows, and how much each of them speaks for each label.

    Of very much text it has read a random part, always the same, in whole documents; `documents` is their number.
    """

    c: float
    num_labels: int
    documents: int
    with_pairs: bool
    terms: NDArray[np.int64]  # the columns of these terms, ascending; those of pairs start at _COLUMNS
    idf: NDArray[np.float32]
    labels: NDArray[np.int64]  # those that were trained on, ascending
    coefficients: NDArray[np.float32]  # [labels, terms]
    intercepts: NDArray[np.float32]

    @property
    def name(self) -> str:
        return f"TF-IDF of words{' and word pairs' if self.with_pairs else ''}, linear SVM"

    def scores(self, texts: Iterable[str]) -> NDArray[np.float64]:
        """The score of every label [texts, num_labels]; a label that was not trained on is below the others."""
        return _scores([self], texts)[0]

    def save(self, folder: str | Path) -> None:
        """Write the model to `tfidf.safetensors` in the folder, wholly or not at all."""
        from safetensors.numpy import save_file

        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        numbers = {name: getattr(self, name) for name in _NUMBERS} | {"columns": _COLUMNS}
        with replacing_file(Path(folder) / TFIDF_FILE) as temporary:
            save_file(arrays, temporary, metadata={"numbers": json.dumps(numbers)})

    @classmethod
    def load(cls, folder: str | Path) -> TfidfModel:
        """Read what `save` wrote; a file that is missing, damaged or of something else raises `ValueError`."""
        from safetensors import SafetensorError, safe_open

        path = Path(folder) / TFIDF_FILE
        try:
            with safe_open(path, framework="numpy") as file:
                numbers = json.loads((file.metadata() or {})["numbers"])
                arrays = {name: file.get_tensor(name) for name in _ARRAYS}
            if numbers["columns"] != _COLUMNS:
                raise ValueError(f"its terms are hashed to {numbers['columns']} columns, not {_COLUMNS}")
            return cls(**arrays, **{name: numbers[name] for name in _NUMBERS})
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged or no TF-IDF model ({error}); restore it from a copy, or train again."
            ) from error


_ARRAYS = ("terms", "idf", "labels", "coefficients", "intercepts")
_NUMBERS = ("c", "num_labels", "documents", "with_pairs")


def fit_tfidf(
    texts: Sequence[str],
    labels: ArrayLike,
    num_labels: int,
    c_values: Sequence[float] = C_VALUES,
    class_weight: str | None = "balanced",
) -> list[TfidfModel]:
    """Fit a model for every C on the same features; `ValueError` if there is nothing to learn in the texts.

    `class_weight` is scikit-learn's.
    """
    label_array = np.asarray(labels, dtype=np.int64)
    drawn = _drawn(texts, label_array)
    with_pairs, counts = _count(texts, drawn)
    return _fitted(counts, label_array[drawn], num_labels, c_values, with_pairs, class_weight)


def held_out_scores(
    texts: Sequence[str],
    labels: ArrayLike,
    num_labels: int,
    folds: ArrayLike,
    c_values: Sequence[float] = C_VALUES,
    class_weight: str | None = "balanced",
) -> NDArray[np.float64]:
    """The scores [c_values, texts, num_labels] of every text by models fitted on the texts of the other folds.

    `folds` has the number of every text's fold. Hashing learns nothing, so that the folds share it: a text is read
    twice, once to learn from and once to answer, and not once for every fold.
    """
    label_array, fold_array = np.asarray(labels, dtype=np.int64), np.asarray(folds)
    drawn = _drawn(texts, label_array)
    with_pairs, counts = _count(texts, drawn)
    scores = np.empty((len(c_values), len(texts), num_labels))
    for fold in np.unique(fold_array):
        learned = fold_array[drawn] != fold
        of_learned = label_array[drawn][learned]
        models = _fitted(counts[learned], of_learned, num_labels, c_values, with_pairs, class_weight)
        asked = np.flatnonzero(fold_array == fold).tolist()
        scores[:, asked] = _scores(models, (texts[index] for index in asked))
    return scores


def _fitted(
    counts: Any,
    labels: NDArray[np.int64],
    num_labels: int,
    c_values: Sequence[float],
    with_pairs: bool,
    class_weight: str | None,
) -> list[TfidfModel]:
    if len(np.unique(labels)) < 2:
        raise ValueError(
            "TF-IDF needs training documents of at least two labels, also where a fold is left out; give more "
            "documents of the rare labels."
        )
    # A term of a single document says nothing about others, and there are so many such pairs that they do harm.
    occurrences = np.bincount(counts.indices, minlength=counts.shape[1])
    terms = np.argsort(-occurrences, kind="stable")[:_MOST_TERMS]
    terms = np.sort(terms[occurrences[terms] > 1])
    if not terms.size:
        raise ValueError("The TF-IDF baseline needs a word that occurs in two training documents.")
    idf = (1 + np.log((1 + len(labels)) / (1 + occurrences[terms]))).astype(np.float32)
    features, models = _features(counts, terms, idf), []
    for c in c_values:
        if labels.ndim == 1:
            trained, coefficients, intercepts = _svm(features, labels, c, class_weight)
            if len(trained) == 2:  # scikit-learn has one score for two labels, that of the second
                coefficients, intercepts = (np.concatenate([0 * part, part]) for part in (coefficients, intercepts))
        else:
            parts = [_svm(features, column, c, class_weight)[1:] for column in labels.T]
            coefficients, intercepts = (np.concatenate(part) for part in zip(*parts, strict=True))
            trained = np.arange(num_labels)
        margins = (_LOGITS_PER_MARGIN * part.astype(np.float32) for part in (coefficients, intercepts))
        models.append(TfidfModel(float(c), num_labels, len(labels), with_pairs, terms, idf, trained, *margins))
    return models


def _svm(features: Any, labels: NDArray[np.int64], c: float, class_weight: str | None) -> tuple[Any, Any, Any]:
    """The labels of a linear SVM, its coefficients and its intercepts."""
    from sklearn.svm import LinearSVC

    if len(np.unique(labels)) < 2:  # a label that all documents have, or none: the margin is always the same
        return np.unique(labels), np.zeros((1, features.shape[1])), np.array([1.0 if labels.any() else -1.0])
    svm = LinearSVC(C=c, class_weight=class_weight, random_state=0).fit(features, labels)
    return svm.classes_.astype(np.int64), svm.coef_, svm.intercept_


def _scores(models: Sequence[TfidfModel], texts: Iterable[str]) -> NDArray[np.float64]:
    """The scores [models, texts, labels] of models of the same fit: they share the features of a text."""
    first = models[0]
    found = [np.empty((len(models), 0, first.num_labels))]
    for counts in _counts(texts, first.with_pairs):
        features = _features(counts, first.terms, first.idf)
        trained = np.stack([features @ model.coefficients.T + model.intercepts for model in models])
        scores = np.repeat(trained.min(axis=2, keepdims=True) - _LOGITS_PER_MARGIN, first.num_labels, axis=2)
        scores[:, :, first.labels] = trained
        found.append(scores)
    return np.concatenate(found, axis=1)


def _features(counts: Any, terms: NDArray[np.int64], idf: NDArray[np.float32]) -> Any:
    from scipy.sparse import hstack
    from sklearn.preprocessing import normalize

    features = counts[:, terms]
    features.data = (1 + np.log(features.data)) * idf[features.indices]
    words = int(np.searchsorted(terms, _COLUMNS))
    blocks = (features[:, :words], 1.0), (features[:, words:], _LENGTH_OF_PAIRS)
    return hstack([length * normalize(block) for block, length in blocks if block.shape[1]], format="csr")


def _count(texts: Sequence[str], drawn: NDArray[np.int64]) -> tuple[bool, Any]:
    """Whether pairs are counted, and the counts of the texts at these places."""
    from scipy.sparse import csr_matrix, vstack

    with_pairs = sum(len(texts[index]) for index in drawn) <= _MOST_CHARACTERS_WITH_PAIRS
    nothing = csr_matrix((0, _COLUMNS * (1 + with_pairs)), dtype=np.float32)
    return with_pairs, vstack([nothing, *_counts((texts[index] for index in drawn), with_pairs)], format="csr")


def _counts(texts: Iterable[str], with_pairs: bool) -> Iterator[Any]:
    """How often every term occurs, as sparse matrices [texts, columns] of some texts at a time, to save memory."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    options = {"n_features": _COLUMNS, "norm": None, "alternate_sign": False, "dtype": np.float32}
    vectorizers = [
        HashingVectorizer(ngram_range=(words, words), **options) for words in ((1, 2) if with_pairs else (1,))
    ]
    iterator = iter(texts)
    while batch := list(islice(iterator, _READ_AT_ONCE)):
        yield hstack([vectorizer.transform(batch) for vectorizer in vectorizers], format="csr")


def _drawn(texts: Sequence[str], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places, ascending, of texts in a random order, always the same, until there is as much text as is read."""
    characters, drawn = 0, []
    found: set[int] = set()
    for index in random.Random(0).sample(range(len(texts)), len(texts)):
        drawn.append(index)
        characters += len(texts[index])
        found.update(np.flatnonzero(labels[index]).tolist() if labels.ndim == 2 else [int(labels[index])])
        if characters * max(len(found), _FEW_LABELS) >= _MOST_CHARACTERS * _FEW_LABELS:
            break
    return np.array(sorted(drawn), dtype=np.int64)


# --- their metrics --------------------------------------------------------------------------------------------------


def measure_baseline(task: ClassificationTask, class_weight: str | None = "balanced") -> dict[str, Any]:
    """Fit the baseline on the training set; return its name and all metrics of the dev set and, if any, the test set.

    Its scores become probabilities by a temperature fitted on the dev set. `ValueError` if there is nothing to learn
    in the training set.

    >>> measure_baseline(task)
    {"model": "TF-IDF of words and word pairs, linear SVM", "dev": {"accuracy": 0.8, ...}, "test": {...}}
    """
    labels = task.label_array(task.train)
    (model,) = fit_tfidf(task.train.texts, labels, task.num_labels, [DEFAULT_C], class_weight)
    name = model.name
    if model.documents < len(task.train):
        name += f", on {model.documents:,} of {len(task.train):,} training documents"
    splits = {
        split: PredictionSet.of_documents(task, documents, model.scores(documents.texts))
        for split in ("dev", "test")
        if (documents := task.split(split))
    }
    return _measured(name, splits, dev_folds(task.dev) if task.several_labels else None)


def measure_bm25(task: QuestionTask) -> dict[str, Any]:
    """Choose the candidate whose own support has the highest score; metrics as `measure_baseline` returns them.

    It is for tasks whose candidates have one support each, in the same order.
    """
    splits = {
        split: question_predictions(questions, {one.id: bm25(one.query, one.supports) for one in questions})
        for split in ("dev", "test")
        if (questions := task.split(split))
    }
    return _measured("BM25 of the question and each candidate's own support", splits)


def bm25(question: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """The score of every text; words are compared in lower case."""
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    lengths = np.array([found.total() for found in counts], dtype=np.float64)
    norms = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
    scores = np.zeros(len(texts))
    for word in _WORD.findall(question.lower()):
        found = np.array([each[word] for each in counts], dtype=np.float64)
        having = np.count_nonzero(found)
        idf = np.log1p((len(texts) - having + 0.5) / (having + 0.5))
        scores += idf * found * (K1 + 1) / (found + norms)
    return scores


def _measured(model: str, splits: dict[str, PredictionSet], folds: NDArray[np.int64] | None = None) -> dict[str, Any]:
    """The metrics of calibrated predictions; `folds` are those of dev documents that can have several labels."""
    temperature = fit_temperature(splits["dev"].logits, splits["dev"].known_labels, TEMPERATURE_SPREAD)
    if folds is not None:
        splits, _ = decide(splits, temperature, folds)
    return {"model": model, **{split: one.with_temperature(temperature).evaluate() for split, one in splits.items()}}
