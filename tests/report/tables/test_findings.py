"""What the report says in sentences before any table."""

from __future__ import annotations

import shutil
from pathlib import Path

from prefixprop.report import make_report
from prefixprop.report.tables.markup import to_markdown

from tiny_runs import finish_again, make_results


def told(folder: Path, **options: str) -> list[str]:
    return list(make_report([folder], **options).measured[0].findings)  # type: ignore[arg-type]


def add(folder: Path, seeds: int, tuning: float = 0.5, **settings: object) -> None:
    for seed in range(seeds):
        make_results(folder / f"propagation{seed}", skill=2.5, seed=seed, **settings)  # type: ignore[arg-type]
        make_results(folder / f"tuning{seed}", skill=tuning, seed=seed, method="prefix-tuning", **settings)  # type: ignore[arg-type]


def test_the_papers_question_is_answered_in_words_and_by_two_tests(tmp_path: Path) -> None:
    add(tmp_path, seeds=3)
    best, compared = told(tmp_path)
    report = make_report([tmp_path])
    row = dict(zip((one.title for one in report.measured[1].columns), report.measured[1].rows[0], strict=True))
    assert best.startswith("Best on test: prefix-propagation, 9") and "% micro-F1 (95 % interval over 3 seeds" in best
    points = row["Micro-F1 difference, points"].text.removeprefix("+")
    assert compared.startswith(f"Prefix-propagation is {points} points ahead of prefix-tuning on test: 9")
    interval = row["95 % interval"].text
    assert f"That is hardly chance: with other seeds and documents it could be {interval} points (95 %" in compared
    both, student = (row[f"p, {test}"].text for test in ("seeds and documents", "Student's t"))
    assert both == student == "< 0.001"
    assert f"a bootstrap over seeds and documents, one-tailed p {both})." in compared
    assert compared.endswith(f"Student's t over seeds alone, the paper's test: one-tailed p {student}.")
    assert to_markdown(report.measured[0]).startswith(f"### hyperpartisan, test: methods\n\n{best}\n")


def test_a_small_difference_may_be_chance(tmp_path: Path) -> None:
    add(tmp_path, seeds=2, tuning=2.4)
    assert "That may be chance: " in told(tmp_path)[1]


def test_one_seed_says_nothing_about_others(tmp_path: Path) -> None:
    add(tmp_path, seeds=1)
    best, compared = told(tmp_path)
    assert best.endswith("(one seed).")
    assert "with other documents it could be" in compared and "Student" not in compared
    assert compared.endswith("One seed says nothing about other seeds; train more.")


def test_without_predictions_the_seeds_alone_are_tested(tmp_path: Path) -> None:
    add(tmp_path, seeds=2)
    for run in tmp_path.iterdir():
        shutil.rmtree(run / "predictions")
        finish_again(run)
    assert "interval" not in told(tmp_path)[1] and "test: one-tailed p = " in told(tmp_path)[1]
