"""The row of the linear model in tables: from the runs' metrics, and no part of any contest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefixprop.report import archive_runs, find_runs, make_report
from prefixprop.report.tables.baseline import TFIDF
from prefixprop.report.tables.table import Mark, Table

from tiny_runs import finish_again, make_results


def add(folder: Path, baseline: float | None, **settings: Any) -> None:
    run = make_results(folder / f"run{len(list(folder.iterdir()))}", **settings)
    metrics = json.loads((run / "metrics.json").read_text())
    if baseline is not None:
        measures = metrics["dev"] | {"micro_f1": baseline, "ece": 0.01}
        finish_again(run, baseline={"model": "TF-IDF", "dev": measures, "test": measures})


def tables_of(folder: Path) -> dict[str, Table]:
    return {table.title: table for table in make_report([folder]).measured}


def column(table: Table, title: str) -> list[str]:
    return [cell.text for found in table.columns if found.title == title for cell in found.cells]


def test_the_baseline_is_the_last_row_and_takes_part_in_nothing(tmp_path: Path) -> None:
    for seed in (1, 2):
        add(tmp_path, 0.999, seed=seed)
        add(tmp_path, 0.999, seed=seed, method="prefix-tuning", skill=0.2)
    tables = tables_of(tmp_path)
    quality = tables["hyperpartisan, test: quality"]
    assert column(quality, "Method") == ["prefix-propagation", "prefix-tuning", TFIDF]
    f1 = next(found for found in quality.columns if found.title == "F1 micro, %")
    assert f1.cells[-1].text == "99.9" and [cell.mark for cell in f1.cells] == [Mark.BOLD, Mark.UNDERLINED, Mark.NONE]
    assert column(quality, "Learning rate")[-1] == column(quality, "Seeds")[-1] == "—"
    assert quality.notes[-1].startswith(TFIDF)
    methods = tables["hyperpartisan, test: methods"]
    assert (column(methods, "Method")[-1], column(methods, "ECE")[-1]) == (TFIDF, "0.010")
    others = [table for table in tables.values() if "quality" not in table.title and table is not methods]
    assert others and not any(TFIDF in cell.text for table in others for row in table.rows for cell in row)


def test_runs_without_a_baseline_have_no_row(tmp_path: Path) -> None:
    add(tmp_path, None)
    quality = tables_of(tmp_path)["hyperpartisan, test: quality"]
    assert column(quality, "Method") == ["prefix-propagation"] and not any(TFIDF in note for note in quality.notes)


def test_every_number_of_train_documents_has_its_baseline(tmp_path: Path) -> None:
    add(tmp_path, 0.9)
    for seed, baseline in ((1, 0.6), (2, 0.8)):
        add(tmp_path, baseline, seed=seed, max_train_documents=20)
    quality = tables_of(tmp_path)["hyperpartisan, dev: quality"]
    rows = dict(zip(column(quality, "Method"), column(quality, "F1 micro, %"), strict=True))
    assert rows[TFIDF] == "90.0" and rows[f"{TFIDF}, max train documents 20"] == "70.0 ± 14.1"


def test_the_baseline_of_a_cross_validation_is_the_mean_over_folds(tmp_path: Path) -> None:
    for fold, baseline in ((0, 0.6), (1, 0.8)):
        for method in ("prefix-propagation", "lora"):
            add(tmp_path, baseline, fold=fold, folds=2, method=method)
    (table,) = tables_of(tmp_path).values()
    assert column(table, "Method") == ["lora", "prefix-propagation", TFIDF]
    assert column(table, "F1 micro, %")[-1] == "70.0 ± 14.1" and column(table, "ECE")[-1] == "0.010"


def test_an_archive_keeps_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    add(tmp_path / "runs", 0.9)
    archive_runs(find_runs([tmp_path / "runs"]).runs, tmp_path / "archive")
    assert tables_of(tmp_path / "archive") == tables_of(tmp_path / "runs")
