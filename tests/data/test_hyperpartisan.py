from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from prefixprop.data import ClassificationTask, Document, load_hyperpartisan, read_json_lines
from prefixprop.data import hyperpartisan as hyperpartisan_module
from prefixprop.data.hyperpartisan import clean_text, without_texts_of

ASSETS = files("prefixprop.data") / "assets" / "hyperpartisan"


@pytest.fixture(scope="module")
def task() -> ClassificationTask:
    return load_hyperpartisan()


@pytest.mark.parametrize(
    ("split", "mainstream", "hyperpartisan"), [("train", 329, 187), ("dev", 38, 26), ("test", 313, 312)]
)
def test_sizes_and_labels_of_the_splits(
    task: ClassificationTask, split: str, mainstream: int, hyperpartisan: int
) -> None:
    assert Counter(document.label for document in task.split(split)) == {0: mainstream, 1: hyperpartisan}
    assert task.label_names == ("mainstream", "hyperpartisan")


def test_train_and_dev_are_longformers_split(task: ClassificationTask) -> None:
    split_ids = json.loads((ASSETS / "hp-splits.json").read_text())
    assert [int(document.id) for document in task.train] == split_ids["train"]
    assert [int(document.id) for document in task.dev] == split_ids["dev"]


def test_test_is_the_official_test_less_three_known_texts(task: ClassificationTask) -> None:
    official = {record["id"] for record in read_json_lines(ASSETS / "test.jsonl.gz")}
    kept = {document.id for document in task.test}
    assert len(official) == 628
    assert official - kept == {"0000887", "0000969", "0001274"}
    assert kept < official


def test_no_article_or_text_is_in_two_splits(task: ClassificationTask) -> None:
    for first, second in [("train", "dev"), ("train", "test"), ("dev", "test")]:
        for field in ("id", "text"):
            values = [{getattr(document, field) for document in task.split(name)} for name in (first, second)]
            assert not values[0] & values[1]


def test_labels_are_those_of_the_files(task: ClassificationTask) -> None:
    labels = {record["id"]: record["label"] for record in read_json_lines(ASSETS / "train.jsonl.gz")}
    assert all(labels[document.id] == document.label for document in (*task.train, *task.dev))


def test_titles_are_kept_apart_from_the_cleaned_text(task: ClassificationTask) -> None:
    article = next(document for document in (*task.train, *task.dev) if document.id == "0000000")
    assert article.title == "Kucinich: Reclaiming the money power"
    assert article.text.startswith("From flickr.com: Money {MID-161793}")
    assert article.title not in article.text


def test_every_text_is_clean(task: ClassificationTask) -> None:
    remains = re.compile(r"&#?\w+;|https?:|www\.|</?(?:p|script|iframe)\b|\s\s|[\n\t]|([^\w\s])\1")
    for document in (*task.train, *task.dev, *task.test):
        assert len(document.text) > 80
        assert not remains.search(document.text), document.id


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


def unpacked(assets: Path) -> list[bytes]:
    return gzip.decompress((assets / "train.jsonl.gz").read_bytes()).splitlines(keepends=True)


def packed(*lines: bytes) -> bytes:
    return gzip.compress(b"".join(lines))


@pytest.mark.parametrize(
    ("name", "content", "detail"),
    [
        ("test.jsonl.gz", None, r"test\.jsonl\.gz"),
        (
            "train.jsonl.gz",
            lambda assets: (assets / "train.jsonl.gz").read_bytes()[:5000],
            r"train\.jsonl\.gz:\d+: the gzip data is damaged",
        ),
        (
            "train.jsonl.gz",
            lambda assets: packed(unpacked(assets)[0], b"{\n", *unpacked(assets)[2:]),
            r"train\.jsonl\.gz:2: broken JSON",
        ),
        ("train.jsonl.gz", lambda assets: packed(*unpacked(assets)[:-1]), r"KeyError: 644"),
        ("test.jsonl.gz", lambda _: packed(b'{"id": "1", "title": "a", "text": "b"}'), r"KeyError: 'label'"),
        ("hp-splits.json", lambda _: b'{"train": [', r"JSONDecodeError"),
    ],
)
def test_damaged_assets_ask_for_a_reinstallation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: Callable[[Path], bytes] | None, detail: str
) -> None:
    with as_file(ASSETS) as source:
        assets = Path(shutil.copytree(source, tmp_path / "hyperpartisan"))
    monkeypatch.setattr(hyperpartisan_module, "_ASSETS", assets)
    if content is None:
        (assets / name).unlink()
    else:
        (assets / name).write_bytes(content(assets))
    with pytest.raises(RuntimeError, match=rf"(?s)reinstall prefixprop.*{detail}"):
        load_hyperpartisan()
    with pytest.raises(ValueError, match=rf"(?s)Hyperpartisan cannot be read .*{detail}.*must hold train"):
        load_hyperpartisan(assets)


def test_a_folder_with_the_same_files_can_be_read(task: ClassificationTask, tmp_path: Path) -> None:
    with as_file(ASSETS) as source:
        assert load_hyperpartisan(source) == task
    with pytest.raises(FileNotFoundError, match="absent: there is no such folder"):
        load_hyperpartisan(tmp_path / "absent")


def test_the_licence_travels_with_the_data() -> None:
    attribution = (ASSETS / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for required in ("Kiesel", "CC BY 4.0", "10.5281/zenodo", "Changes", "Longformer"):
        assert required in attribution
