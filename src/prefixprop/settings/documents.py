"""The documents that settings name: loading them, reducing them to what a run reads, and their fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from prefixprop.data import SPLIT_NAMES, Task, draw_sample, leave_out_fold, load_data
from prefixprop.data.cache import Writer, stored
from prefixprop.data.documents import Document, StoredDocuments
from prefixprop.data.registry import EPOCHS_OF_FEW, EPOCHS_OF_MANY, MANY_DOCUMENTS
from prefixprop.settings.run_settings import RunSettings

# Which of a run's settings say where its data are: the arguments of `load_data`.
DATA_SETTINGS = (
    "task",
    "data_dir",
    "hub_dataset",
    "hub_config",
    "train_files",
    "dev_files",
    "test_files",
    "text_column",
    "label_column",
    "id_column",
)


def load_run_task(settings: RunSettings) -> Task:
    """Load the data set that the settings name, reduced to the documents that they allow.

    With `folds`, dev is the left-out fold of train, train is the rest, and test is empty.
    """
    return cut_to_run(load_whole_task(settings), settings)


def cut_to_run(task: Task, settings: RunSettings) -> Task:
    """Those documents of a data set that the settings allow."""
    if not task.train:
        raise ValueError(f"Task {task.name!r} has no train documents.")
    if settings.folds is not None and settings.fold is not None:
        task = leave_out_fold(task, settings.folds, settings.fold)
    task = _sampled(task, "train", settings)
    if not task.dev:
        raise ValueError(f"Task {task.name!r} has no dev documents, which every run needs; give some.")
    return _sampled(_sampled(task, "dev", settings), "test", settings)


def _sampled(task: Task, split: str, settings: RunSettings) -> Task:
    sample: Any = draw_sample(task.split(split), getattr(settings, f"max_{split}_documents"), settings.seed)
    return replace(task, **{split: sample})


def choose_epochs(settings: RunSettings, whole: Task) -> int:
    """Passes over train: as set, or by its number of documents, counted before a fold is left out: folds agree."""
    if settings.epochs is not None:
        return settings.epochs
    documents = min(len(whole.train), settings.max_train_documents or len(whole.train))
    return EPOCHS_OF_MANY if documents >= MANY_DOCUMENTS else EPOCHS_OF_FEW


def load_whole_task(settings: RunSettings) -> Task:
    """The data set that the settings name."""
    return load_data(**{name: getattr(settings, name) for name in DATA_SETTINGS})


def fingerprint(task: Task) -> str:
    """Identifies a data set: the same for the same documents, wherever they are stored."""
    splits = [task.split(name) for name in SPLIT_NAMES]
    if not all(isinstance(split, StoredDocuments) or not split for split in splits):
        return _fingerprint(task)

    def fill(writer: Writer) -> None:
        writer.facts["fingerprint"] = _fingerprint(task)

    # Of documents on the disk, which are not to be read at every start.
    identities = [split.identity if isinstance(split, StoredDocuments) else "" for split in splits]
    key = f"{identities} {Document('', '', 0)}"  # a document with another field would have another fingerprint
    known: str = stored("fingerprint", key, fill).facts["fingerprint"]
    return known


def _fingerprint(task: Task) -> str:
    digest = hashlib.sha256()
    for split in SPLIT_NAMES:
        digest.update(f"{split}:".encode())
        for document in task.split(split):
            digest.update(repr(document).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
