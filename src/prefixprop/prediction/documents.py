"""The documents of an input that an earlier output has already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prefixprop.prediction.inputs import InputDocument
from prefixprop.prediction.outputs import LineFormat, StoredPrediction
from prefixprop.prediction.predictor import Prediction


def take_stored(
    documents: Iterator[InputDocument], stored: Iterable[StoredPrediction], form: LineFormat
) -> Iterator[tuple[InputDocument, Prediction]]:
    """Take the documents that are `stored`, whose ids must be the same, and leave the others in `documents`."""
    for earlier in stored:
        document = next(documents, None)
        if document is None:
            raise ValueError(
                f"The output has more documents than the input, from {earlier.id!r} on. Give the same input to "
                "--resume, or choose another --output."
            )
        if form.written_id(document.id) != earlier.id:
            raise ValueError(
                f"The output is of another input: it has the document {earlier.id!r} where the input has "
                f"{document.id!r}. Give the same input to --resume, or choose another --output."
            )
        yield document, earlier.prediction
