"""How often the promise of `--target-precision` holds, over random splits of the answers to one pool of documents.

    python benchmarks/trust.py --elife DIR --newsgroups DIR --output trust [--documents 2000] [--max-length 256]

For each data set, one run of readers on documents of the training set, or of all splits if that has too few, gives
every document an answer by a model that has not seen it. These answers are split at random 200 times. The threshold
is found on one part and checked on the other:

- guarantee: a quarter fixes the sequence of thresholds, a quarter is tested on, the other half is checked;
- estimate: half is tested on, which also fixes the sequence, the other half is checked.

The promise holds in a split if at least the target share of the accepted answers is right: of the half that is
checked (`held`), which is a sample itself, and of all documents of the pool (`held_of_all`). Without an accepted
answer it holds, and `none` counts these splits. `OUTPUT/table.jsonl` has a line for each data set, target and
variant.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prefixprop.data import ClassificationTask, Document, load_task
from prefixprop.data.documents import StoredDocuments, first_copies
from prefixprop.data.splits import draw_sample
from prefixprop.evaluate import PredictionSet, Trust, fit_trust, read_predictions
from prefixprop.progress import PrintedProgress
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train import RunDirectory, train

from measuring import add_line

TASKS = ("elife", "newsgroups", "hyperpartisan")
TARGETS = (0.9, 0.95)
SPLITS = 200


def answers(task: str, data_dir: str | None, documents: int, max_length: int, folder: Path) -> PredictionSet:
    """The cross-fitted answers of a run of readers, which is trained unless it is there."""
    run = RunDirectory(folder / f"{task}-{documents}-{max_length}")
    if not run.is_finished():
        whole = load_task(task, data_dir)
        assert isinstance(whole, ClassificationTask)
        found = whole.train
        if len(found) < documents:
            found = StoredDocuments.packed([*whole.train, *whole.dev, *whole.test])
        pool = ClassificationTask(task, whole.label_names, unlike(draw_sample(found, documents, seed=1)), (), ())
        settings = RunSettings(method="readers", max_length=max_length, keep_weights=False)
        train(settings, run.path, overwrite=True, progress=PrintedProgress(), documents=pool)
    return read_predictions(run.predictions("dev"))


def unlike(documents: Sequence[Document]) -> tuple[Document, ...]:
    """The documents without copies, numbered: those of several splits may share ids."""
    first = np.unique(first_copies(StoredDocuments.packed(documents))).tolist()
    return tuple(replace(documents[index], id=str(index)) for index in first)


def splits(pool: PredictionSet, target: float) -> Iterator[tuple[str, Trust, np.ndarray]]:
    """For every random split and variant the fitted threshold, and which documents are left to check it."""
    probabilities, labels = pool.probabilities, pool.known_labels
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(labels))
        first, second, rest = np.split(order, [len(order) // 4, len(order) // 2])
        parts = [(probabilities[part], labels[part]) for part in (first, second, order[: len(order) // 2])]
        yield "guarantee", fit_trust(target, parts[1], parts[0]), rest
        yield "estimate", fit_trust(target, parts[2]), rest


def measure(pool: PredictionSet, target: float) -> Iterator[dict[str, Any]]:
    probabilities, labels = pool.probabilities, pool.known_labels
    found: dict[str, list[dict[str, Any]]] = {}
    for variant, trust, rest in splits(pool, target):
        checked, of_all = trust.on(probabilities[rest], labels[rest]), trust.on(probabilities, labels)
        found.setdefault(variant, []).append(
            {
                "held": checked["accuracy"] is None or checked["accuracy"] >= target,
                "held_of_all": of_all["accuracy"] is None or of_all["accuracy"] >= target,
                "accepted": checked["accepted"] / checked["documents"],
                "accuracy": checked["accuracy"],
                "none": trust.threshold is None,
            }
        )
    for variant, rows in found.items():
        means = {name: np.mean([row[name] for row in rows if row[name] is not None] or [0.0]) for name in rows[0]}
        rounded = {name: round(float(value), 4) for name, value in means.items()}
        yield {"target": target, "variant": variant, **rounded}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elife", help="data directory of eLife")
    parser.add_argument("--newsgroups", help="data directory of 20-newsgroups")
    parser.add_argument("--output", type=Path, default=Path("trust"))
    parser.add_argument("--documents", type=int, default=2000, help="the most documents of a pool")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    given = parser.parse_args()
    for task in given.tasks:
        pool = answers(task, getattr(given, task, None), given.documents, given.max_length, given.output)
        accuracy = pool.evaluate()["accuracy"]
        for target in TARGETS:
            for row in measure(pool, target):
                line = {"task": task, "documents": len(pool.ids), "accuracy_of_all": round(accuracy, 4), **row}
                add_line(given.output / "table.jsonl", line)


if __name__ == "__main__":
    main()
