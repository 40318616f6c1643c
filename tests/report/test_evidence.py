"""docs/results.md has the numbers that `prefixprop report` makes of results/evidence, and the kept adapters load."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from prefixprop import load_run
from prefixprop.evaluate import holm_correction
from prefixprop.report import find_runs, make_report

RESULTS = Path(__file__).parents[2] / "results"
PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
# The question: its archive, its method and the method that it is compared with.
PRIMARY = {
    "(a)": ("elife", "prefix-propagation", "prefix-tuning"),
    "(b)": ("elife", "prefix-reading", "prefix-propagation"),
    "(c)": ("few-labels", "prefix-propagation+lora", "tfidf"),
}


@cache
def report(archive: str, baseline: str) -> str:
    return make_report([RESULTS / "evidence" / archive], baseline=baseline).markdown()


def cells(text: str, row: str) -> list[str]:
    """The other cells of the first row that begins like this."""
    found = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", text, re.MULTILINE)
    assert found, row
    return [re.sub(r"\*\*|</?u>", "", cell).strip() for cell in found[1].split("|")]


def answer(archive: str, method: str, baseline: str) -> tuple[float, str, float]:
    """The difference in points, its interval and p-value."""
    heading = f": better than {baseline}?\n"
    _, difference, interval, p, _ = cells(report(archive, baseline).partition(heading)[2], method)
    return float(difference), interval, float(p)


@pytest.mark.parametrize("question", PRIMARY)
def test_primary_questions(question: str) -> None:
    difference, interval, p = answer(*PRIMARY[question])
    section = " ".join(PAGE.partition(f"## {question}")[2].partition("\n## ")[0].split())
    assert f"{abs(difference)} points {'ahead' if difference > 0 else 'behind'}" in section
    assert f"({interval}, p = {p:.2f}" in section


def test_the_correction_for_three_questions() -> None:
    corrected = holm_correction([answer(*question)[2] for question in PRIMARY.values()])
    assert "the p-values are {:.2f}, {:.2f} and {:.2f}".format(*corrected) in PAGE


@pytest.mark.parametrize(
    ("archive", "method"), sorted({(archive, method) for archive, *pair in PRIMARY.values() for method in pair})
)
def test_tables(archive: str, method: str) -> None:
    articles, named = {"elife": "2,400", "few-labels": "200"}[archive], method.replace("tfidf", "TF-IDF")
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {articles} | {named}"))
    of_page = [cell.strip() for cell in row.replace("**", "").split("|")[3:7]]
    section = "elife" if archive == "few-labels" else "elife, last epoch"
    methods, calibration = (
        cells(report(archive, "tfidf").partition(f"### {section}, test: {table}\n")[2], method)
        for table in ("methods", "calibration")
    )
    assert of_page == [*methods[:3], calibration[3]]


def test_tfidf_with_all_articles() -> None:
    runs = find_runs([RESULTS / "evidence" / "elife"]).runs
    (run,) = (run for run in runs if run.settings.method == "tfidf")
    test = run.metrics["test"]
    assert f"| TF-IDF | **{test['accuracy']:.1%}".rstrip("%") in PAGE
    assert f"** | **{test['ece']:.3f}** | {test['ece']:.3f} | **{test['brier']:.3f}** |" in PAGE


@pytest.mark.parametrize("folder", sorted((RESULTS / "adapters").iterdir()), ids=lambda folder: folder.name)
def test_kept_adapters_answer(folder: Path) -> None:
    (prediction,) = load_run(folder).predict(["Neurons in the visual cortex of mice respond to oriented gratings."])
    assert prediction.label == "Neuroscience"
