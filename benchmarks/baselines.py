"""What a method has to beat: the majority class, and TF-IDF with logistic regression, on the documents of a recipe.

    python benchmarks/baselines.py recipes/demo.yaml
    python benchmarks/baselines.py recipes/arxiv-fine-tuning.yaml --data-dir FOLDER

A recipe says which documents these are; the `config.yaml` of a run does so too.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from prefixprop.evaluation import evaluate_predictions, majority_baseline, tfidf_baseline
from prefixprop.settings.documents import load_run_task
from prefixprop.settings.recipe import override, read_settings
from prefixprop.tasks import ClassificationTask
from prefixprop.training import RunSettings

MEASURES = ("accuracy", "micro_f1", "binary_f1", "ece")
BASELINES = {"majority class": majority_baseline, "TF-IDF + logistic regression": tfidf_baseline}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="a YAML file of settings, on a classification task")
    parser.add_argument("--data-dir", help="the folder that holds the documents, if the package does not")
    options = parser.parse_args()
    settings = override(RunSettings(), read_settings(options.recipe))
    if options.data_dir is not None:
        settings = replace(settings, data_dir=options.data_dir)
    try:
        task = load_run_task(settings)
    except FileNotFoundError as error:
        parser.error(f"{error} Name it with --data-dir FOLDER.")
    if not isinstance(task, ClassificationTask):
        parser.error("the recipe is not for a classification task")
    labels = [document.label for document in task.test]
    table = Table(title=f"{task.name}, {len(labels)} test documents", title_justify="left")
    table.add_column("model")
    for measure in MEASURES:
        table.add_column(measure, justify="right")
    for name, baseline in BASELINES.items():
        metrics = evaluate_predictions(baseline(task, task.test), labels)
        table.add_row(name, *(f"{metrics[measure]:.3f}" if measure in metrics else "" for measure in MEASURES))
    Console().print(table)


if __name__ == "__main__":
    main()
