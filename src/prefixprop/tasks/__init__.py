"""Data sets: one file per data set, and the containers and readers they share."""

from __future__ import annotations

from prefixprop.tasks.documents import SPLIT_NAMES, ClassificationTask, Document, Split
from prefixprop.tasks.hyperpartisan import load_hyperpartisan
from prefixprop.tasks.json_lines import read_json_lines

__all__ = [
    "SPLIT_NAMES",
    "ClassificationTask",
    "Document",
    "Split",
    "load_hyperpartisan",
    "read_json_lines",
]
