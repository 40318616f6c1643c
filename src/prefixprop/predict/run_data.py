"""A model's predictions of labelled data: a split of its run's task, or a file of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prefixprop.data import (
    CandidateCollator,
    Question,
    QuestionTask,
    StoredDocuments,
    WikiHopDataset,
    draw_sample,
    fingerprint,
    load_data,
    read_questions,
    read_rows,
    select_documents,
)
from prefixprop.data.files import Columns, label_documents
from prefixprop.data.tokens import batches_by_length
from prefixprop.evaluate import PredictionSet, question_predictions, read_predictions
from prefixprop.evaluate.metrics import log_odds
from prefixprop.predict.token_batches import inference
from prefixprop.predict.trained_model import PredictionOptions, TrainedModel, logits_of_each, output_of
from prefixprop.runs.directory import RunDirectory

BeforeAndAfter = tuple[PredictionSet, PredictionSet]  # calibration


def predict_split(
    trained: TrainedModel, split: str, options: PredictionOptions, data_dir: str | Path | None = None
) -> BeforeAndAfter:
    """Predictions of a split of the run's own task, "dev" or "test", before and after calibration."""
    items = _load_split(trained, split, data_dir)
    if not items:
        stored = RunDirectory(trained.run_dir).predictions("dev")
        of_readers = f"its answers to held-out documents are stored: `prefixprop evaluate --predictions {stored}`"
        instead = of_readers if split == "dev" else "try --split dev"
        raise ValueError(f"{trained.run_dir}: the run has no {split} documents; {instead}.")
    return _predict(trained, items, options)


def predict_file(
    trained: TrainedModel, path: str | Path, columns: Columns, options: PredictionOptions
) -> BeforeAndAfter:
    """Predictions of labelled documents, or of QAngaroo's questions for a run on WikiHop."""
    if trained.answers_questions:
        return _predict(trained, read_questions(path), options)
    return _predict(trained, _labelled(trained, [path], columns), options)


def _predict(
    trained: TrainedModel, items: StoredDocuments | Sequence[Question], options: PredictionOptions
) -> BeforeAndAfter:
    if trained.answers_questions:
        before = _predict_questions(trained, items, options)  # type: ignore[arg-type]
        return before, before.with_temperature(trained.temperature)
    assert isinstance(items, StoredDocuments)
    ids, labels, texts = tuple(items.ids), tuple(items.labels), list(items.texts)
    pieces = trained.encoded(texts, options)
    (logits,) = logits_of_each([trained], pieces, options)
    output = output_of(trained, logits, pieces, texts)
    answers = [output.log_probabilities(temperature) for temperature in (1.0, trained.temperature.value)]
    decisions = None
    if trained.thresholds is not None:
        decisions = np.exp(answers[1][..., 1]) >= np.array(trained.thresholds)
        answers = [log_odds(one) for one in answers]
    before, after = (
        PredictionSet(ids, labels, one, label_names=trained.label_names, decisions=decisions) for one in answers
    )
    return before, after


def _predict_questions(
    trained: TrainedModel, questions: Sequence[Question], options: PredictionOptions
) -> PredictionSet:
    """A question whose candidates do not fit into the model counts as wrong."""
    chunks = trained.settings.max_chunks
    dataset = WikiHopDataset(questions, trained.tokenizer, trained.max_length, max_chunks=chunks)
    collate = CandidateCollator(trained.pad_token_id, trained.tokenizer.padding_side)
    device, batch_tokens = trained.device, options.tokens_of_a_batch(trained.device)
    logits: dict[str, NDArray[np.float64]] = {}
    for indices in batches_by_length(dataset.lengths, batch_tokens):
        batch = collate([dataset[index] for index in indices])
        del batch["labels"]
        with inference(device, trained.uses_bf16, lower="--batch-tokens, or max_chunks in training"):
            rows = trained.model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
        for index, row in zip(indices, rows.double().cpu().numpy(), strict=True):
            logits[dataset.questions[index].id] = row
    return question_predictions(questions, logits)


def _load_split(
    trained: TrainedModel, split: str, data_dir: str | Path | None
) -> StoredDocuments | Sequence[Question]:
    settings = trained.settings
    if not settings.has_source:
        raise ValueError(
            f"{trained.run_dir}: the run was trained on documents in memory, which are gone; give labelled documents "
            "with --input."
        )
    if settings.task is None and data_dir is not None:
        raise ValueError(
            f"--data-dir is for runs on a named task, but {trained.run_dir} was trained on your files; give labelled "
            "documents with --input."
        )
    is_whole = split == "test" or (settings.dev_files and settings.target_precision is None)
    if settings.train_files and settings.folds is None and is_whole:
        return _load_files(trained, split)
    source = settings.source if data_dir is None else settings.source | {"data_dir": data_dir}
    whole = load_data(**source)
    if data_dir is None and not RunDirectory(trained.run_dir).has_documents(fingerprint(whole)):
        raise _changed(trained)
    task = select_documents(whole, **settings.selection)
    if not isinstance(task, QuestionTask) and task.label_names != trained.label_names:
        raise ValueError(
            f"The data has the labels {', '.join(task.label_names)}, but the run {trained.run_dir} was trained on "
            f"{', '.join(trained.label_names)}; give the data that it was trained on."
        )
    return task.split(split)


def _load_files(trained: TrainedModel, split: str) -> StoredDocuments:
    """A split of the user's files. The training files are not needed: the run knows its labels."""
    settings = trained.settings
    columns = Columns(
        settings.text_column[0], settings.label_column[0], settings.id_column, separator=settings.label_separator
    )
    found = _labelled(trained, getattr(settings, f"{split}_files"), columns)
    documents = draw_sample(found, getattr(settings, f"max_{split}_documents"), settings.seed)
    path = RunDirectory(trained.run_dir).predictions(split)
    if documents and path.is_file():
        stored = read_predictions(path)
        if (list(stored.ids), list(stored.labels)) != (documents.ids, documents.labels):
            raise _changed(trained)
    return documents


def _labelled(trained: TrainedModel, paths: Sequence[str | Path], columns: Columns) -> StoredDocuments:
    return label_documents(read_rows(paths), columns, trained.label_names, trained.prepare, trained.several_labels)


def _changed(trained: TrainedModel) -> ValueError:
    return ValueError(
        f"{trained.run_dir}: the documents have changed since the run was trained, so its splits are not what they "
        "were; restore the documents, or give labelled ones with --input."
    )
