"""HybridQA (Chen et al., 2020) as a choice among rows: which row of a table holds the answer to a question.

People wrote the questions about a Wikipedia table whose cells link to other articles, so that table and articles have
to be read together. The candidates are the rows of the table, and each has one support: its cells and the beginnings
of the articles that they link to. This is row selection, not the original task, which asks for the answer's words,
and not WikiHop, whose candidates are entities and have no supports of their own.

The questions are those of HybridQA's dev set whose answer lies in exactly one row by the authors' tracing, which is a
string match. `recipes/build_hybridqa.py` makes the task's files; questions are under the MIT licence, passages are
Wikipedia's (CC BY-SA).
"""

from __future__ import annotations

from pathlib import Path

from prefixprop.data.wikihop import QuestionTask, load_questions

_SOURCE = (
    "build the files from clones of github.com/wenhuchen/HybridQA and github.com/wenhuchen/WikiTables-WithLinks; the "
    "site says how (Several labels)"
)


def load_hybridqa(folder: str | Path | None = None) -> QuestionTask:
    """Read the files `train`, `dev` and `test` of a folder."""
    if folder is None:
        raise ValueError(f"HybridQA's rows are not on a hub: {_SOURCE}, and give --data-dir FOLDER.")
    task = load_questions("hybridqa", Path(folder), _SOURCE)
    for question in (*task.train, *task.dev, *task.test):
        if len(question.supports) != len(question.candidates):
            raise ValueError(
                f"{folder}: question {question.id!r} has {len(question.candidates)} candidates and "
                f"{len(question.supports)} supports, but every row has one support; {_SOURCE}."
            )
    return task
