"""What a run has to beat: the majority class, and TF-IDF with logistic regression, on the run's own documents.

    python benchmarks/baselines.py runs/demo

An archived run does not say where its data lay: --data-dir FOLDER does.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from prefixprop.evaluation import evaluate_predictions, majority_baseline, tfidf_baseline
from prefixprop.settings.documents import load_run_task
from prefixprop.tasks import ClassificationTask
from prefixprop.training import RunDirectory

MEASURES = ("accuracy", "micro_f1", "binary_f1", "ece")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a finished run on a classification task")
    parser.add_argument("--data-dir", help="where the run's data are now, if they were in a folder")
    options = parser.parse_args()
    run = RunDirectory(options.run)
    settings = run.read_settings()
    if options.data_dir is not None:
        settings = replace(settings, data_dir=options.data_dir)
    try:
        task = load_run_task(settings)
    except FileNotFoundError as error:
        parser.error(f"{error} Name it with --data-dir FOLDER.")
    if not isinstance(task, ClassificationTask):
        parser.error("the run is not on a classification task")
    labels = [document.label for document in task.test]
    rows = {
        "majority class": evaluate_predictions(majority_baseline(task, task.test), labels),
        "TF-IDF + logistic regression": evaluate_predictions(tfidf_baseline(task, task.test), labels),
        settings.method: run.read_metrics()["test"],
    }
    table = Table(title=f"{task.name}, {len(labels)} test documents", title_justify="left")
    table.add_column("model")
    for measure in MEASURES:
        table.add_column(measure, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{metrics[measure]:.3f}" if measure in metrics else "" for measure in MEASURES))
    Console().print(table)


if __name__ == "__main__":
    main()
