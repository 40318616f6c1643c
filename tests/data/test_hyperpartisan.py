from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from prefixprop.data import ClassificationTask, Document, load_task, read_json_lines
from prefixprop.data.hyperpartisan import clean_text, load_hyperpartisan, without_texts_of

ASSETS = files("prefixprop.data") / "assets" / "hyperpartisan"


@pytest.fixture(scope="module")
def task() -> ClassificationTask:
    return load_task("hyperpartisan")


def test_the_splits(task: ClassificationTask) -> None:
    assert task.label_names == ("mainstream", "hyperpartisan")
    for split, counts in {"train": {0: 329, 1: 187}, "dev": {0: 38, 1: 26}, "test": {0: 313, 1: 312}}.items():
        assert Counter(document.label for document in task.split(split)) == counts
    for split, numbers in json.loads((ASSETS / "hp-splits.json").read_text()).items():
        if split != "test":  # Longformer's split
            assert [int(document.id) for document in task.split(split)] == numbers
    official = {record["id"] for record in read_json_lines(ASSETS / "test.jsonl.gz")}
    assert len(official) == 628
    assert official - {document.id for document in task.test} == {"0000887", "0000969", "0001274"}  # known texts
    for field in ("id", "text"):
        train, dev, test = ({getattr(one, field) for one in split} for split in (task.train, task.dev, task.test))
        assert not train & dev and not (train | dev) & test


def test_every_text_is_clean_and_has_its_own_label_and_title(task: ClassificationTask) -> None:
    remains = re.compile(r"&#?\w+;|https?:|www\.|</?(?:p|script|iframe)\b|\s\s|[\n\t]|([^\w\s])\1")
    for document in (*task.train, *task.dev, *task.test):
        assert len(document.text) > 80
        assert not remains.search(document.text), document.id
    labels = {record["id"]: record["label"] for record in read_json_lines(ASSETS / "train.jsonl.gz")}
    assert all(labels[document.id] == document.label for document in (*task.train, *task.dev))
    article = next(document for document in (*task.train, *task.dev) if document.id == "0000000")
    assert article.title == "Kucinich: Reclaiming the money power" and article.title not in article.text
    assert article.text.startswith("From flickr.com: Money {MID-161793}")


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  one\n\ttwo   three ", "one two three"),
        ("see https://t.co/a1?b=c&amp;d=2 now", "see now"),
        ("see www.example.org/page, now", "see , now"),
        ("photopic.twitter.com/ttbOd0 end", "photo end"),
        ("(http://bit.ly/2j) stays", "stays"),
        ("the page (at http://bit.ly/2j). Next", "the page (at ). Next"),
        ("Read http://example.org. Next—https://t.co/x—last", "Read . Next— —last"),
        ("What?? No!!! Wait... -- yes", "What? No! Wait. - yes"),
        ("a ______ line", "a _ line"),
        ("sooo 1,000 books, and/or 5000", "sooo 1,000 books, and/or 5000"),
        ("Ben &amp; Jerry&#8217;s &lt;3", "Ben & Jerry\u2019s <3"),
        ("one &amp;amp;lt;/p&amp;amp;gt;&amp;amp;lt;p&amp;amp;gt; two", "one two"),
        ('a <script async src="//x.com/y.js"></script> b <me@x.net>', "a b <me@x.net>"),
        ("in\u200bvisible", "invisible"),
        ("", ""),
    ],
)
def test_clean_text(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean
    assert clean_text(clean) == clean


def test_texts_are_compared_by_their_words() -> None:
    known = [Document("1", "Breaking: It\u2019s Over!", 0)]
    same, other = Document("2", "breaking  it's over", 0), Document("3", "It is over", 0)
    assert without_texts_of(known, [same, other]) == (other,)


@pytest.mark.parametrize(
    ("name", "content", "detail"),
    [
        ("test.jsonl.gz", None, r"test\.jsonl\.gz"),
        ("test.jsonl.gz", gzip.compress(b'{"id": "1", "title": "a", "text": "b"}', mtime=0), r"KeyError: 'label'"),
        ("train.jsonl.gz", gzip.compress(b"{\n", mtime=0), r"train\.jsonl\.gz:1: broken JSON"),
        ("hp-splits.json", b'{"train": [7000]}', r"KeyError: 7000"),
        ("hp-splits.json", b'{"train": [', r"JSONDecodeError"),
    ],
)
def test_a_folder_with_the_same_files(
    task: ClassificationTask, tmp_path: Path, name: str, content: bytes | None, detail: str
) -> None:
    with as_file(ASSETS) as source:
        folder = Path(shutil.copytree(source, tmp_path / "hyperpartisan"))
    assert load_hyperpartisan(folder) == task
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"(?s)Hyperpartisan cannot be read .*{detail}.*must hold train"):
        load_hyperpartisan(folder)


def test_the_licence_travels_with_the_data() -> None:
    attribution = (ASSETS / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for required in ("Kiesel", "CC BY 4.0", "10.5281/zenodo", "Changes", "Longformer"):
        assert required in attribution
