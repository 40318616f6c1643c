"""`prefixprop explain`: JSON lines, the terminal, the page, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import call
from prefixprop import DocumentClassifier

from tiny_runs import make_run, texts, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    make_run(folder, family="roberta")
    write_rows(folder / "new.jsonl", texts(3, seed=8))
    return folder


def test_json_lines_a_page_and_the_terminal(folder: Path) -> None:
    run, new = folder / "run", folder / "new.jsonl"
    files = folder / "out" / "reasons.jsonl", folder / "reasons.html"
    _, told = call("explain", run, new, "--output", files[0], "--html", files[1])
    assert "3 documents are explained in" in told and all(file.name in told for file in files)
    lines = [json.loads(line) for line in (folder / "out" / "reasons.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in new.read_text().splitlines()]
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    for line, row in zip(lines, rows, strict=True):
        assert line.keys() == {"id", "label", "confidence", "passages"}
        for passage in line["passages"]:
            assert row["text"][passage["start"] : passage["end"]] == passage["text"]
    page = (folder / "reasons.html").read_text()
    assert all(row["text"] in page for row in rows)
    out, _ = call("explain", run, new)
    for line in lines:
        assert f"{line['id']}: {line['label']} {line['confidence']:.4f}" in out
        assert f"{line['passages'][0]['score']:+.2f} {line['passages'][0]['text'][:20]}" in out
    out, _ = call("explain", run, "-", "--output", "-", stdin=new.read_bytes())
    piped = [json.loads(line) for line in out.splitlines()]
    assert [(line["id"], line["label"]) for line in piped] == [(line["id"], line["label"]) for line in lines]


def test_the_classifier_explains_a_text_or_several(folder: Path) -> None:
    classifier = DocumentClassifier.load(folder / "run")
    text, other = texts(2, seed=8)
    alone = classifier.explain(text)
    both = classifier.explain([text, other])
    assert (alone.label, alone.passages[0].text) == (classifier.predict([text])[0], text)  # type: ignore[union-attr]
    assert [explanation.document for explanation in both] == [text, other]  # type: ignore[union-attr]


def test_mistakes(folder: Path) -> None:
    run, new = folder / "run", folder / "new.jsonl"
    for arguments, message in (
        ((run, new, "--way", "reading"), "is for runs of readers"),
        ((run, new, "--html", folder), "this is a folder; give --html the name of a file"),
        ((run, folder / "none.jsonl"), "there is no such file or folder"),
        ((folder, new), str(folder)),
    ):
        _, err = call("explain", *arguments, status=1)
        assert message in err.replace("\n", " ")
