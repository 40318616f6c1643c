"""What a method has to beat: the majority class, and TF-IDF with logistic regression, on the documents of a recipe.

    python benchmarks/baselines.py recipes/demo.yaml
    python benchmarks/baselines.py recipes/newsgroups-fine-tuning.yaml --data-dir FOLDER
    python benchmarks/baselines.py recipes/elife-fine-tuning.yaml --data-dir FOLDER --folds 5 --characters 2200

A recipe says which documents these are; the `config.yaml` of a run does so too. They are judged on test, eLife's on
dev: its test stays unseen until it is written down what will be compared on it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from prefixprop.evaluation import evaluate_predictions, majority_baseline, tfidf_baseline
from prefixprop.settings.documents import load_run_task
from prefixprop.settings.recipe import override, read_settings
from prefixprop.tasks import SPLIT_NAMES, ClassificationTask, leave_out_fold
from prefixprop.training import RunSettings

MEASURES = ("accuracy", "micro_f1", "binary_f1", "ece")
BASELINES = {"majority class": majority_baseline, "TF-IDF + logistic regression": tfidf_baseline}


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
    try:
        task = load_run_task(settings)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not isinstance(task, ClassificationTask):
        parser.error("the recipe is not for a classification task")
    task = beginnings(task, options.characters)
    if options.folds is None:
        split = options.split or ("dev" if task.name == "elife" else "test")
        parts, judged = [task], f"{len(task.split(split)):,} {split} documents"
    elif options.split is None:
        split = "dev"
        parts = [leave_out_fold(task, options.folds, fold) for fold in range(options.folds)]
        judged = f"{len(task.train):,} train documents in {options.folds} folds"
    else:
        parser.error("--folds judges on train documents, --split on others; give one of them")
    labels = [document.label for part in parts for document in part.split(split)]
    table = Table(title=f"{task.name}, {judged}", title_justify="left")
    table.add_column("model")
    for measure in MEASURES:
        table.add_column(measure, justify="right")
    for name, baseline in BASELINES.items():
        probabilities = np.concatenate([baseline(part, part.split(split)) for part in parts])
        metrics = evaluate_predictions(probabilities, labels)
        table.add_row(name, *(f"{metrics[measure]:.3f}" if measure in metrics else "" for measure in MEASURES))
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
