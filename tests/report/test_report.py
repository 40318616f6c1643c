"""The report as a whole: the page and its files."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from prefixprop.report import Report, make_report

from tiny_runs import LABEL_NAMES, finish_again, make_results, make_run

HOSTILE = "--></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}$x$"
VOID = ("meta", "img")


class Page(HTMLParser):
    """Checks that elements are closed, and keeps links, headings, and what is inside which element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open:
            self.texts.append((self.open[-1], data.strip()))

    @property
    def outline(self) -> list[str]:
        return [text for tag, text in self.texts if tag in ("h1", "h2", "h3", "figcaption", "summary", "dt")]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Two methods with two seeds, folds that chose, and runs on questions."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        make_results(folder / f"propagation{seed}", skill=2.5, seed=seed)
        make_results(folder / f"tuning{seed}", skill=0.5, seed=seed, method="prefix-tuning")
        make_results(folder / f"questions{seed}", task="wikihop", seed=seed)
        make_results(folder / f"fold{seed}", fold=seed, folds=3)
    (make_results(folder / "unfinished", method="lora") / "metrics.json").unlink()
    return make_report([folder])


def in_order(outline: list[str], expected: list[str]) -> bool:
    places = [next((at for at, text in enumerate(outline) if text.startswith(one)), -1) for one in expected]
    return -1 not in places and places == sorted(places)


def test_several_runs_show_findings_then_tables_then_figures_then_details(several: Report, tmp_path: Path) -> None:
    written = several.write(tmp_path)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.outline[:3] == ["Report on runs", "Notes (1)", "All tasks"]
    assert in_order(
        page.outline,
        [
            "Methods by task", "Calibration error by task", "hyperpartisan", "Test: methods", "Every seed",
            "Tests: which differences", "All metrics", "Test: quality", "Test: calibration", "Dev: quality",
            "Cross-validation", "Calibration over training", "Lengths of documents", "One run of each method",
            "prefix-propagation, seed 1: How often", "wikihop",
        ],
    ), page.outline  # fmt: skip
    words = [text for tag, text in page.texts if tag == "p"]
    assert any(text.startswith("Best on the test set: prefix-propagation") for text in words)
    assert page.tags.count("table") == len(several.tables)
    tables = {path.name for path in (tmp_path / "tables").iterdir()}
    assert {"results.md", "1-hyperpartisan-dev.tex", "1-hyperpartisan-tests.md", "2-wikihop-test.tex"} <= tables
    stems = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert {"1-hyperpartisan-seeds", "1-hyperpartisan-2-reliability", "2-wikihop-lengths"} <= stems
    assert page.tags.count("figure") == page.tags.count("img") == len(stems)
    for stem in stems:
        assert (tmp_path / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "figures" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    assert len(written) == 1 + len(tables) + 2 * len(stems) and all(path.is_file() for path in written)


def test_the_page_needs_nothing_else(several: Report) -> None:
    text = several.page()
    page = Page(text)
    assert len(page.ids) == len(set(page.ids)) > 1
    inside = [link for link in page.links if not link.startswith("data:image/svg+xml;base64,")]
    assert {link.removeprefix("#") for link in inside} == set(page.ids)
    assert not re.search(r"@import|url\(|https?:|<script|<link", text)
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text


def test_one_run_shows_a_verdict_facts_one_table_figures_labels_and_mistakes(tmp_path: Path) -> None:
    report = make_report([make_run(tmp_path)])
    assert (report.title, report.summary) == ("files: prefix-propagation", "prefixprop 0.1.0")
    page = Page(report.page())
    assert in_order(
        page.outline,
        [
            "files: prefix-propagation", "Model", "Documents", "Seed", "Test: results", "Which label is taken",
            "How often it is right", "Test: labels", "Test: most confident mistakes",
            "All metrics", "Settings", "Command that reproduces it",
        ],
    ), page.outline  # fmt: skip
    assert "h2" not in page.tags and page.tags.count("article") == 10


def test_texts_and_names_never_become_markup(tmp_path: Path) -> None:
    label = HOSTILE[:40]
    run = make_run(tmp_path, label_names=(label, *LABEL_NAMES[1:]), text_column="text")
    file = tmp_path / "test.jsonl"
    rows = [json.loads(line) | {"text": HOSTILE} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    finish_again(run)
    report = make_report([run])
    page = Page(report.page())
    assert "script" not in page.tags and page.tags.count("img") == page.tags.count("figure")
    assert any(tag == "p" and HOSTILE in text for tag, text in page.texts), "a document"
    assert any(tag == "td" and text == label for tag, text in page.texts), "a label"


def test_bad_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--baseline 'prefix' is unknown; choose one of prefix-propagation"):
        make_report([tmp_path], baseline="prefix")
    (make_results(tmp_path / "run") / "metrics.json").unlink()
    with pytest.raises(ValueError, match=r"no finished run at or below .*\n.*has no metrics\.json"):
        make_report([tmp_path])
