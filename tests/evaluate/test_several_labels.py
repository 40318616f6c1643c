"""Several labels per document: metrics, calibration, thresholds, mixes, TF-IDF and files of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import average_precision_score, f1_score
from torchmetrics import functional as torchmetrics

from prefixprop.evaluate import (
    Part,
    PredictionSet,
    Temperature,
    TfidfModel,
    average_precision_interval,
    cross_fit,
    decide,
    evaluate_several_labels,
    fit_temperature,
    fit_tfidf,
    fit_thresholds,
    held_out_scores,
    label_table,
    never_predicted,
    paired_scores,
    reliability,
)
from prefixprop.evaluate.calibration import cross_fitted_decisions
from prefixprop.evaluate.metrics import log_odds, yes_or_no
from prefixprop.evaluate.mixing import mean_answer, ranked, score

NAMES = ("law firm", "tax", "7")


def answers(
    documents: int = 300, labels: int = 3, seed: int = 0, noise: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds [documents, labels] that are calibrated where the noise is 1, and labels."""
    generator = np.random.default_rng(seed)
    odds = generator.normal(-1.0, 2.0, size=(documents, labels))
    found = (generator.random(odds.shape) < expit(odds)).astype(np.int64)
    return odds * noise, found


def prediction_set(odds: np.ndarray, labels: np.ndarray, decisions: np.ndarray | None = None) -> PredictionSet:
    known = tuple(tuple(np.flatnonzero(row).tolist()) for row in labels)
    ids = tuple(f"d{row}" for row in range(len(odds)))
    return PredictionSet(
        ids, known, odds, NAMES[: odds.shape[1]], decisions=odds >= 0 if decisions is None else decisions
    )


def test_metrics_agree_with_torchmetrics_and_the_yes_or_no_questions() -> None:
    odds, labels = answers()
    found = prediction_set(odds, labels).evaluate()
    tensors = torch.tensor(expit(odds)), torch.tensor(labels)
    expected = {
        "average_precision": torchmetrics.classification.multilabel_average_precision(*tensors, 3),
        "micro_average_precision": torchmetrics.classification.multilabel_average_precision(*tensors, 3, "micro"),
        "micro_f1": torchmetrics.classification.multilabel_f1_score(*tensors, 3, average="micro"),
        "macro_f1": torchmetrics.classification.multilabel_f1_score(*tensors, 3, average="macro"),
        "macro_recall": torchmetrics.classification.multilabel_recall(*tensors, 3),
        "micro_precision": torchmetrics.classification.multilabel_precision(*tensors, 3, average="micro"),
        "accuracy": torchmetrics.classification.multilabel_exact_match(*tensors, 3),
        "nll": torch.nn.functional.binary_cross_entropy(tensors[0], tensors[1].double()),
        "brier": 2 * ((tensors[0] - tensors[1]) ** 2).mean(),
        "documents": 300,
    }
    expected = {name: float(value) for name, value in expected.items()}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    both = np.stack([1 - expit(odds), expit(odds)], axis=-1).reshape(-1, 2)
    assert found["ece"] == pytest.approx(reliability(both, labels.ravel()).expected_error)
    assert json.loads(json.dumps(found)) == found
    order = np.random.default_rng(1).permutation(300)
    assert prediction_set(odds[order], labels[order]).evaluate() == found


def test_labels_that_no_document_has_do_not_count() -> None:
    odds, labels = answers()
    labels[:, 1] = 0
    found = evaluate_several_labels(expit(odds), labels, (odds >= 0) & [True, False, True])
    kept = [0, 2]
    assert found["average_precision"] == pytest.approx(average_precision_score(labels[:, kept], odds[:, kept]))
    assert found["macro_f1"] == pytest.approx(f1_score(labels[:, kept], odds[:, kept] >= 0, average="macro"))
    nothing = evaluate_several_labels(expit(odds), 0 * labels, 0 * labels)
    assert (
        nothing["average_precision"] == nothing["macro_f1"] == nothing["micro_f1"] == 0 and nothing["accuracy"] == 1
    )


def test_a_temperature_for_all_labels() -> None:
    odds, labels = answers(3000, noise=3.0)
    found = fit_temperature(odds, labels)
    assert found.value == pytest.approx(3.0, rel=0.1)
    assert found.value == fit_temperature(yes_or_no(odds).reshape(-1, 2), labels.ravel()).value
    before = prediction_set(odds, labels)
    after = before.with_temperature(found)
    np.testing.assert_allclose(after.probabilities, expit(odds / found.value))
    assert after.evaluate()["ece"] < before.evaluate()["ece"]
    assert after.evaluate()["micro_f1"] == before.evaluate()["micro_f1"]


