"""Choosing among models and mixing their answers, by answers to documents that they did not learn from.

A part, such as "readers" or "words", has several candidates (a learning rate or a C each). The best candidate of each
part is used, and the mix is log-linear:

    log p(class) = Σ over parts of weight · log softmax(logits of the part's candidate) + constant

The weights are not negative and minimise the mean log-loss, which is convex in them. With one part its weight is
1/temperature (see `prefixprop.evaluate.calibration`), and with several a further temperature has no effect.

Where a document can have several labels, each of its labels is a question with the classes no and yes: logits are
[..., documents, labels, 2] (see `yes_or_no`), and all questions share the weights.

On the documents that it was fitted on, a mix looks too good. `cross_fit` therefore answers the documents of every
fold by a choice and weights that come from the other folds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixprop.evaluate.calibration import LOWEST_TEMPERATURE, fit_temperature, fit_thresholds
from prefixprop.evaluate.metrics import average_precision, log_odds, log_softmax

READERS, WORDS = "readers", "words"  # the parts of a run's mix
_MOST_WEIGHT = 1 / LOWEST_TEMPERATURE
_ROUNDING = 1e-12

Array = NDArray[np.float64]
Documents = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Part:
    """What every candidate of a part answers to every document: logits [candidates, documents, classes].

    With several labels they are [candidates, documents, labels, 2]. Where a logit is not a finite number the model
    has diverged. It then has no opinion on that document, and its candidate is chosen only if all have diverged.
    """

    name: str
    candidates: tuple[float, ...]
    logits: Array

    @cached_property
    def log_probabilities(self) -> Array:
        return _safe_log_softmax(self.logits)

    @cached_property
    def diverged(self) -> NDArray[np.bool_]:
        """Which candidates are no finite numbers somewhere."""
        return np.array([not np.isfinite(answers).all() for answers in self.logits])


@dataclass(frozen=True)
class Mix:
    """The index of each part's chosen candidate, and each part's weight; its fields are ready for JSON."""

    chosen: dict[str, int]
    weights: dict[str, float]

    @property
    def used(self) -> tuple[str, ...]:
        """The parts that have a weight above 0: only these need to be asked."""
        return tuple(name for name, weight in self.weights.items() if weight > 0)

    def log_probabilities(self, logits: Mapping[str, ArrayLike]) -> Array:
        """Mix the logits [documents, classes], or [documents, labels, 2], of the parts that are used."""
        return _safe_log_softmax(sum(self.weights[name] * _safe_log_softmax(logits[name]) for name in self.used))


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """Answers to every document by a mix that comes from the other folds, and the mix of all documents.

    `log_probabilities` [documents, classes] or [documents, labels, 2] are the mix's; `alone` has those of each part
    by itself, with the candidate and the weight of the other folds. `final` is the mix of all documents, and
    `final_alone` has what each part comes to by itself there.
    """

    log_probabilities: Array
    alone: dict[str, Array]
    final: Mix
    final_alone: dict[str, Mix]


def cross_fit(
    parts: Sequence[Part], labels: ArrayLike, folds: ArrayLike, choose_by: str | None = None
) -> CrossFitted:
    """Fit a mix without every fold in turn, and answer that fold by it; `folds` has the fold of every document.

    Candidates are chosen by log-loss, or by another metric, see `ranked`; weights always minimise the log-loss. All
    weight stays on the best part unless the mix's log-loss is lower by more than one standard error of the documents'
    differences.
    """
    label_array = _checked_labels(labels)
    answers = np.empty(parts[0].logits.shape[1:])
    alone = {part.name: np.empty_like(answers) for part in parts}
    for others in _leave_out(folds):
        mix, mixes_alone = _fitted(parts, label_array, others, choose_by)
        logits = {part.name: part.logits[mix.chosen[part.name], ~others] for part in parts}
        answers[~others] = mix.log_probabilities(logits)
        for name, found in alone.items():
            found[~others] = mixes_alone[name].log_probabilities(logits)
    final = _fitted(parts, label_array, np.ones(len(label_array), dtype=bool), choose_by)
    return CrossFitted(answers, alone, *final)


def mean_answer(logits: ArrayLike) -> Array:
    """The log of the mean probability [..., classes] of several models, given their logits [models, ..., classes]."""
    array = np.asarray(logits, dtype=np.float64)
    answers: Array = np.logaddexp.reduce(log_softmax(array), axis=0) - math.log(len(array))
    return answers


def score(answers: Array, labels: NDArray[np.int64], metric: str) -> float:
    """A metric of answers [documents, classes], or [documents, labels, 2] with thresholds from the same answers."""
    from scipy.special import expit
    from sklearn.metrics import f1_score

    if labels.ndim == 1:
        predicted = answers.argmax(axis=1)
    else:
        probabilities = expit(log_odds(answers))
        if metric == "average_precision":
            return average_precision(probabilities, labels)
        predicted = probabilities >= fit_thresholds(probabilities, labels)
    return float(f1_score(labels, predicted, average=metric.removesuffix("_f1"), zero_division=0))


def ranked(part: Part, labels: NDArray[np.int64], documents: Documents, choose_by: str | None = None) -> list[int]:
    """The candidates from best to worst: by log-loss on these documents, each with the weight that is best for it.

    With `choose_by` by this metric: "micro_f1", "macro_f1" or, with several labels, "average_precision". Log-loss
    sees how probable every label was, and accuracy only which answers are right. On folds of eLife, 20-newsgroups and
    Hyperpartisan the C that it chose for the TF-IDF model was, on average, better in both.
    """
    of_documents, answers = labels[documents], [found[documents] for found in part.log_probabilities]
    if choose_by is None:
        losses = [_weight_and_losses(found, of_documents)[1].mean() for found in answers]
    else:
        losses = [-score(found, of_documents, choose_by) for found in answers]
    return sorted(range(len(losses)), key=lambda index: (part.diverged[index], losses[index], index))


def may_be_dropped(part: Part, labels: ArrayLike, folds: ArrayLike, choose_by: str | None = None) -> list[int]:
    """The candidates that are never among the best two, whichever fold is left out: they need no further training."""
    label_array = _checked_labels(labels)
    kept = {index for others in _leave_out(folds) for index in ranked(part, label_array, others, choose_by)[:2]}
    return [index for index in range(len(part.candidates)) if index not in kept]


def _fitted(
    parts: Sequence[Part], labels: NDArray[np.int64], documents: Documents, choose_by: str | None
) -> tuple[Mix, dict[str, Mix]]:
    """The mix of the candidates that the parts choose on these documents, and what each part comes to by itself."""
    of_documents = labels[documents]
    chosen = {part.name: ranked(part, labels, documents, choose_by)[0] for part in parts}
    answers = np.stack([part.log_probabilities[chosen[part.name], documents] for part in parts])
    found, losses = zip(*(_weight_and_losses(answer, of_documents) for answer in answers), strict=True)
    weights_alone = np.array(found)
    best = int(np.argmin([loss.mean() for loss in losses]))
    weights = np.where(np.arange(len(parts)) == best, weights_alone, 0.0)
    if len(parts) > 1 and len(of_documents) > 1:
        together = _weights_together(answers, of_documents, weights_alone)
        gains = losses[best] - _losses(np.tensordot(together, answers, axes=1), of_documents)
        # Without any weight there would be no answer: then the best part keeps its own, which is as low as may be.
        if together.any() and gains.mean() > gains.std(ddof=1) / math.sqrt(len(gains)) + _ROUNDING:
            weights = together
    alone = {name: Mix({name: chosen[name]}, {name: weight}) for name, weight in zip(chosen, found, strict=True)}
    return Mix(chosen, dict(zip(chosen, weights.tolist(), strict=True))), alone


def _weights_together(answers: Array, labels: NDArray[np.int64], alone: Array) -> Array:
    """The weights that minimise the mean log-loss of the answers [parts, ..., classes]."""
    from scipy.optimize import minimize
    from scipy.special import softmax

    answers = answers.reshape(len(answers), -1, answers.shape[-1])
    labels = labels.ravel()
    of_label = np.take_along_axis(answers, labels[None, :, None], axis=2)[:, :, 0]

    # Each weight is searched as a multiple of the one that its part has alone, so that all are about as large.
    def loss_and_slopes(multiples: Array) -> tuple[float, Array]:
        mixed = np.tensordot(multiples * alone, answers, axes=1)
        expected = (softmax(mixed, axis=1) * answers).sum(axis=2)
        return float(_losses(mixed, labels).mean()), (expected - of_label).mean(axis=1) * alone

    found = minimize(
        loss_and_slopes,
        np.full(len(alone), 1 / len(alone)),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, _MOST_WEIGHT / weight) for weight in alone],
        options={"ftol": 1e-14, "gtol": 1e-9},
    )
    weights: Array = found.x * alone
    return weights


def _weight_and_losses(answers: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """The weight that is best for answers [..., classes] alone, and each document's log-loss with it."""
    weight = 1 / fit_temperature(answers.reshape(-1, answers.shape[-1]), labels.ravel()).value
    return weight, _losses(weight * answers, labels)


def _losses(logits: Array, labels: NDArray[np.int64]) -> Array:
    from scipy.special import logsumexp

    losses: Array = logsumexp(logits, axis=-1) - np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return losses.reshape(len(labels), -1).mean(axis=1)  # of a document's questions


def _safe_log_softmax(logits: ArrayLike) -> Array:
    """Log-probabilities over the last axis; where a logit is not a finite number, all classes are equally likely."""
    array = np.asarray(logits, dtype=np.float64)
    known = np.isfinite(array).all(axis=-1, keepdims=True)
    return log_softmax(np.where(known, array, 0.0))


def _checked_labels(labels: ArrayLike) -> NDArray[np.int64]:
    found = np.asarray(labels, dtype=np.int64)
    if len(np.unique(found)) < 2:
        raise ValueError("Nothing can be chosen: all documents have the same label; give documents of two labels.")
    return found


def _leave_out(folds: ArrayLike) -> Iterator[Documents]:
    """For every fold, which documents are in the others."""
    for fold in np.unique(folds):
        yield np.asarray(folds) != fold
