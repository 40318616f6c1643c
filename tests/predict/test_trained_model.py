"""A trained model's predictions of texts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from prefixprop import load_run
from prefixprop.choices import LONG_DOCUMENTS
from prefixprop.evaluate import softmax
from prefixprop.predict import Prediction, PredictionSummary, TrainedModel
from prefixprop.predict.trained_model import PredictionOptions, logits_of_each

from tiny_questions import tiny_tokenizer
from tiny_runs import LABEL_NAMES, make_run, texts


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_run(make_run(tmp_path_factory.mktemp("predictor"), family="roberta"))


def test_labels_and_calibrated_probabilities_in_the_order_given(trained: TrainedModel) -> None:
    documents = texts(40, seed=3)
    predictions = trained.predict(documents, batch_tokens=64)
    options = PredictionOptions()
    alone = [logits_of_each([trained], trained.encoded([document], options), options)[0] for document in documents]
    logits = np.concatenate(alone)
    expected = softmax(logits / trained.temperature.value)
    assert trained.temperature.value > 1.5  # a forgotten temperature would show
    assert [tuple(prediction.probabilities) for prediction in predictions] == [LABEL_NAMES] * 40
    found = np.array([list(prediction.probabilities.values()) for prediction in predictions])
    assert np.abs(found - expected).max() < 1e-6
    assert [prediction.label for prediction in predictions] == [LABEL_NAMES[row.argmax()] for row in expected]
    assert all(prediction.confidence == max(prediction.probabilities.values()) for prediction in predictions)
    assert [prediction.tokens for prediction in predictions] == [len(text.split()) + 2 for text in documents]
    assert not any(prediction.truncated or prediction.chunks > 1 for prediction in predictions)


@pytest.mark.parametrize("modern", [True, False])
def test_it_computes_in_the_precision_it_was_trained_in(
    trained: TrainedModel, modern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefixprop.models.gpu.is_modern_gpu", lambda: modern)
    run = replace(trained, settings=replace(trained.settings, precision="auto"))
    assert run.limits(PredictionOptions())[1:3] == (4096, False)  # tokens of a batch, bf16
    monkeypatch.setattr(TrainedModel, "device", torch.device("cuda"))
    assert run.limits(PredictionOptions())[1:3] == (65_536, modern)


def test_a_document_over_the_limit_is_cut(trained: TrainedModel) -> None:
    long = texts(1, seed=5, longest=30)[0] + " w9" * 60
    with pytest.warns(UserWarning, match="limit of 32 tokens and cut there: 1; 58% of all tokens are not read"):
        _, cut = trained.predict(["w4 w5", long])
    (start,) = trained.predict([" ".join(long.split()[:30])])
    assert cut.truncated and (cut.tokens_read, cut.tokens) == (32, len(long.split()) + 2)
    assert list(cut.probabilities.values()) == pytest.approx(list(start.probabilities.values()), abs=1e-6)
    assert start.tokens == 32 and not start.truncated


def test_chunks_are_averaged_by_their_tokens(trained: TrainedModel) -> None:
    words = texts(1, seed=6, longest=30)[0].split() * 5 + ["w9"] * 70
    chunks = [" ".join(words[start : start + 30]) for start in range(0, len(words), 30)]
    assert len(chunks) > 2
    with pytest.warns(UserWarning, match="1 document is longer than the limit of 32 tokens and read in chunks: 1 "):
        short, long = trained.predict(["w4 w5", " ".join(words)], long="chunk-average")
    parts = trained.predict(chunks)
    weights = [len(chunk.split()) + 2 for chunk in chunks]
    expected = np.average([list(part.probabilities.values()) for part in parts], axis=0, weights=weights)
    assert list(long.probabilities.values()) == pytest.approx(expected, abs=1e-6)
    assert long.chunks == len(chunks) and long.tokens == len(words) + 2 and not long.truncated
    assert short.chunks == 1
    assert short.probabilities == pytest.approx(trained.predict(["w4 w5"])[0].probabilities, abs=1e-6)
    (cut,) = trained.predict_stream([" ".join(words)])
    assert cut.probabilities != pytest.approx(long.probabilities, abs=1e-4)


@pytest.mark.parametrize("long", LONG_DOCUMENTS)
def test_empty_documents(trained: TrainedModel, long: str) -> None:
    with pytest.warns(UserWarning, match=r"2 documents are empty: 0, 2 \(documents are numbered from 0"):
        predictions = trained.predict(["", "w5", " \n"], long=long)
    assert predictions[0].tokens == 2 and predictions[0] == predictions[2]
    assert sum(predictions[0].probabilities.values()) == pytest.approx(1)
    bare = TrainedModel(**{**vars(trained), "tokenizer": tiny_tokenizer(special_tokens=False)})
    with pytest.warns(UserWarning, match="empty"):
        empty, full = bare.predict(["", "w5 w6"], long=long)
    assert (empty.tokens, full.tokens) == (0, 2)
    assert np.isfinite(list(empty.probabilities.values())).all()


def test_nothing_to_warn_of(trained: TrainedModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(trained.predict(texts(3))) == 3
        assert trained.predict([]) == []


def test_texts_in_pieces_are_told(trained: TrainedModel) -> None:
    characters = tiny_tokenizer(special_tokens=False)
    characters.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    other = TrainedModel(**{**vars(trained), "tokenizer": characters, "max_length": 32})
    with pytest.warns(UserWarning, match=r"the texts take 6\.0 tokens per word, where English takes about 1\.2"):
        other.predict(["words " * 5] * 4)  # with their spaces
    without_encoder = SimpleNamespace(max_length=32, tokenizer=characters, model=None)
    for run, is_told in ((other, True), (without_encoder, False)):
        summary = PredictionSummary(run)  # type: ignore[arg-type]
        summary.add("d", "words " * 30, Prediction("art", 1.0, {"art": 1.0}, 180, 180, False))
        assert bool(summary.warnings()) == is_told


def test_a_stream_is_read_window_by_window(trained: TrainedModel) -> None:
    documents, taken = texts(30, seed=2), []

    def stream() -> Iterator[str]:
        for number, text in enumerate(documents):
            taken.append(number)
            yield text

    predictions = trained.predict_stream(stream())
    assert not taken
    first = next(predictions)
    assert len(taken) == 1
    next_two = [next(predictions), next(predictions)]
    assert len(taken) == 3
    found = [first, *next_two, *predictions]
    assert len(taken) == 30
    for prediction, expected in zip(found, trained.predict(documents), strict=True):
        assert prediction.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
        assert (prediction.label, prediction.tokens) == (expected.label, expected.tokens)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("w4 w5", {}, "Give a list or a column of texts"),
        (["w4", None], {}, r"Document 1 \(from 0\) must hold text, got NoneType"),
        (["w4"], {"long": "cut"}, "long='cut' is unknown; choose one of truncate, chunk-average"),
        (["w4"], {"batch_tokens": 0}, "batch_tokens=0 must be at least 1"),
    ],
)
def test_wrong_arguments(trained: TrainedModel, texts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        trained.predict(texts, **options)