def test_thresholds_are_half_of_the_best_f1_and_near_the_best_place() -> None:
    odds, labels = answers(5000)
    probabilities = expit(odds)
    thresholds = fit_thresholds(probabilities, labels)
    tried = np.linspace(0.01, 0.99, 99)
    for label in range(3):
        of_label = [f1_score(labels[:, label], probabilities[:, label] >= value) for value in tried]
        assert thresholds[label] == pytest.approx(max(of_label) / 2, abs=0.01)
        assert f1_score(labels[:, label], probabilities[:, label] >= thresholds[label]) > max(of_label) - 0.01
    in_steps = probabilities.round(1)  # equally probable documents are chosen together
    best = [max(f1_score(labels[:, label], in_steps[:, label] >= step) for step in tried) for label in range(3)]
    assert fit_thresholds(in_steps, labels) == pytest.approx(np.array(best) / 2)
    labels[:, 1] = 0
    assert fit_thresholds(probabilities, labels)[1] == 0.5
    assert fit_thresholds(probabilities[:0], labels[:0]).tolist() == [0.5] * 3


def test_a_folds_decisions_depend_on_the_other_folds_alone() -> None:
    odds, labels = answers(60)
    folds = np.arange(60) % 3
    before = cross_fitted_decisions(expit(odds), labels, folds)
    changed = np.where(folds[:, None] == 1, 1 - labels, labels)
    after = cross_fitted_decisions(expit(odds), changed, folds)
    np.testing.assert_array_equal(before[folds == 1], after[folds == 1])
    sets, thresholds = decide(
        {"dev": prediction_set(odds, labels), "test": prediction_set(2 * odds, labels)}, Temperature(2.0), folds
    )
    np.testing.assert_array_equal(sets["test"].decisions, expit(odds) >= thresholds)
    expected = cross_fitted_decisions(expit(odds / 2), labels, folds)
    np.testing.assert_array_equal(sets["dev"].decisions, expected)
    alone = cross_fitted_decisions(expit(odds), labels, np.zeros(60, dtype=np.int64))
    np.testing.assert_array_equal(alone, odds >= 0)


def test_the_table_of_labels_and_labels_that_are_never_predicted() -> None:
    labels = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
    odds = np.array([[2.0, -1, -1], [-3, -2, -1], [1, -3, -1], [-2, -4, -1]])
    rows = label_table(prediction_set(odds, labels))
    assert [(row.label, row.support, row.predicted) for row in rows] == [
        ("law firm", 2, 2),
        ("tax", 2, 0),
        ("7", 0, 0),
    ]
    assert (rows[0].precision, rows[0].recall, rows[0].f1) == (0.5, 0.5, 0.5)
    assert rows[0].average_precision == pytest.approx(average_precision_score(labels[:, 0], odds[:, 0]))
    assert rows[2].average_precision is None
    assert never_predicted(prediction_set(odds, labels)) == ["tax"]
    single = PredictionSet(("a", "b", "c"), (0, 1, 1), np.array([[2.0, 1], [1, 0], [1, 0]]), NAMES[:2])
    assert [(row.support, row.predicted) for row in label_table(single)] == [(1, 3), (2, 0)]
    assert never_predicted(single) == ["tax"]


def test_paired_scores_are_the_f1_of_documents() -> None:
    labels = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    first = prediction_set(np.array([[1.0, 1, 1], [-1, -1, -1], [-1, -1, -1]]), labels)
    second = prediction_set(np.array([[1.0, 1, -1], [1, -1, -1], [-1, 1, -1]]), labels)
    scores = paired_scores(first, second)
    assert scores[0].tolist() == [0.8, 1.0, 0.0] and scores[1].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("decimals", [8, 0])
def test_the_interval_of_average_precision_resamples_documents(decimals: int) -> None:
    """Also where many documents have the same score."""
    odds, labels = answers(80)
    odds = odds.round(decimals)
    low, high = average_precision_interval(odds, labels)
    assert low < average_precision_score(labels, odds) < high
    generator = np.random.default_rng(0)
    drawn = [generator.integers(80, size=80) for _ in range(200)]
    found = [average_precision_score(labels[rows], odds[rows]) for rows in drawn]
    assert (low, high) == pytest.approx(tuple(np.quantile(found, [0.025, 0.975])), abs=1e-9)


