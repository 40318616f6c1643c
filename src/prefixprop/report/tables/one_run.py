"""What a single run does: how it treats each label, which documents it gets wrong, and whether it knows when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from prefixprop.data import Document, Question, QuestionTask, fingerprint, load_data, select_documents
from prefixprop.data.documents import ids_of
from prefixprop.data.registry import SHIPPED, TASKS
from prefixprop.evaluate import PredictionSet, confusion_counts
from prefixprop.report.choose.comparisons import Comparison
from prefixprop.report.tables.table import Cell, Column, Table, capitalised, plain_cell, text_column
from prefixprop.runs.directory import DOCUMENTS
from prefixprop.runs.run import Run

_MISTAKES = 10
_FIRST_LETTERS = 160


def one_run_findings(comparison: Comparison, run: Run) -> list[str]:
    """How many documents are right, and whether the run is as sure as it should be."""
    split = comparison.judged_on
    accuracy, count = run.metric(split, "accuracy") or 0.0, comparison.documents[split]
    method, right = capitalised(comparison.contenders[0].method), f"{round(accuracy * count):,} of {count:,}"
    told = [f"{method} gets {right} {split} {comparison.items} right: {100 * accuracy:.1f} %."]
    ece, scaled = run.metric(split, "ece"), run.metric(f"{split}_calibrated", "ece")
    predictions = _predictions(run, split)
    if predictions is not None and ece is not None and scaled is not None:
        confidence = float(predictions.probabilities.max(axis=1).mean())
        told.append(
            f"It is {100 * confidence:.1f} % sure on average, so it is {_sureness(confidence - accuracy)}; its "
            f"calibration error is {ece:.3f}, and {scaled:.3f} after temperature scaling."
        )
    return told


def _sureness(excess: float) -> str:
    return "about as sure as it should be" if abs(excess) < 0.02 else "too sure" if excess > 0 else "not sure enough"


def one_run_tables(comparison: Comparison, run: Run, name: str) -> list[Table]:
    """The labels, and the mistakes it was surest of; none where the run has no predictions."""
    split = comparison.judged_on
    predictions = _predictions(run, split)
    if predictions is None:
        return []
    if run.temperature is not None:
        predictions = predictions.with_temperature(run.temperature)
    title, tables = f"{comparison.title}, {split}", []
    if predictions.label_names is not None:
        tables.append(_labels(predictions, predictions.label_names, f"{title}: labels", f"{name}-labels"))
    if (predictions.logits.argmax(axis=1) != predictions.known_labels).any():
        tables.append(_mistakes(predictions, run, split, f"{title}: surest mistakes", f"{name}-mistakes"))
    return tables


def _predictions(run: Run, split: str) -> PredictionSet | None:
    try:
        return run.predictions(split)
    except (ValueError, OSError):  # the figures, which need them too, say why
        return None


def _labels(predictions: PredictionSet, names: tuple[str, ...], title: str, name: str) -> Table:
    counts = confusion_counts(predictions.probabilities, predictions.known_labels)
    documents, predicted, right = counts.sum(axis=1), counts.sum(axis=0), np.diag(counts)
    columns = [
        text_column("Label", names),
        Column("Documents", [plain_cell(count, 0) for count in documents]),
        Column("Share, %", _percent(documents, np.full_like(documents, documents.sum()))),
        Column("Predicted", [plain_cell(count, 0) for count in predicted]),
        Column("Found, %", _percent(right, documents)),
        Column("Right when predicted, %", _percent(right, predicted)),
    ]
    note = "Found: of the documents with this label (recall). Right when predicted: precision."
    return Table(name, title, columns, (note,))


def _percent(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> list[Cell]:
    return [plain_cell(100 * part / whole if whole else None, 1) for part, whole in zip(parts, wholes, strict=True)]


def _mistakes(predictions: PredictionSet, run: Run, split: str, title: str, name: str) -> Table:
    probabilities, labels = predictions.probabilities, predictions.known_labels
    guesses = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(guesses != labels)
    rows = [int(row) for row in wrong[np.argsort(-probabilities[wrong, guesses[wrong]], kind="stable")][:_MISTAKES]]
    ids = [predictions.ids[row] for row in rows]
    count = f"{len(wrong):,} {'mistake' if len(wrong) == 1 else 'mistakes'}"
    notes = [f"{count} in all; first those that the run is surest of, after temperature scaling."]
    beginnings = _beginnings(run, split, ids)
    if not beginnings:
        notes.append("How they begin is not shown: the documents are not at hand, or have changed since the run.")
    columns = [
        text_column("Document", ids),
        text_column("Label", [predictions.class_names(row)[labels[row]] for row in rows]),
        text_column("Predicted", [predictions.class_names(row)[guesses[row]] for row in rows]),
        Column("Sure, %", [plain_cell(round(100 * probabilities[row, guesses[row]]), 0) for row in rows]),
        *([text_column("It begins", [beginnings[one] for one in ids])] if beginnings else []),
    ]
    return Table(name, title, columns, notes)


def _beginnings(run: Run, split: str, ids: list[str]) -> Mapping[str, str]:
    """How these documents begin; empty where they cannot be read without a download, or are not those of the run."""
    settings = run.settings
    is_shipped = settings.task is not None and TASKS[settings.task].origin == SHIPPED
    if not (settings.train_files or settings.data_dir or is_shipped):
        return {}
    try:
        whole = load_data(**settings.source)
        recorded = run.environment.get(DOCUMENTS)
        if recorded not in (None, fingerprint(whole)):
            return {}
        task = select_documents(whole, **settings.selection)
    except (ValueError, OSError, ImportError):
        return {}
    if split == "dev" and run.metrics.get("judged_on", "dev") != "dev":
        split = "train"  # without a dev set, training documents that were left out judge a run
    documents: Sequence[Document | Question] = task.split(split)
    names = [one.id for one in documents] if isinstance(task, QuestionTask) else ids_of(task.split(split))
    places = {document_id: place for place, document_id in enumerate(names)}
    if not set(ids) <= set(places):
        return {}
    return {document_id: _beginning(documents[places[document_id]]) for document_id in ids}


def _beginning(document: Document | Question) -> str:
    text = " ".join((document.text if isinstance(document, Document) else document.query).split())
    return text if len(text) <= _FIRST_LETTERS else f"{text[:_FIRST_LETTERS]} …"
