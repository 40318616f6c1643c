"""What a method has to beat: the majority class, and the linear model that every run is compared with.

    python benchmarks/baselines.py recipes/demo.yaml
    python benchmarks/baselines.py recipes/arxiv-fine-tuning.yaml --data-dir FOLDER
    python benchmarks/baselines.py recipes/demo.yaml --folds 5

A recipe says which documents these are; the `config.yaml` of a run does so too. With --folds the models are
judged on left-out folds of train, and neither dev nor test is looked at.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from prefixprop.evaluation import evaluate_predictions, majority_baseline, measure_floor
from prefixprop.settings.documents import load_run_task
from prefixprop.settings.recipe import override, read_settings
from prefixprop.tasks import ClassificationTask
from prefixprop.training import RunSettings

MEASURES = ("accuracy", "micro_f1", "binary_f1", "ece")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="a YAML file of settings, on a classification task")
    parser.add_argument("--data-dir", help="the folder that holds the documents, if the package does not")
    parser.add_argument("--folds", type=int, help="judge on so many folds of train instead of test")
    options = parser.parse_args()
    settings = override(RunSettings(), read_settings(options.recipe))
    if options.data_dir is not None:
        settings = replace(settings, data_dir=options.data_dir)
    runs = [settings]
    if options.folds is not None:
        runs = [replace(settings, folds=options.folds, fold=fold) for fold in range(options.folds)]
    measured: dict[str, list[dict[str, float]]] = {}
    seconds = []
    for run in runs:
        try:
            task = load_run_task(run)
        except FileNotFoundError as error:
            parser.error(f"{error} Name it with --data-dir FOLDER.")
        if not isinstance(task, ClassificationTask):
            parser.error("the recipe is not for a classification task")
        split = "test" if options.folds is None else "dev"
        documents = task.split(split)
        started = time.monotonic()
        floor = measure_floor(task)
        seconds.append(time.monotonic() - started)
        labels = [document.label for document in documents]
        majority = evaluate_predictions(majority_baseline(task, documents), labels)
        measured.setdefault("majority class", []).append(majority)
        measured.setdefault(floor["model"], []).append(floor[split])
    judged = (
        f"{len(documents)} test documents" if options.folds is None else f"means of {options.folds} folds of train"
    )
    table = Table(title=f"{task.name}, {judged}; {statistics.fmean(seconds):.1f} s", title_justify="left")
    table.add_column("model")
    for measure in MEASURES:
        table.add_column(measure, justify="right")
    for name, found in measured.items():
        values = [[measures[measure] for measures in found if measure in measures] for measure in MEASURES]
        table.add_row(name, *(f"{statistics.fmean(value):.3f}" if value else "" for value in values))
    Console().print(table)


if __name__ == "__main__":
    main()
