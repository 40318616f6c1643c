"""The report as a whole: its tables, pictures and page."""

from __future__ import annotations

import builtins
import re
import shutil
import statistics
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from prefixprop.choices import DEFAULT_MODEL
from prefixprop.report import Report, make_report
from prefixprop.report.tables.table import Mark, Table

from tiny_runs import finish_again, make_results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with three seeds, one of them at a second learning rate, and a run on questions."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        make_results(folder / f"propagation{seed}", skill=2.5, seed=seed)
        make_results(folder / f"tuning{seed}", skill=0.5, seed=seed, method="prefix-tuning")
    make_results(folder / "searched", skill=0.2, seed=1, learning_rate=1e-2)
    make_results(folder / "questions", task="wikihop")
    return folder


@pytest.fixture(scope="module")
def report(runs: Path) -> Report:
    return make_report([runs], with_paper=True)


@pytest.fixture(scope="module")
def written(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    report.write(folder)
    return folder


def named(report: Report, name: str) -> Table:
    return next(table for table in report.tables if table.name == name)


def column(table: Table, title: str, from_paper: bool = False) -> list[Any]:
    (found,) = (one for one in table.columns if (one.title, one.from_paper) == (title, from_paper))
    return list(found.cells)


def test_the_main_table_has_means_over_seeds(report: Report) -> None:
    table = named(report, "1-hyperpartisan-test")
    assert [cell.text for cell in column(table, "Method")] == ["prefix-propagation", "prefix-tuning"]
    assert [cell.text for cell in column(table, "Seeds")] == ["3", "3"]
    values = [100 * value for value in report.comparisons[0].contenders[0].best.values("test", "micro_f1")]
    first, second = column(table, "F1 micro, %")
    assert first.text == f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"
    assert (first.mark, second.mark) == (Mark.BOLD, Mark.UNDERLINED)
    assert [cell.text for cell in column(table, "Tuned, %")] == ["0.450"] * 2
    assert [cell.text for cell in column(table, "Tuned without head, %")] == ["0.050"] * 2
    assert "Chosen values: prefix-propagation: learning rate 0.005, the best on dev of 2 tried." in table.notes


def test_the_papers_values_stand_beside_on_its_split_only(runs: Path, report: Report) -> None:
    table = named(report, "1-hyperpartisan-dev")
    assert [cell.text for cell in column(table, "F1 binary, %", from_paper=True)] == ["81.8", "75.3"]
    table = named(report, "1-hyperpartisan-dev-calibration")
    assert [cell.text for cell in column(table, "ECE", from_paper=True)] == ["0.093", "0.153"]
    assert {cell.mark for cell in column(table, "ECE", from_paper=True)} == {Mark.NONE}
    assert any("were not measured here" in note for note in table.notes)
    assert not any(one.from_paper for one in named(report, "1-hyperpartisan-test").columns)
    for table in make_report([runs]).tables:
        assert not any(one.from_paper for one in table.columns)


def test_questions_alone_have_accuracy_which_is_micro_f1_elsewhere(report: Report) -> None:
    titles = [one.title for one in named(report, "2-wikihop-test").columns]
    assert "Accuracy, %" in titles
    assert not any(title.startswith(("F1", "P ", "R ")) for title in titles)
    assert "Accuracy, %" not in [one.title for one in named(report, "1-hyperpartisan-test").columns]


def test_times_of_one_machine_are_ranked_and_of_several_are_not(runs: Path, report: Report, tmp_path: Path) -> None:
    assert column(named(report, "1-hyperpartisan-methods"), "Time, s")[1].mark is Mark.BOLD
    shutil.copytree(runs, tmp_path / "runs")
    for seed in (1, 2, 3):
        (tmp_path / "runs" / f"tuning{seed}" / "environment.json").write_text('{"device": "H200"}')
        finish_again(tmp_path / "runs" / f"tuning{seed}")
    table = named(make_report([tmp_path / "runs"]), "1-hyperpartisan-methods")
    assert {cell.mark for cell in column(table, "Time, s")} == {Mark.NONE}
    assert "device (cpu: 3, H200: 3)" in table.notes[0]


def test_files_are_written_in_every_format(written: Path) -> None:
    assert (written / "report.html").stat().st_size > 10_000
    tables = {path.name for path in (written / "tables").iterdir()}
    assert {"1-hyperpartisan-dev.md", "1-hyperpartisan-dev.tex", "paper-table-2.md"} <= tables
    figures = {path.stem for path in (written / "figures").iterdir()}
    assert figures == {
        "document-lengths", "1-hyperpartisan-seeds-dev", "1-hyperpartisan-seeds-test",
        "1-hyperpartisan-learning-rates", "1-hyperpartisan-ece-over-training", "1-hyperpartisan-1-reliability",
        "1-hyperpartisan-2-reliability",
        "2-wikihop-ece-over-training", "2-wikihop-1-reliability",
    }  # fmt: skip
    for stem in figures:
        assert (written / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert (written / "figures" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")


class Page(HTMLParser):
    """Checks that elements are closed, and keeps ids, links and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(written: Path, report: Report) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.counts["table"] == len(report.tables)
    assert page.counts["svg"] == page.counts["figure"] == 9
    assert len(page.ids) == len(set(page.ids)) > 0
    assert page.links
    inside = [link for link in page.links if not link.startswith("data:image/png;base64,")]
    assert {link.removeprefix("#") for link in inside} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_what_runs_do_not_have_is_left_out_and_told(tmp_path: Path) -> None:
    run = make_results(tmp_path / "run")
    shutil.rmtree(run / "predictions")
    (run / "history.jsonl").write_text("")
    (run / "lengths.json").write_text("[]")
    finish_again(run)
    drawn, complaints = make_report([run]).draw()
    assert not drawn
    assert complaints == [
        f"No reliability diagram of prefix-propagation, {DEFAULT_MODEL}: {run} has no predictions of test.",
    ]


def test_without_matplotlib_the_tables_are_there_still(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without_matplotlib(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *arguments, **named)

    for module in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    make_report([runs]).write(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "pip install &#x27;prefixprop[plots]&#x27;" in text
    assert "prefix-tuning" in text
    assert not (tmp_path / "figures").exists()


def test_no_finished_run_is_an_error_that_says_what_was_found(tmp_path: Path) -> None:
    (make_results(tmp_path / "run") / "metrics.json").unlink()
    with pytest.raises(ValueError, match=r"no finished run at or below .*\n.*has no metrics\.json"):
        make_report([tmp_path])


def test_the_headline_measure_has_an_interval_and_a_lone_seed_has_none(runs: Path, tmp_path: Path) -> None:
    make_results(tmp_path / "lora", method="lora", seed=1)
    table = named(make_report([runs, tmp_path]), "1-hyperpartisan-test")
    by_method = dict(zip([cell.text for cell in column(table, "Method")], table.rows, strict=True))
    index_of = {one.title: index for index, one in enumerate(table.columns)}
    assert " to " in by_method["prefix-tuning"][index_of["F1 micro, 95 % interval"]].text
    assert by_method["lora"][index_of["F1 micro, 95 % interval"]].text == "—"
    assert "±" not in by_method["lora"][index_of["F1 micro, %"]].text
    assert by_method["lora"][index_of["Learning rate"]].text == "0.0005"
