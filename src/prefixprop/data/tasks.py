"""The data sets that have a name, one row each: `load_task("newsgroups")`.

A new task is a loader and a row here; from another package, `TASKS[row.name] = row`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixprop.data.documents import ClassificationTask
from prefixprop.data.elife import load_elife
from prefixprop.data.files import load_files, load_hub
from prefixprop.data.loaders import (
    clean_text,
    load_arxiv,
    load_cuad,
    load_hybridqa,
    load_hyperpartisan,
    load_newsgroups,
)
from prefixprop.data.wikihop import QuestionTask, load_wikihop

Task = ClassificationTask | QuestionTask
SHIPPED = "the package"
DOCUMENTS, QUESTIONS = "documents", "questions"  # kinds of tasks


@dataclass(frozen=True)
class TaskSource:
    """What is known about a data set before it is loaded.

    Attributes:
        name: Its name on the command line.
        summary: What it is, in one line.
        origin: Where its documents come from when no data directory is given.
        metric: The metric on the dev set by which the best checkpoint is chosen.
        load: Loads it, from a data directory if one is given.
        max_length: How many tokens of a document the paper reads with Longformer; None: as many as the model can.
        method: The method that is trained by default.
        batch_size: Documents per step.
        epochs: How many epochs the paper trains (Appendix A); None: see `default_epochs`.
        num_virtual_tokens: The length of the paper's prefix.
        prepare: Cleans any text before a model that was trained on this task reads it.
        kind: What its examples are: `DOCUMENTS` with a label, or `QUESTIONS` with candidates.
        has_baseline: Whether there is a baseline: TF-IDF for documents, BM25 for questions with a support for each
            candidate.
    """

    name: str
    summary: str
    origin: str
    metric: str
    load: Callable[[Path | None], Task]
    max_length: int | None = 4096
    method: str = "prefix-propagation"
    batch_size: int = 32
    epochs: int | None = 10
    num_virtual_tokens: int = 8
    prepare: Callable[[str], str] = str
    kind: str = DOCUMENTS
    has_baseline: bool = True


# The paper chooses by the F1-score on the dev set (Appendix, Training), and reports micro-F1.
_SOURCES = (
    TaskSource(
        name="hyperpartisan",
        summary="Hyperpartisan news or not: 2 classes, 516 / 64 / 625 articles",
        origin=SHIPPED,
        metric="micro_f1",
        load=load_hyperpartisan,
        epochs=20,
        prepare=clean_text,
    ),
    TaskSource(
        name="newsgroups",
        summary="20-newsgroups by date: 20 classes, 11,314 / 3,766 / 3,766 posts",
        origin="scikit-learn's fetch_20newsgroups",
        metric="micro_f1",
        # No `prepare`: removing headers would remove the first paragraph of any document that is not a post.
        load=load_newsgroups,
    ),
    TaskSource(
        name="arxiv",
        summary="Subjects of arXiv papers: 11 classes, 28,388 / 2,500 / 2,500 papers",
        origin="hub: ccdv/arxiv-classification (no_ref)",
        metric="micro_f1",
        load=load_arxiv,
    ),
    TaskSource(
        name="elife",
        summary="Subjects of eLife's articles: 18 classes, 8,104 / 600 / 800 articles",
        origin="prefixprop build-elife, as a data directory",
        metric="micro_f1",
        load=load_elife,
    ),
    TaskSource(
        name="cuad",
        summary="Clauses of commercial contracts: 29 labels, several each; 510 contracts without a split",
        origin="public files, as a data directory (see 'Several labels' in the docs)",
        metric="average_precision",
        load=load_cuad,
        method="readers",
    ),
    TaskSource(
        name="wikihop",
        summary="WikiHop: questions over many documents, one of several candidates",
        origin="QAngaroo, as a data directory",
        metric="accuracy",
        load=load_wikihop,
        num_virtual_tokens=32,
        kind=QUESTIONS,
        has_baseline=False,
    ),
    TaskSource(
        name="hybridqa",
        summary="Which row of a table holds the answer (HybridQA): 1,520 / 187 / 395 questions, 16 rows each",
        origin="public files, as a data directory (see 'Several labels' in the docs)",
        metric="accuracy",
        load=load_hybridqa,
        num_virtual_tokens=32,
        kind=QUESTIONS,
    ),
)
TASKS: dict[str, TaskSource] = {source.name: source for source in _SOURCES}


# The user's documents, from files or the hub. Their defaults were chosen on folds (docs/defaults.md): few documents
# are for a prefix with LoRA, trained for ten epochs, many for readers, or for five epochs of another method.
EPOCHS_OF_FEW, EPOCHS_OF_MANY, METHOD_OF_MANY, MANY_DOCUMENTS = 10, 5, "readers", 1000
OWN_DOCUMENTS = TaskSource(
    name="files",
    summary="Your documents",
    origin="files, or a data set of the hub",
    metric="micro_f1",
    load=lambda _: load_files(()),  # which says that it needs files
    max_length=None,
    method="prefix-propagation+lora",
    batch_size=8,
    epochs=None,
)


def default_epochs(documents: int) -> int:
    """How many epochs so many training documents of the user are trained for."""
    return EPOCHS_OF_MANY if documents >= MANY_DOCUMENTS else EPOCHS_OF_FEW


def readers_schedule(documents: int) -> tuple[int, int]:
    """How many epochs readers are trained for, and how many documents make a step."""
    if documents < 1000:
        return 10, 8
    return (5, 16) if documents < 5000 else (3, 32)


def load_task(name: str, data_dir: str | Path | None = None) -> Task:
    """Load the data set of that name, from `data_dir` if given, otherwise from its origin."""
    if name not in TASKS:
        raise ValueError(f"Unknown task {name!r}; choose one of {', '.join(TASKS)}.")
    return TASKS[name].load(None if data_dir is None else Path(data_dir))


def load_data(
    task: str | None = None,
    data_dir: str | Path | None = None,
    hub_dataset: str | None = None,
    hub_config: str | None = None,
    train_files: Sequence[str] = (),
    dev_files: Sequence[str] = (),
    test_files: Sequence[str] = (),
    **columns: Any,
) -> Task:
    """Load a task by its name, or a data set of the hub, or the user's files."""
    if task is not None:
        return load_task(task, data_dir)
    columns = {name: value for name, value in columns.items() if value is not None}
    if hub_dataset is not None:
        return load_hub(hub_dataset, hub_config, **columns)
    return load_files(train_files, dev_files, test_files, **columns)
