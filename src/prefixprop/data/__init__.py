"""Data sets: one file per data set, and the containers and readers they share."""

from __future__ import annotations

from prefixprop.data.batches import CandidateCollator, DocumentCollator, pad_documents
from prefixprop.data.documents import SPLIT_NAMES, ClassificationTask, Document, Split, fingerprint
from prefixprop.data.elife import load_elife
from prefixprop.data.encoding import ChunkedDocuments, EncodedDocuments, chunk_documents, encode_documents
from prefixprop.data.files import load_files, load_hub
from prefixprop.data.hyperpartisan import load_hyperpartisan
from prefixprop.data.newsgroups import load_newsgroups
from prefixprop.data.registry import TASKS, Task, TaskSource, load_arxiv, load_data, load_task
from prefixprop.data.rows import Row, iterate_json_lines, read_json_lines, read_rows
from prefixprop.data.splits import draw_sample, leave_out_fold, select_documents
from prefixprop.data.wikihop import (
    CandidatePartTooLong,
    Question,
    QuestionInput,
    QuestionTask,
    WikiHopDataset,
    add_special_tokens,
    load_wikihop,
    read_questions,
)

__all__ = [
    "SPLIT_NAMES",
    "TASKS",
    "CandidateCollator",
    "CandidatePartTooLong",
    "ChunkedDocuments",
    "ClassificationTask",
    "Document",
    "DocumentCollator",
    "EncodedDocuments",
    "Question",
    "QuestionInput",
    "QuestionTask",
    "Row",
    "Split",
    "Task",
    "TaskSource",
    "WikiHopDataset",
    "add_special_tokens",
    "chunk_documents",
    "draw_sample",
    "encode_documents",
    "fingerprint",
    "iterate_json_lines",
    "leave_out_fold",
    "load_arxiv",
    "load_data",
    "load_elife",
    "load_files",
    "load_hub",
    "load_hyperpartisan",
    "load_newsgroups",
    "load_task",
    "load_wikihop",
    "pad_documents",
    "read_json_lines",
    "read_questions",
    "read_rows",
    "select_documents",
]
