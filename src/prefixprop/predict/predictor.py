"""From texts to labels with calibrated confidence, in the order given.

Documents of similar length are batched. In another batch the last digits of a prediction may differ.

A document over the model's limit is cut there (`truncate`), or read in chunks whose probabilities are averaged
(`chunk-average`). Every chunk is calibrated by itself, because the temperature was fitted on texts of that length,
and weighted by its number of tokens, so that a short remainder counts for little.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from prefixprop.choices import DEFAULT_BATCH_TOKENS, LONG_DOCUMENTS
from prefixprop.data import chunk_documents, encode_documents
from prefixprop.data.encoding import TokenIds
from prefixprop.predict.token_batches import classify

if TYPE_CHECKING:
    from prefixprop.predict.trained_model import TrainedModel


@dataclass(frozen=True)
class Prediction:
    """The model's prediction of one document.

    Attributes:
        label: The most probable label.
        confidence: Its probability, calibrated by the run's temperature.
        probabilities: The probability of every label, by name.
        tokens: How many tokens of the document were read, special tokens included.
        truncated: Whether it was cut at the model's limit.
        chunks: In how many pieces it was read.
    """

    label: str
    confidence: float
    probabilities: dict[str, float]
    tokens: int
    truncated: bool
    chunks: int = 1

    @property
    def over_limit(self) -> bool:
        """Whether the document is longer than the model reads at once."""
        return self.truncated or self.chunks > 1


@dataclass(frozen=True)
class PredictionOptions:
    """How documents are read: `long` is "truncate" or "chunk-average", `batch_tokens` the size of a batch."""

    long: str = "truncate"
    batch_tokens: int = DEFAULT_BATCH_TOKENS

    def __post_init__(self) -> None:
        if self.long not in LONG_DOCUMENTS:
            raise ValueError(f"long={self.long!r} is unknown; choose one of {', '.join(LONG_DOCUMENTS)}.")
        if self.batch_tokens < 1:
            raise ValueError(f"batch_tokens={self.batch_tokens} must be at least 1.")


@dataclass(frozen=True)
class _Pieces:
    """Texts as the model reads them: `documents[i]` is the index of the text that piece `i` is part of."""

    input_ids: list[TokenIds]
    documents: NDArray[np.int64]
    lengths: list[int]
    cut: list[bool]


def predict_together(trained: TrainedModel, texts: list[str], options: PredictionOptions) -> list[Prediction]:
    """Predict texts, at least one, batched together."""
    return [prediction for (prediction,) in predict_with_each([trained], texts, options)]


def predict_with_each(
    runs: Sequence[TrainedModel], texts: list[str], options: PredictionOptions
) -> list[tuple[Prediction, ...]]:
    """What each run predicts of texts, at least one; runs that read alike have them read and tokenized once."""
    read: dict[Hashable, _Pieces] = {}
    together: dict[tuple[int, Hashable], list[TrainedModel]] = {}
    for run in runs:
        if run.reading not in read:
            prepared = [run.prepare(text) for text in texts]
            read[run.reading] = _cut(run, prepared) if options.long == "truncate" else _chunked(run, prepared)
        together.setdefault((id(run.model), run.reading), []).append(run)
    predictions: dict[Path, list[Prediction]] = {}
    for (_, reading), (first, *others) in together.items():
        pieces, adapters = read[reading], [run.adapter for run in (first, *others)]
        reads = (first.pad_token_id, options.batch_tokens, first.uses_bf16, first.max_length)
        logits = classify(first.model, pieces.input_ids, *reads, adapters)
        for run, own in zip((first, *others), logits, strict=True):
            predictions[run.run_dir] = _predictions(run, pieces, own[:, : len(run.label_names)])
    return list(zip(*(predictions[run.run_dir] for run in runs), strict=True))


def _predictions(run: TrainedModel, pieces: _Pieces, logits: NDArray[np.float64]) -> list[Prediction]:
    count = len(pieces.lengths)
    weights = np.array([[len(ids)] for ids in pieces.input_ids], dtype=np.float64)
    weighted = run.temperature.apply(logits) * weights
    starts = np.searchsorted(pieces.documents, np.arange(count))
    averages = np.add.reduceat(weighted, starts) / np.add.reduceat(weights, starts)
    chunks = np.bincount(pieces.documents, minlength=count)
    return [
        _prediction(run.label_names, averages[index], pieces.lengths[index], pieces.cut[index], int(chunks[index]))
        for index in range(count)
    ]


def _prediction(
    names: tuple[str, ...], probabilities: NDArray[np.float64], tokens: int, truncated: bool, chunks: int
) -> Prediction:
    by_name = dict(zip(names, probabilities.tolist(), strict=True))
    label = names[int(probabilities.argmax())]
    return Prediction(label, by_name[label], by_name, tokens, truncated, chunks)


def _cut(trained: TrainedModel, texts: list[str]) -> _Pieces:
    encoded = encode_documents(texts, trained.tokenizer, trained.max_length)
    readable = [trained.readable(ids) for ids in encoded.input_ids]
    return _Pieces(readable, np.arange(len(texts)), list(encoded.lengths), list(encoded.cut))


def _chunked(trained: TrainedModel, texts: list[str]) -> _Pieces:
    chunked = chunk_documents(texts, trained.tokenizer, trained.max_length)
    special = len(trained.tokenizer("")["input_ids"])
    lengths = [special] * len(texts)
    for ids, index in zip(chunked.input_ids, chunked.documents, strict=True):
        lengths[index] += len(ids) - special
    readable = [trained.readable(ids) for ids in chunked.input_ids]
    return _Pieces(readable, np.array(chunked.documents), lengths, [False] * len(texts))
