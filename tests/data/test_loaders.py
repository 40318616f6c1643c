"""The data sets that have a name: their splits and texts, every source of them, and what is said where files lack."""

from __future__ import annotations

import copy
import gzip
import json
import re
import shutil
from collections import Counter
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from urllib.error import URLError

import datasets
import pytest
import sklearn.datasets
from sklearn.datasets import _twenty_newsgroups as of_scikit_learn
from sklearn.model_selection import train_test_split

from prefixprop.data import ClassificationTask, Document, QuestionTask, load_task, read_json_lines
from prefixprop.data.loaders import clean_text

ASSETS = files("prefixprop.data") / "assets" / "hyperpartisan"


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(
    ("task", "there", "kind", "complaint"),
    [
        ("newsgroup", None, ValueError, "Unknown task 'newsgroup'; choose one of hyperpartisan, newsgroups, arxiv"),
        ("arxiv", None, ConnectionError, r"arxiv-classification \(no_ref\) cannot be .* --data-dir FOLDER with"),
        ("arxiv", ["dev"], FileNotFoundError, r"there is no train\. The folder must hold .*label_name"),
        ("arxiv", ["train"], FileNotFoundError, r"there is no dev\. The folder must hold .*label_name"),
        ("cuad", None, ValueError, r"is not downloaded: pass --data-dir.*contracts.*'Several labels' of the docs"),
        ("cuad", [], FileNotFoundError, r"there is no contracts\. .*'Several labels' of the docs"),
        ("elife", None, ValueError, r"--data-dir FOLDER.* train\.jsonl\.xz.*`prefixprop build-elife CLONE"),
        ("elife", [], FileNotFoundError, r"there is no train\. .*`prefixprop build-elife CLONE FOLDER`"),
        ("hybridqa", None, ValueError, "build these files from clones of"),
        ("hybridqa", [], FileNotFoundError, "there is no train.*build these files"),
        ("newsgroups", [], FileNotFoundError, r"there is no train\. .*20news-bydate-train.*label_name"),
        ("wikihop", None, ValueError, r"--data-dir FOLDER.*download QAngaroo"),
        ("wikihop", ["train"], FileNotFoundError, r"there is no dev\. .*download QAngaroo"),
    ],
)
def test_what_is_missing_and_where_to_get_it(
    tmp_path: Path, task: str, there: list[str] | None, kind: type[Exception], complaint: str
) -> None:
    for name in there or ():
        (tmp_path / f"{name}.jsonl").touch()
    with pytest.raises(kind, match=complaint):
        load_task(task, None if there is None else tmp_path)


# --- Hyperpartisan --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hyperpartisan() -> ClassificationTask:
    return load_task("hyperpartisan")


def test_the_splits_and_texts_of_hyperpartisan(hyperpartisan: ClassificationTask) -> None:
    task = hyperpartisan
    assert task.label_names == ("mainstream", "hyperpartisan")
    for split, counts in {"train": {0: 329, 1: 187}, "dev": {0: 38, 1: 26}, "test": {0: 313, 1: 312}}.items():
        assert Counter(document.label for document in task.split(split)) == counts
    for split, numbers in json.loads((ASSETS / "hp-splits.json").read_text()).items():
        if split != "test":  # Longformer's split
            assert [int(document.id) for document in task.split(split)] == numbers
    official = {record["id"] for record in read_json_lines(ASSETS / "test.jsonl.gz")}
    assert len(official) == 628  # of which three have known texts
    assert official - {document.id for document in task.test} == {"0000887", "0000969", "0001274"}
    for field in ("id", "text"):
        train, dev, test = ({getattr(one, field) for one in split} for split in (task.train, task.dev, task.test))
        assert not train & dev and not (train | dev) & test
    remains = re.compile(r"&#?\w+;|https?:|www\.|</?(?:p|script|iframe)\b|\s\s|[\n\t]|([^\w\s])\1")
    for document in (*task.train, *task.dev, *task.test):
        assert len(document.text) > 80 and not remains.search(document.text), document.id
    published = {document.id: document for document in (*task.train, *task.dev)}
    labels = {record["id"]: record["label"] for record in read_json_lines(ASSETS / "train.jsonl.gz")}
    assert all(labels[name] == document.label for name, document in published.items())
    article = published["0000000"]
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
    assert clean_text(raw) == clean_text(clean) == clean


