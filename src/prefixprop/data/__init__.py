"""Data sets: one file per data set, and the containers and readers they share."""

from __future__ import annotations

from prefixprop.data.documents import SPLIT_NAMES, ClassificationTask, Document, StoredDocuments, fingerprint
from prefixprop.data.files import load_files, load_hub
from prefixprop.data.rows import Row, iterate_json_lines, read_json_lines, read_rows
from prefixprop.data.splits import draw_sample, select_documents
from prefixprop.data.tasks import TASKS, Task, TaskSource, load_data, load_task
from prefixprop.data.tokens import DocumentCollator, chunk_documents, encode_documents, pad_documents
from prefixprop.data.wikihop import (
    CandidateCollator,
    Question,
    QuestionTask,
    WikiHopDataset,
    add_special_tokens,
    read_questions,
)

__all__ = [
    "SPLIT_NAMES",
    "TASKS",
    "CandidateCollator",
    "ClassificationTask",
    "Document",
    "DocumentCollator",
    "Question",
    "QuestionTask",
    "Row",
    "StoredDocuments",
    "Task",
    "TaskSource",
    "WikiHopDataset",
    "add_special_tokens",
    "chunk_documents",
    "draw_sample",
    "encode_documents",
    "fingerprint",
    "iterate_json_lines",
    "load_data",
    "load_files",
    "load_hub",
    "load_task",
    "pad_documents",
    "read_json_lines",
    "read_questions",
    "read_rows",
    "select_documents",
]
