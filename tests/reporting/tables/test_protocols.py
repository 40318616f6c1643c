"""The same documents by two protocols, and what dev chose in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixprop.reporting import make_report
from prefixprop.reporting.choose.comparisons import Comparison, compare
from prefixprop.reporting.tables.notes import protocol_notes
from prefixprop.reporting.tables.protocols import protocol_tables
from prefixprop.reporting.tables.table import Place, Table
from prefixprop.runs.find import find_runs

from tiny_runs import make_results


def add(folder: Path, **settings: Any) -> Path:
    return make_results(folder / f"run{len(list(folder.iterdir()))}", **settings)


def rows_of(table: Table) -> list[dict[str, str]]:
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.rows]


def comparisons_of(folder: Path) -> tuple[Comparison, ...]:
    return compare(find_runs([folder]).runs)


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Propagation by both protocols, at other rates; tuning by the paper's, and LoRA by the last epoch alone."""
    for seed in (1, 2):
        add(tmp_path, seed=seed, skill=2.0, learning_rate=5e-3)
        add(tmp_path, seed=seed, skill=0.4, method="prefix-tuning")
        add(tmp_path, seed=seed, skill=1.0, keep="last", learning_rate=1e-2)
        add(tmp_path, seed=seed, skill=3.0, keep="last", method="lora")
    for fold in (0, 1):
        add(tmp_path, keep="last", fold=fold, folds=2, learning_rate=1e-2)
        add(tmp_path, keep="last", fold=fold, folds=2, method="lora")
    return tmp_path


def test_methods_stand_in_one_row_whatever_was_chosen(both: Path) -> None:
    (table,) = protocol_tables(comparisons_of(both))
    assert table.title == "hyperpartisan: protocols"
    by_method = {row["Method"]: row for row in rows_of(table)}
    assert list(by_method) == ["lora", "prefix-propagation", "prefix-tuning"]
    row = by_method["prefix-propagation"]
    assert row["Chosen on dev: learning rate"] == "0.005"
    assert row["Chosen by cross-validation: learning rate"] == "0.01"
    paper, last = comparisons_of(both)
    for comparison, start in ((paper, "Chosen on dev"), (last, "Chosen by cross-validation")):
        (found,) = (one.best for one in comparison.contenders if one.method == "prefix-propagation")
        low, high = (100 * value for value in sorted(found.values("test", "micro_f1")))
        assert row[f"{start}: F1 micro, %"].startswith(f"{(low + high) / 2:.1f} ± ")
        assert " to " in row[f"{start}: F1 micro, 95 % interval"]
        assert row[f"{start}: ECE"].startswith(f"{sum(found.values('test', 'ece')) / 2:.3f} ± ")
    assert {by_method["lora"][title] for title in row if title.startswith("Chosen on dev")} == {"—"}
    assert {by_method["prefix-tuning"][title] for title in row if "cross-validation" in title} == {"—"}
    assert table.notes[0].startswith("40 test documents; mean ± standard deviation over seeds")
    best = [column.title for column, *cells in zip(table.columns, *table.rows, strict=True)
            if any(cell.place is Place.FIRST for cell in cells)]  # fmt: skip
    assert {"Chosen on dev: F1 micro, %", "Chosen by cross-validation: F1 micro, %"} <= set(best)


def test_one_split_alone_is_shown_of_both(both: Path) -> None:
    (table,) = [one for one in make_report([both], split="dev").measured if one.title.endswith(": protocols")]
    assert table.notes[0].startswith("40 dev documents")
    titles = [one.title for one in make_report([both]).measured]
    assert titles[-2:] == ["hyperpartisan: protocols", "hyperpartisan, last epoch: cross-validation on train"]


def test_without_folds_it_is_the_last_epoch_and_other_documents_are_no_pair(tmp_path: Path) -> None:
    add(tmp_path)
    add(tmp_path, keep="last", documents=30)
    assert protocol_tables(comparisons_of(tmp_path)) == []
    add(tmp_path, keep="last")
    (table,) = protocol_tables(comparisons_of(tmp_path))
    assert "Last epoch: F1 micro, %" in [one.title for one in table.columns]
    assert not any("cross-validation" in note for note in table.notes)


PAPERS = "This is the split that the paper reports; "


@pytest.mark.parametrize(
    ("keep", "with_folds", "told"),
    [
        ("best", False, "but it also chose the learning rate and the epoch, so its numbers flatter. Test did not."),
        ("last", False, "but it also chose the learning rate, so its numbers flatter. Test did not."),
        ("best", True, "but it also chose the epoch, so its numbers flatter. Test did not."),
        (
            "last", True,
            "here it chose nothing: a cross-validation on train chose the learning rate, and the epoch is the last.",
        ),
    ],
)  # fmt: skip
def test_the_note_says_what_dev_chose(tmp_path: Path, keep: str, with_folds: bool, told: str) -> None:
    add(tmp_path, keep=keep)
    add(tmp_path, keep=keep, task="arxiv", epochs=20)
    if with_folds:
        add(tmp_path, keep=keep, fold=0, folds=2)
        add(tmp_path, keep=keep, fold=0, folds=2, task="arxiv", epochs=20)
    other, papers = comparisons_of(tmp_path)
    assert protocol_notes(papers, "dev")[0] == PAPERS + told
    start = "Dev" + told.removeprefix("but it").removeprefix("here it")
    assert protocol_notes(other, "dev")[0] == start
    assert not any("chose" in note for note in protocol_notes(papers, "test"))


def test_rows_without_folds_and_an_early_end_are_chosen_on_dev(tmp_path: Path) -> None:
    add(tmp_path, keep="last", early_stopping=2)
    add(tmp_path, keep="last", early_stopping=2, fold=0, folds=2)
    (comparison,) = comparisons_of(tmp_path)
    assert "but it also chose when to stop, so its numbers flatter" in protocol_notes(comparison, "dev")[0]
    add(tmp_path, keep="last", method="lora")
    (comparison,) = comparisons_of(tmp_path)
    told = "also chose when to stop and the learning rate where no cross-validation did"
    assert told in protocol_notes(comparison, "dev")[0]


def test_the_note_on_tuned_parameters_says_that_the_head_counts_on_top(both: Path) -> None:
    tables = {table.title: table for table in make_report([both]).measured}
    note = "Tuned: in percent of the encoder's parameters; the head is none of these and counts on top."
    assert note in tables["hyperpartisan, test: quality"].notes
    assert note not in tables["hyperpartisan, test: calibration"].notes
