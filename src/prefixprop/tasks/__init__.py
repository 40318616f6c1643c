"""Data sets: one file per data set, and the containers and readers they share."""

from __future__ import annotations

from prefixprop.tasks.candidate_batches import CandidateCollator
from prefixprop.tasks.candidate_input import CandidatePartTooLong, QuestionInput, add_special_tokens
from prefixprop.tasks.documents import SPLIT_NAMES, ClassificationTask, Document, Split
from prefixprop.tasks.hyperpartisan import load_hyperpartisan
from prefixprop.tasks.json_lines import read_json_lines
from prefixprop.tasks.wikihop import Question, QuestionTask, load_wikihop, read_questions
from prefixprop.tasks.wikihop_dataset import WikiHopDataset

__all__ = [
    "SPLIT_NAMES",
    "CandidateCollator",
    "CandidatePartTooLong",
    "ClassificationTask",
    "Document",
    "Question",
    "QuestionInput",
    "QuestionTask",
    "Split",
    "WikiHopDataset",
    "add_special_tokens",
    "load_hyperpartisan",
    "load_wikihop",
    "read_json_lines",
    "read_questions",
]
