"""Predicting a stream of documents, from its beginning or from where an earlier output ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from prefixprop.prediction.inputs import InputDocument
from prefixprop.prediction.outputs import StoredPrediction
from prefixprop.prediction.predictor import Prediction, PredictionOptions, predict_window, windows
from prefixprop.prediction.trained_model import TrainedModel


@dataclass(frozen=True)
class PredictedWindow:
    """Consecutive documents with their predictions, of which the first `stored` were in the output already."""

    documents: list[InputDocument]
    predictions: list[Prediction]
    stored: int


def predict_documents(
    trained: TrainedModel,
    documents: Iterable[InputDocument],
    options: PredictionOptions,
    stored: Iterator[StoredPrediction],
    written_id: Callable[[str], str],
) -> Iterator[PredictedWindow]:
    """Predict all documents but those at the beginning that are `stored`, whose ids must be the same."""
    for window in windows(documents, text_of=lambda document: document.text):
        done = list(islice(stored, len(window)))
        for document, earlier in zip(window, done, strict=False):
            if written_id(document.id) != earlier.id:
                raise ValueError(
                    f"The output is of another input: it has the document {earlier.id!r} where the input has "
                    f"{document.id!r}. Give the same input to --resume, or choose another --output."
                )
        predictions = [earlier.prediction for earlier in done]
        if len(done) < len(window):
            # All of the window again: in other batches the last digits of the numbers would be others.
            predictions += predict_window(trained, [document.text for document in window], options)[len(done) :]
        yield PredictedWindow(window, predictions, len(done))
    if (surplus := next(stored, None)) is not None:
        raise ValueError(
            f"The output has more documents than the input, from {surplus.id!r} on. Give the same input to --resume, "
            "or choose another --output."
        )