@pytest.mark.parametrize(
    ("name", "content", "detail"),
    [
        ("test.jsonl.gz", None, r"test\.jsonl\.gz"),
        ("hp-splits.json", b'{"train": [7000]}', r"KeyError: 7000"),
    ],
)
def test_a_folder_with_the_same_files(
    hyperpartisan: ClassificationTask, tmp_path: Path, name: str, content: bytes | None, detail: str
) -> None:
    with as_file(ASSETS) as source:
        folder = Path(shutil.copytree(source, tmp_path / "hyperpartisan"))
    assert load_task("hyperpartisan", folder) == hyperpartisan
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"(?s)Hyperpartisan cannot be read .*{detail}.*must hold train"):
        load_task("hyperpartisan", folder)


def test_known_texts_are_compared_by_their_words(tmp_path: Path) -> None:
    texts = {"train": ["Breaking: It\u2019s Over!", "b"], "test": ["breaking  it's over", "It is over"]}
    for name, of_split in texts.items():
        records = [{"id": str(i), "title": "", "text": text, "label": i} for i, text in enumerate(of_split)]
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    (tmp_path / "hp-splits.json").write_text('{"train": [0], "dev": [1]}')
    assert [document.text for document in load_task("hyperpartisan", tmp_path).test] == ["It is over"]


