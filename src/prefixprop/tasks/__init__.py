"""Data sets: one file per data set, files of your own, and the containers and readers they share."""

from __future__ import annotations

from prefixprop.tasks.arxiv import load_arxiv
from prefixprop.tasks.documents import SPLIT_NAMES, ClassificationTask, Document, Split
from prefixprop.tasks.encoding import ChunkedDocuments, EncodedDocuments, chunk_documents, encode_documents
from prefixprop.tasks.files import load_files, load_hub
from prefixprop.tasks.hyperpartisan import load_hyperpartisan
from prefixprop.tasks.json_lines import iterate_json_lines, read_json_lines
from prefixprop.tasks.newsgroups import load_newsgroups
from prefixprop.tasks.registry import TASKS, TaskSource, load_task
from prefixprop.tasks.rows import Row, read_rows

__all__ = [
    "SPLIT_NAMES",
    "TASKS",
    "ChunkedDocuments",
    "ClassificationTask",
    "Document",
    "EncodedDocuments",
    "Row",
    "Split",
    "TaskSource",
    "chunk_documents",
    "encode_documents",
    "iterate_json_lines",
    "load_arxiv",
    "load_files",
    "load_hub",
    "load_hyperpartisan",
    "load_newsgroups",
    "load_task",
    "read_json_lines",
    "read_rows",
]
