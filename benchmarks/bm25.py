"""How often BM25 finds the row of a question of hybridqa, on each split and on all questions.

    python benchmarks/bm25.py FOLDER

FOLDER is the task's data directory (`recipes/build_hybridqa.py`). Chance is the mean of 1 / candidates.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from prefixprop.data import load_task
from prefixprop.evaluate.baseline import bm25


def main() -> None:
    parser = argparse.ArgumentParser(description="How often BM25 finds the row of a question of hybridqa.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the task's data directory")
    task = load_task("hybridqa", parser.parse_args().folder)
    splits = {name: task.split(name) for name in ("train", "dev", "test")}
    splits["all"] = tuple(question for questions in splits.values() for question in questions)
    for name, questions in splits.items():
        right = sum(
            int(bm25(question.query, question.supports).argmax()) == question.answer for question in questions
        )
        chance = sum(1 / len(question.candidates) for question in questions)
        total = len(questions)
        print(f"{name}: {right / total:.3f} of {total:,} questions (chance {chance / total:.3f})")


if __name__ == "__main__":
    main()