def test_the_licence_travels_with_the_data() -> None:
    attribution = (ASSETS / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for required in ("Kiesel", "CC BY 4.0", "10.5281/zenodo", "Changes", "Longformer"):
        assert required in attribution


# --- 20-newsgroups --------------------------------------------------------------------------------------------------

GROUPS = ("rec.kites", "sci.moss")
POST = """From: someone@example.org (Some One)
Subject: Re: number {number}

In article <1@example.org>, other@example.org writes:
> Is it true?
| Or not?
Yes, post {number} about {group} says so.

It really does, caf\u00e9 and all.

--
Some One, Example University
"""
ODD_POSTS = [
    "From: a@example.org\nSubject: Re: this\n\n> nothing of my own\n",
    "From: a@example.org\nSubject: lines\n\none\r\ntwo\n\nbye\n",
    # A quote that stands where a footer would: the text depends on which of the two is removed first.
    "From: a@example.org\nSubject: Re: order\n\nfirst\n\nsecond\n\n> quoted\n",
]


def posts(split: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for label, group in enumerate(GROUPS):
        for number in range(100, 100 + {"train": 3, "test": 9}[split]):
            text = POST.format(number=number, group=group)
            records.append({"id": f"{group}/{number}", "text": text, "label": label, "label_name": group})
    for record, text in zip(records, ODD_POSTS, strict=False):
        record["text"] = text
    return records


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for split in ("train", "test"):  # backwards: the halves must not depend on the order of the file
        write(tmp_path / "tables" / f"{split}.jsonl", posts(split)[::-1])
    return tmp_path / "tables"


def test_every_source_of_newsgroups_gives_the_texts_of_scikit_learn(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-learn's own fetch, with a download that finds the archive's folders already there."""
    folders = {split: tmp_path / f"20news-bydate-{split}" for split in ("train", "test")}
    for split, folder in folders.items():
        for post in posts(split):
            (folder / post["id"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / post["id"]).write_bytes(post["text"].encode("latin-1"))
    loaded = {split: sklearn.datasets.load_files(folder, encoding="latin1") for split, folder in folders.items()}
    monkeypatch.setattr(of_scikit_learn, "_download_20newsgroups", lambda **_: copy.deepcopy(loaded))
    (folders["train"] / GROUPS[0] / ".hidden").write_text("not a post")
    theirs = sklearn.datasets.fetch_20newsgroups(
        data_home=tmp_path / "home", subset="train", remove=("headers", "footers", "quotes"), shuffle=False
    )
    names = ["/".join(Path(name).parts[-2:]) for name in theirs.filenames]
    task = load_task("newsgroups", tmp_path)
    assert {document.id: document.text for document in task.train} == dict(zip(names, theirs.data, strict=True))
    assert {document.id: document.label for document in task.train} == dict(zip(names, theirs.target, strict=True))
    assert {"", "first\n\nsecond", "one\r\ntwo"} < set(theirs.data) and len(names) == 6
    assert task.label_names == GROUPS and task.notes()[0] == "1 of 6 training documents is empty"
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "home"))
    assert load_task("newsgroups") == load_task("newsgroups", tables) == task


def test_the_by_date_test_is_halved_stratified_with_seed_10(tables: Path) -> None:
    task = load_task("newsgroups", tables)
    ids, labels = ([post[field] for post in posts("test")] for field in ("id", "label"))
    halves = train_test_split(ids, test_size=0.5, stratify=labels, random_state=10)
    assert [[document.id for document in half] for half in (task.dev, task.test)] == list(map(sorted, halves))


def test_newsgroups_without_the_network_or_without_posts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", fetch)
    with pytest.raises(ConnectionError, match=r"URLError.*--data-dir FOLDER.*20news-bydate-train.*train\.jsonl"):
        load_task("newsgroups")
    for split in ("train", "test"):
        (tmp_path / f"20news-bydate-{split}").mkdir()
    with pytest.raises(ValueError, match="20news-bydate-train: the folder is empty"):
        load_task("newsgroups", tmp_path)


# --- arXiv, CUAD and HybridQA ---------------------------------------------------------------------------------------

PAPERS: list[dict[str, Any]] = [
    {"id": "9901.1", "title": "Rings", "text": "On rings.", "label": 1, "label_name": "math.AC"},
    {"id": "9901.2", "title": "Eyes", "text": "Seeing far.", "label": 0, "label_name": "cs.CV"},
]


def test_papers_of_a_folder_with_names_of_labels_and_ids(tmp_path: Path) -> None:
    text = "".join(str(number % 10) for number in range(30_010))
    write(tmp_path / "train.jsonl", [*PAPERS, PAPERS[0] | {"id": "9901.3", "text": text}])
    write(tmp_path / "validation.jsonl", PAPERS[:1])
    task = load_task("arxiv", str(tmp_path))
    assert task.name == "arxiv" and task.label_names == ("cs.CV", "math.AC")  # by number, not by first appearance
    assert task.train[:2] == (Document("9901.1", "On rings.", 1), Document("9901.2", "Seeing far.", 0))
    assert task.dev == task.train[:1] and task.test == () and task.train[2].text == text[:30_000]


def test_papers_of_the_hub_in_the_configuration_without_references(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["b", "a"])})
    table = datasets.Dataset.from_dict({"text": ["x" * 30_001, "y"], "label": [1, 0]}, features=features)

    def load_dataset(*arguments: str) -> datasets.DatasetDict:
        asked.append(arguments)
        return datasets.DatasetDict(train=table, validation=table, test=table)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load_task("arxiv")
    assert asked == [("ccdv/arxiv-classification", "no_ref")] and task.label_names == ("b", "a")
    assert task.dev == (Document("1", "x" * 30_000, 1), Document("2", "y", 0))


def test_contracts_with_clauses_that_are_not_too_rare(tmp_path: Path) -> None:
    rows = [{"id": f"c{n}", "text": f"text {n}", "labels": ["Insurance"] * (n % 2)} for n in range(40)]
    rows[0]["labels"] = ["Cap On Liability", "Source Code Escrow"]
    rows[1]["labels"] = ["Cap On Liability"]
    write(tmp_path / "contracts.jsonl", rows)
    task = load_task("cuad", tmp_path)
    assert isinstance(task, ClassificationTask) and task.several_labels
    assert task.label_names == ("Cap On Liability", "Insurance")  # one contract in forty has the third
    assert len(task.train) == 40 and not task.dev and not task.test
    assert task.train[0].id == "c0" and task.label_array(task.train).sum(axis=0).tolist() == [2, 19]


def test_questions_about_rows(tmp_path: Path) -> None:
    question = {"id": "q", "query": "which hills ?", "candidates": ["Oslo", "Rome"], "answer": "Rome"}
    for supports in (["a fjord", "seven hills"], ["a fjord"]):
        for split in ("train", "dev", "test"):
            write(tmp_path / f"{split}.jsonl", [question | {"supports": supports}])
        if len(supports) == 2:
            task = load_task("hybridqa", tmp_path)
            assert isinstance(task, QuestionTask) and task.name == "hybridqa"
            assert task.dev[0].answer == 1 and len(task.train) == len(task.test) == 1
    with pytest.raises(ValueError, match="2 candidates and 1 supports, but every row has one"):
        load_task("hybridqa", tmp_path)
