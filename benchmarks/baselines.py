"""What a method has to beat: the majority class, and the linear model that every run is compared with.

    python benchmarks/baselines.py recipes/demo.yaml
    python benchmarks/baselines.py recipes/newsgroups-fine-tuning.yaml --data-dir FOLDER
    python benchmarks/baselines.py recipes/elife-fine-tuning.yaml --data-dir FOLDER --folds 5 --characters 2200

A recipe says which documents these are; the `config.yaml` of a run does so too. They are judged on test, eLife's on
dev: its test stays unseen until it is written down what will be compared on it. With --folds the models are judged
on left-out folds of train, and neither dev nor test is looked at.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from prefixprop.data import SPLIT_NAMES, ClassificationTask
from prefixprop.evaluate import evaluate_predictions, measure_baseline
from prefixprop.settings.documents import load_run_task
from prefixprop.settings.recipe import override, read_settings
from prefixprop.train import RunSettings

MEASURES = ("accuracy", "micro_f1", "binary_f1", "ece")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="a YAML file of settings, on a classification task")
    parser.add_argument("--data-dir", help="the folder that holds the documents, if the package does not")
    parser.add_argument("--split", choices=("dev", "test"), help="what to judge on, if not as above")
    parser.add_argument("--folds", type=int, metavar="N", help="judge on all train documents instead, in N folds")
    parser.add_argument("--characters", type=int, metavar="N", help="read only the first N of every document")
    options = parser.parse_args()
    settings = override(RunSettings(), read_settings(options.recipe))
    if options.data_dir is not None:
        settings = replace(settings, data_dir=options.data_dir)
    if options.folds is not None and options.split is not None:
        parser.error("--folds judges on train documents, --split on others; give one of them")
    runs = [settings]
    if options.folds is not None:
        runs = [replace(settings, folds=options.folds, fold=fold) for fold in range(options.folds)]
    measured: dict[str, list[dict[str, float]]] = {}
    seconds = []
    for run in runs:
        try:
            task = load_run_task(run)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        if not isinstance(task, ClassificationTask):
            parser.error("the recipe is not for a classification task")
        task = beginnings(task, options.characters)
        split = options.split or ("dev" if options.folds is not None or task.name == "elife" else "test")
        if split == "dev":
            task = replace(task, test=())  # not even measured
        documents = task.split(split)
        started = time.monotonic()
        tfidf = measure_baseline(task)
        seconds.append(time.monotonic() - started)
        labels = [document.label for document in documents]
        counts = np.bincount([document.label for document in task.train], minlength=task.num_labels)
        majority = np.tile(counts / counts.sum(), (len(labels), 1))
        measured.setdefault("majority class", []).append(evaluate_predictions(majority, labels))
        measured.setdefault(tfidf["model"], []).append(tfidf[split])
    judged = f"{len(documents):,} {split} documents"
    if options.folds is not None:
        judged = f"means of {options.folds} folds of train"
    table = Table(title=f"{task.name}, {judged}; {statistics.fmean(seconds):.1f} s", title_justify="left")
    table.add_column("model")
    for measure in MEASURES:
        table.add_column(measure, justify="right")
    for name, found in measured.items():
        values = [[measures[measure] for measures in found if measure in measures] for measure in MEASURES]
        table.add_row(name, *(f"{statistics.fmean(value):.3f}" if value else "" for value in values))
    Console().print(table)


def beginnings(task: ClassificationTask, characters: int | None) -> ClassificationTask:
    """The task with the first so many characters of each document; None: all of them."""
    cut = {
        split: tuple(replace(document, text=document.text[:characters]) for document in task.split(split))
        for split in SPLIT_NAMES
    }
    return replace(task, **cut)


if __name__ == "__main__":
    main()
