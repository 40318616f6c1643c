"""The paper's values."""

from __future__ import annotations

import pytest

from prefixprop.report.tables.paper import (
    FINE_TUNING,
    PROPAGATION,
    ROBERTA_TUNING,
    TUNING,
    find_paper_method,
    paper_tables,
    paper_value,
)


def test_values_are_those_of_the_reported_split_only() -> None:
    assert paper_value("newsgroups", "test", TUNING, "micro_f1") == 69.7
    assert paper_value("newsgroups", "dev", TUNING, "micro_f1") is None
    assert paper_value("hyperpartisan", "dev", FINE_TUNING, "macro_recall") == 76.2
    assert paper_value("wikihop", "test", PROPAGATION, "accuracy") == 42.2
    assert paper_value("arxiv", "test", ROBERTA_TUNING, "ece") == 0.056
    assert paper_value("wikihop", "test", PROPAGATION, "ece") is None
    assert paper_value(None, "test", PROPAGATION, "micro_f1") is None


@pytest.mark.parametrize("row", [PROPAGATION, FINE_TUNING])
def test_hyperpartisan_is_of_the_positive_class(row: object) -> None:
    precision, recall, f1 = (
        paper_value("hyperpartisan", "dev", row, measure)
        for measure in ("macro_precision", "macro_recall", "binary_f1")
    )
    assert precision and recall
    assert f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=0.1)
    assert paper_value("hyperpartisan", "dev", row, "micro_f1") is None


def test_rows_are_found_by_method_and_family() -> None:
    assert find_paper_method("prefix-tuning", None, "allenai/longformer-base-4096") is TUNING
    assert find_paper_method("prefix-tuning", None, "roberta-mini-512") is ROBERTA_TUNING
    assert find_paper_method("prefix-tuning", None, "FacebookAI/roberta-base") is ROBERTA_TUNING
    assert find_paper_method("prefix-propagation", None, "longformer-mini-4096") is PROPAGATION
    assert find_paper_method("prefix-propagation", "rbf", "longformer-mini-4096") is None
    assert find_paper_method("lora", None, "longformer-mini-4096") is None
    assert find_paper_method("fine-tuning", None, "google/bigbird-base") is None


def test_the_papers_tables_are_marked_as_its_own() -> None:
    main, calibration, time = paper_tables()
    assert [cell.text for cell in main.rows[2]] == [
        "Prefix-Propagation", "0.05", "42.2", "83.1", "83.1", "83.3", "70.1", "69.7", "71.0", "86.4", "77.7", "81.8"
    ]  # fmt: skip
    assert [cell.text for cell in calibration.rows[3]] == ["Fine-Tuning", "0.099", "0.138", "0.212"]
    assert [cell.text for cell in time.rows[1]] == ["Prefix-Tuning", "2,239", "2.1"]
    for table in (main, calibration, time):
        assert all(column.from_paper for column in table.columns[1:])
