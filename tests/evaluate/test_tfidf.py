"""The linear model of words: what it learns, what it reads, against scikit-learn, and its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from prefixprop.evaluate import C_VALUES, TfidfModel, fit_tfidf, held_out_scores, tfidf

TEXTS = [f"apples and pears number {i}" for i in range(6)] + [f"iron with copper number {i}" for i in range(4)]
LABELS = [0] * 6 + [2] * 4
ASKED = ["pears", "copper iron", "unseen", ""]


def fitted(texts: list[str] = TEXTS, labels: list[int] = LABELS, num_labels: int = 3) -> TfidfModel:
    return fit_tfidf(texts, labels, num_labels, [1.0])[0]


def test_learns_words_and_never_predicts_a_label_it_never_saw() -> None:
    scores = fitted().scores(ASKED)
    assert scores.shape == (4, 3) and scores[:2].argmax(axis=1).tolist() == [0, 2]
    assert (scores[:, 1] < scores[:, [0, 2]].min(axis=1)).all()
    assert fitted().scores([]).shape == (0, 3)


def test_tells_three_labels_apart() -> None:
    texts, labels = ["iron", "iron", "pear", "pear", "salt", "salt"], [0, 0, 1, 1, 2, 2]
    assert fitted(texts, labels).scores(texts).argmax(axis=1).tolist() == labels


def test_is_a_linear_svm_on_the_tfidf_of_words_and_half_that_of_pairs() -> None:
    generator = np.random.default_rng(0)
    words = np.array(["iron", "pear", "salt", "gold", "plum", "lead", "fig", "tin"])
    texts = [" ".join(generator.choice(words, 12)) for _ in range(30)]
    labels = generator.integers(3, size=30)
    blocks = []
    for size, length in ((1, 1.0), (2, 0.5)):
        vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(size, size), min_df=2)
        blocks.append(length * vectorizer.fit_transform(texts).toarray())
    features = np.concatenate(blocks, axis=1)
    for model in fit_tfidf(texts, labels, 3):
        svm = LinearSVC(C=model.c, class_weight="balanced", random_state=0).fit(features, labels)
        margins = model.scores(texts) / tfidf._LOGITS_PER_MARGIN
        np.testing.assert_allclose(margins, svm.decision_function(features), atol=2e-3)  # as exact as the SVM's fit


def test_a_model_for_every_c_on_the_same_features() -> None:
    models = fit_tfidf(TEXTS, LABELS, 3)
    assert tuple(model.c for model in models) == C_VALUES
    for model in models:
        assert model.terms is models[0].terms and model.idf is models[0].idf
        alone = fit_tfidf(TEXTS, LABELS, 3, [model.c])[0]
        np.testing.assert_array_equal(model.scores(ASKED), alone.scores(ASKED))
    assert not np.allclose(models[0].scores(ASKED), models[-1].scores(ASKED))


def test_held_out_scores_come_from_the_other_folds_alone() -> None:
    folds = np.arange(len(TEXTS)) % 3
    scores = held_out_scores(TEXTS, LABELS, 3, folds)
    for fold in range(3):
        others = np.flatnonzero(folds != fold)
        models = fit_tfidf([TEXTS[i] for i in others], [LABELS[i] for i in others], 3)
        for model, of_c in zip(models, scores, strict=True):
            texts = [text for text, its_fold in zip(TEXTS, folds, strict=True) if its_fold == fold]
            np.testing.assert_allclose(of_c[folds == fold], model.scores(texts), atol=1e-6)


def test_every_text_is_answered_also_those_that_are_too_many_to_learn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = 4 * TEXTS, 4 * LABELS
    monkeypatch.setattr(tfidf, "_MOST_CHARACTERS", sum(map(len, texts)) // 2)
    scores = held_out_scores(texts, labels, 3, np.arange(len(texts)) % 2)
    assert (scores.argmax(axis=2) == labels).all()


def test_reads_pairs_of_words_and_words_alone_where_there_is_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = ["not good but bad"] * 3 + ["not bad but good"] * 3, [0] * 3 + [1] * 3
    asked = ["not good", "not bad"]
    model = fitted(texts, labels, 2)
    assert model.scores(asked).argmax(axis=1).tolist() == [0, 1] and "pairs" in model.name
    monkeypatch.setattr(tfidf, "_MOST_CHARACTERS_WITH_PAIRS", 10)
    model = fitted(texts, labels, 2)
    np.testing.assert_allclose(*model.scores(asked))
    assert "pairs" not in model.name


@pytest.mark.parametrize(
    ("texts", "labels", "complaint"),
    [
        (TEXTS[:6], LABELS[:6], "at least two labels"),
        ([], [], "at least two labels"),
        (["iron", "pears"], [0, 1], "a word that occurs in two"),
    ],
)
def test_nothing_to_learn(texts: list[str], labels: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fitted(texts, labels)


def test_of_very_much_text_a_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfidf, "_MOST_CHARACTERS", 6 * len(TEXTS[0]))
    read = fitted().documents
    assert 5 <= read <= 7
    monkeypatch.setattr(tfidf, "_FEW_LABELS", 1)
    assert fitted().documents < read, "more labels take longer"


@pytest.mark.parametrize("labels", [LABELS, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]], ids=["two labels", "three"])
def test_a_loaded_model_is_the_same(tmp_path: Path, labels: list[int]) -> None:
    model = fitted(labels=labels)
    model.save(tmp_path / "run")
    loaded = TfidfModel.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.scores(ASKED), model.scores(ASKED), atol=1e-5)
    for name in ("c", "num_labels", "documents", "with_pairs", "name"):
        assert getattr(loaded, name) == getattr(model, name)


def test_a_file_of_other_hashing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted().save(tmp_path)
    monkeypatch.setattr(tfidf, "_COLUMNS", 2**18)
    with pytest.raises(ValueError, match="hashed to 1048576 columns, not 262144"):
        TfidfModel.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"nothing", None], ids=["empty", "something else", "cut"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    fitted().save(tmp_path)
    path = tmp_path / tfidf.TFIDF_FILE
    path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    with pytest.raises(ValueError, match="restore it from a copy, or train again"):
        TfidfModel.load(tmp_path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    save_file({"weight": np.ones(3)}, tmp_path / tfidf.TFIDF_FILE)
    with pytest.raises(ValueError, match="no TF-IDF model"):
        TfidfModel.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        TfidfModel.load(tmp_path / "nowhere")
