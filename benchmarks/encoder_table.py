"""Means over the seeds and folds of a sweep's runs: a row for each task, encoder, method and setting.

    prefixprop sweep recipes/sweeps/encoders/elife-dev.yaml --data-dir elife=FOLDER
    python benchmarks/encoder_table.py runs/elife-dev

Micro-F1 of what was left out of train, or of dev, in percent, with the standard deviation over runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

SETTINGS = ("task", "max_train_documents", "model", "method", "max_length", "batch_size", "epochs", "learning_rate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of run directories")
    options = parser.parse_args()
    scores: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    floors: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for path in sorted(path for folder in options.runs for path in folder.glob("*/metrics.json")):
        settings = yaml.safe_load((path.parent / "config.yaml").read_text(encoding="utf-8"))
        metrics = json.loads(path.read_text(encoding="utf-8"))
        key = tuple(settings[name] for name in SETTINGS)
        scores[key].append(100 * metrics["dev"]["micro_f1"])
        if metrics.get("floor"):
            floors[key[:2]].append(100 * metrics["floor"]["dev"]["micro_f1"])
    console, table = Console(width=160), Table()
    for name in (*SETTINGS, "micro-F1", "runs"):
        table.add_column(name.replace("_", " "))
    for key in sorted(scores, key=str):
        values = scores[key]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        cells = ["" if value is None else str(value) for value in key]
        table.add_row(*cells, f"{statistics.mean(values):.1f}{spread}", str(len(values)))
    console.print(table)
    for (task, documents), values in floors.items():
        console.print(f"TF-IDF with a linear SVM, {task}, {documents} documents: {statistics.mean(values):.1f}")


if __name__ == "__main__":
    main()
