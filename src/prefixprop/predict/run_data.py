"""A model's predictions of the data that its run was evaluated on, and of the user's own data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prefixprop.choices import DEFAULT_BATCH_TOKENS
from prefixprop.data import (
    CandidateCollator,
    Document,
    Question,
    QuestionTask,
    Task,
    WikiHopDataset,
    fingerprint,
    load_data,
    read_questions,
    read_rows,
    select_documents,
)
from prefixprop.data.documents import ids_of, labels_of
from prefixprop.data.files import Columns, label_documents
from prefixprop.evaluate import PredictionSet, question_predictions
from prefixprop.predict.token_batches import batches_by_length, inference
from prefixprop.predict.trained_model import TrainedModel
from prefixprop.runs.directory import RunDirectory


def predict_split(
    trained: TrainedModel, split: str, data_dir: str | Path | None = None, batch_tokens: int = DEFAULT_BATCH_TOKENS
) -> PredictionSet:
    """Uncalibrated predictions of a split of the run's own task, "dev" or "test"."""
    settings = trained.settings
    if settings.folds is not None and split != "dev":
        raise ValueError(
            f"{trained.run_dir}: the run was evaluated on fold {settings.fold} of {settings.folds} of train, so that "
            f"settings can be chosen without {split}; try --split dev, which is the fold."
        )
    task = _load_task(trained, data_dir)
    if not task.split(split):
        raise ValueError(f"{trained.run_dir}: the run's task has no {split} documents; try --split dev.")
    if isinstance(task, QuestionTask):
        return predict_questions(trained, task.split(split), batch_tokens)
    if task.label_names != trained.label_names:
        raise ValueError(
            f"The data has the labels {', '.join(task.label_names)}, but the run {trained.run_dir} was trained on "
            f"{', '.join(trained.label_names)}; give the data that it was trained on."
        )
    return predict_labelled(trained, task.split(split), batch_tokens)


def predict_file(
    trained: TrainedModel, path: str | Path, columns: Columns, batch_tokens: int = DEFAULT_BATCH_TOKENS
) -> PredictionSet:
    """Uncalibrated predictions of labelled documents, or of QAngaroo's questions for a run on WikiHop."""
    if trained.answers_questions:
        return predict_questions(trained, read_questions(path), batch_tokens)
    documents = label_documents(read_rows([path]), columns, trained.label_names, trained.prepare)
    return predict_labelled(trained, documents, batch_tokens)


def predict_labelled(trained: TrainedModel, documents: Sequence[Document], batch_tokens: int) -> PredictionSet:
    """Uncalibrated predictions of documents whose texts are already prepared."""
    logits = trained.logits((document.text for document in documents), batch_tokens=batch_tokens)
    return PredictionSet(
        tuple(ids_of(documents)), tuple(labels_of(documents)), logits, label_names=trained.label_names
    )


def predict_questions(trained: TrainedModel, questions: Sequence[Question], batch_tokens: int) -> PredictionSet:
    """Uncalibrated predictions of questions; one whose candidates do not fit into the model counts as wrong."""
    chunks = trained.settings.max_chunks
    dataset = WikiHopDataset(questions, trained.tokenizer, trained.max_length, max_chunks=chunks, oversized="skip")
    collate = CandidateCollator(trained.pad_token_id, trained.tokenizer.padding_side)
    device = next(trained.model.parameters()).device
    logits: dict[str, NDArray[np.float64]] = {}
    for indices in batches_by_length(dataset.lengths, batch_tokens):
        batch = collate([dataset[index] for index in indices])
        del batch["labels"]
        with inference(device, trained.uses_bf16, lower="--batch-tokens, or max_chunks in training"):
            rows = trained.model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
        for index, row in zip(indices, rows.double().cpu().numpy(), strict=True):
            question = dataset.questions[index]
            logits[question.id] = row
    return question_predictions(questions, logits)


def _load_task(trained: TrainedModel, data_dir: str | Path | None) -> Task:
    settings = trained.settings
    if settings.task is None and data_dir is not None:
        raise ValueError(
            f"--data-dir is for runs on a named task, but {trained.run_dir} was trained on your own files; "
            "give labelled documents with --input."
        )
    if data_dir is not None:
        task = load_data(**settings.source | {"data_dir": data_dir})
        return select_documents(task, **settings.selection)
    task = load_data(**settings.source)
    if not RunDirectory(trained.run_dir).has_documents(fingerprint(task)):
        raise ValueError(
            f"{trained.run_dir}: the documents have changed since the run was trained, so its splits are not what "
            "they were; restore the documents, or give labelled ones with --input."
        )
    return select_documents(task, **settings.selection)
