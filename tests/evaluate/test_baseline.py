"""The baselines of a task: TF-IDF against scikit-learn, what it reads, its file; BM25 by hand; what both reach."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from prefixprop.data import ClassificationTask, Document, load_task
from prefixprop.evaluate import (
    C_VALUES,
    TEMPERATURE_SPREAD,
    TfidfModel,
    baseline,
    evaluate_predictions,
    fit_temperature,
    fit_tfidf,
    held_out_scores,
    measure_baseline,
)
from prefixprop.evaluate.baseline import bm25

TEXTS = [f"apples and pears number {i}" for i in range(6)] + [f"iron with copper number {i}" for i in range(4)]
LABELS = [0] * 6 + [2] * 4
ASKED = ["pears", "copper iron", "unseen", ""]
DEV = (Document("d0", "pears", 0), Document("d1", "copper iron", 2), Document("d2", "unseen", 1))
TRAIN = tuple(Document(str(place), *one) for place, one in enumerate(zip(TEXTS, LABELS, strict=True)))
TOY = ClassificationTask("toy", ("fruit", "stone", "metal"), train=TRAIN, dev=DEV, test=())


def fitted(texts: list[str] = TEXTS, labels: list[int] = LABELS, num_labels: int = 3) -> TfidfModel:
    return fit_tfidf(texts, labels, num_labels, [1.0])[0]


def test_learns_words_and_never_predicts_a_label_it_never_saw() -> None:
    scores = fitted().scores(ASKED)
    assert scores.shape == (4, 3) and scores[:2].argmax(axis=1).tolist() == [0, 2]
    assert (scores[:, 1] < scores[:, [0, 2]].min(axis=1)).all()
    assert fitted().scores([]).shape == (0, 3)


@pytest.mark.parametrize("weight", ["balanced", None])
def test_is_a_linear_svm_on_the_tfidf_of_words_and_half_that_of_pairs(weight: str | None) -> None:
    generator = np.random.default_rng(0)
    words = np.array(["iron", "pear", "salt", "gold", "plum", "lead", "fig", "tin"])
    texts = [" ".join(generator.choice(words, 12)) for _ in range(30)]
    labels = generator.choice(3, size=30, p=[0.6, 0.2, 0.2])
    blocks = []
    for size, length in ((1, 1.0), (2, 0.5)):
        vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(size, size), min_df=2)
        blocks.append(length * vectorizer.fit_transform(texts).toarray())
    features = np.concatenate(blocks, axis=1)
    models = fit_tfidf(texts, labels, 3, class_weight=weight)
    assert tuple(model.c for model in models) == C_VALUES
    for model in models:
        svm = LinearSVC(C=model.c, class_weight=weight, random_state=0).fit(features, labels)
        margins = model.scores(texts) / baseline._LOGITS_PER_MARGIN
        np.testing.assert_allclose(margins, svm.decision_function(features), atol=2e-3)  # as exact as the SVM's fit


def test_held_out_scores_come_from_the_other_folds_alone() -> None:
    folds = np.arange(len(TEXTS)) % 3
    scores = held_out_scores(TEXTS, LABELS, 3, folds)
    for fold in range(3):
        others = np.flatnonzero(folds != fold)
        models = fit_tfidf([TEXTS[i] for i in others], [LABELS[i] for i in others], 3)
        for model, of_c in zip(models, scores, strict=True):
            np.testing.assert_allclose(of_c[folds == fold], model.scores(TEXTS[fold::3]), atol=1e-6)


def test_reads_pairs_of_words_and_words_alone_where_there_is_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = ["not good but bad"] * 3 + ["not bad but good"] * 3, [0] * 3 + [1] * 3
    asked = ["not good", "not bad"]
    model = fitted(texts, labels, 2)
    assert model.scores(asked).argmax(axis=1).tolist() == [0, 1] and "pairs" in model.name
    monkeypatch.setattr(baseline, "_MOST_CHARACTERS_WITH_PAIRS", 10)
    model = fitted(texts, labels, 2)
    np.testing.assert_allclose(*model.scores(asked))
    assert "pairs" not in model.name


def test_of_very_much_text_a_part_is_read_and_all_of_it_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "_MOST_CHARACTERS", 6 * len(TEXTS[0]))
    read = fitted().documents
    assert 5 <= read <= 7
    assert measure_baseline(TOY)["model"].endswith(f"linear SVM, on {read} of 10 training documents")
    monkeypatch.setattr(baseline, "_FEW_LABELS", 1)
    assert fitted().documents < read, "more labels take longer"
    texts, labels = 4 * TEXTS, 4 * LABELS
    monkeypatch.setattr(baseline, "_MOST_CHARACTERS", sum(map(len, texts)))
    scores = held_out_scores(texts, labels, 3, np.arange(len(texts)) % 2)
    assert (scores.argmax(axis=2) == labels).all()


@pytest.mark.parametrize(
    ("texts", "labels", "complaint"),
    [
        (TEXTS[:6], LABELS[:6], "two labels, also where a fold is left out; give more documents of the rare labels"),
        ([], [], "at least two labels"),
        (["iron", "pears"], [0, 1], "a word that occurs in two"),
    ],
)
def test_nothing_to_learn(texts: list[str], labels: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fitted(texts, labels)


@pytest.mark.parametrize("labels", [LABELS, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]], ids=["two labels", "three"])
def test_a_loaded_model_is_the_same(tmp_path: Path, labels: list[int]) -> None:
    model = fitted(labels=labels)
    model.save(tmp_path / "run")
    loaded = TfidfModel.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.scores(ASKED), model.scores(ASKED), atol=1e-5)
    for name in ("c", "num_labels", "documents", "with_pairs", "name"):
        assert getattr(loaded, name) == getattr(model, name)


@pytest.mark.parametrize("damage", ["cut", "other hashing", "other weights"])
def test_what_is_no_file_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    fitted().save(tmp_path)
    path, complaint = tmp_path / baseline.TFIDF_FILE, "no TF-IDF model .*restore it from a copy, or train again"
    if damage == "other hashing":
        monkeypatch.setattr(baseline, "_COLUMNS", 2**18)
        complaint = "hashed to 1048576 columns, not 262144"
    elif damage == "other weights":
        save_file({"weight": np.ones(3)}, path)
    else:
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=complaint):
        TfidfModel.load(tmp_path)


def test_measures_calibrated_answers_to_the_dev_and_the_test_set() -> None:
    (model,) = fit_tfidf(TEXTS, LABELS, 3, [baseline.DEFAULT_C])
    scores = model.scores([document.text for document in DEV])
    calibrated = fit_temperature(scores, [0, 2, 1], TEMPERATURE_SPREAD).apply(scores)
    assert measure_baseline(TOY) == {
        "model": "TF-IDF of words and word pairs, linear SVM",
        "dev": evaluate_predictions(calibrated, [0, 2, 1]),
    }
    assert set(measure_baseline(replace(TOY, test=DEV))) == {"model", "dev", "test"}


def test_hyperpartisan() -> None:
    found = measure_baseline(load_task("hyperpartisan"))
    for split in ("dev", "test"):
        assert found[split]["accuracy"] > 0.72 and found[split]["binary_f1"] > 0.65


def test_scores_of_bm25_are_those_of_the_formula() -> None:
    texts = ["the cat sat", "the dog sat on the mat", "birds"]
    rare, common = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)  # of words that one and two of three texts have
    norms = [1.5 * (0.25 + 0.75 * length / (10 / 3)) for length in (3, 6, 1)]
    expected = [
        common * 2.5 / (1 + norms[0]) + rare * 2.5 / (1 + norms[0]),
        common * 2 * 2.5 / (2 + norms[1]),
        0.0,
    ]
    np.testing.assert_allclose(bm25("The CAT, unseen", texts), expected)
    np.testing.assert_allclose(bm25("cat cat", texts)[0], 2 * bm25("cat", texts)[0])
    assert bm25("", texts).tolist() == bm25("cat", ["", "", ""]).tolist() == [0, 0, 0]