# --- mixes and TF-IDF -------------------------------------------------------------------------------------------


def test_a_mix_of_yes_or_no_questions_is_the_mix_of_all_of_them() -> None:
    odds, labels = answers(120)
    generator = np.random.default_rng(3)
    noisy = [odds + generator.normal(size=odds.shape) * noise for noise in (0.5, 1.0, 8.0)]
    parts = [Part("one", (1.0, 2.0), yes_or_no(np.stack(noisy[1:]))), Part("two", (1.0,), yes_or_no([noisy[0]]))]
    folds = np.arange(120) % 4
    found = cross_fit(parts, labels, folds)
    flat = [Part(part.name, part.candidates, part.logits.reshape(len(part.candidates), -1, 2)) for part in parts]
    expected = cross_fit(flat, labels.ravel(), np.repeat(folds, 3))
    assert found.final.chosen == expected.final.chosen == {"one": 0, "two": 0}
    assert found.final.weights == pytest.approx(expected.final.weights)
    np.testing.assert_allclose(found.log_probabilities.reshape(-1, 2), expected.log_probabilities)
    mean = log_odds(mean_answer(yes_or_no(np.stack(noisy))))
    np.testing.assert_allclose(expit(mean), np.mean([expit(one) for one in noisy], axis=0))


@pytest.mark.parametrize("metric", ["average_precision", "macro_f1", "micro_f1", None])
def test_candidates_are_ranked_by_the_metric(metric: str | None) -> None:
    odds, labels = answers(200)
    shifted = odds + np.array([3.0, 0.0, -3.0])  # ranks documents as well, but is not calibrated
    part = Part("one", (1.0, 2.0), yes_or_no(np.stack([shifted, odds + 0.1 * np.sin(50 * odds)])))
    best = ranked(part, labels, np.ones(200, dtype=bool), metric)[0]
    scores = [score(one, labels, metric or "macro_f1") for one in part.logits]
    assert best == (1 if metric is None else int(np.argmax(scores)))
    if metric == "average_precision":
        assert scores[0] == pytest.approx(average_precision_score(labels, odds))


def test_macro_f1_chooses_for_rare_classes() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    never, often = np.tile([2.0, 0.0], (100, 1)), np.tile([2.0, 0.0], (100, 1))
    often[85:] = [0.0, 0.1]
    part = Part("one", (1.0, 2.0), np.stack([never, often]))
    assert score(never, labels, "micro_f1") == 0.9 and score(never, labels, "macro_f1") < 0.5
    assert ranked(part, labels, np.ones(100, dtype=bool), "macro_f1") == [1, 0]


TEXTS = [
    f"iron and {word} {other}" for other in ("gold", "tin", "gold", "tin") for word in ("pears", "plums", "salt")
]
SETS = [(0,) * ("pears" in text) + (1,) * ("gold" in text) + (2,) for text in TEXTS]


def test_tfidf_has_an_svm_for_every_label(tmp_path: Path) -> None:
    labels = np.array([[place in one for place in range(4)] for one in SETS]).astype(int)
    (model,) = fit_tfidf(TEXTS, labels, 4, [1.0])
    scores = model.scores(TEXTS)
    assert ((scores[:, :2] > 0) == labels[:, :2]).all()
    assert (scores[:, 2] == 8).all() and (scores[:, 3] == -8).all()  # of a label that all have, and one that none has
    (alone,) = fit_tfidf(TEXTS, labels[:, 0], 2, [1.0])
    np.testing.assert_allclose(scores[:, 0], alone.scores(TEXTS)[:, 1], atol=1e-3)
    model.save(tmp_path)
    np.testing.assert_array_equal(TfidfModel.load(tmp_path).scores(TEXTS), scores)
    folds = np.arange(12) % 3
    left_out = held_out_scores(TEXTS, labels, 4, folds, [1.0])
    (without,) = fit_tfidf(
        [text for text, fold in zip(TEXTS, folds, strict=True) if fold], labels[folds > 0], 4, [1.0]
    )
    np.testing.assert_allclose(left_out[0, folds == 0], without.scores(TEXTS[::3]), atol=1e-3)
