from __future__ import annotations

import json
from pathlib import Path
from urllib.error import URLError

import pytest
import sklearn.datasets
from sklearn.model_selection import train_test_split

from prefixprop.data.newsgroups import load_newsgroups

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
ONLY_A_QUOTE = "From: a@example.org\nSubject: Re: this\n\n> nothing of my own\n"
# A quote that stands where a footer would: the text depends on which of the two is removed first.
QUOTE_AT_THE_END = "From: a@example.org\nSubject: Re: order\n\nfirst\n\nsecond\n\n> quoted\n"
WINDOWS_LINE = "From: a@example.org\nSubject: lines\n\none\r\ntwo\n\nbye\n"


def posts(split: str) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for label, group in enumerate(GROUPS):
        for number in range(100, 100 + {"train": 3, "test": 9}[split]):
            text = POST.format(number=number, group=group)
            records.append({"id": f"{group}/{number}", "text": text, "label": label, "label_name": group})
    records[0]["text"] = ONLY_A_QUOTE
    records[1]["text"] = WINDOWS_LINE
    records[2]["text"] = QUOTE_AT_THE_END
    return records


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "tables").mkdir()
    for split in ("train", "test"):
        # Backwards: the halves must not depend on the order of the file.
        lines = "".join(json.dumps(post) + "\n" for post in reversed(posts(split)))
        (tmp_path / "tables" / f"{split}.jsonl").write_text(lines)
    return tmp_path / "tables"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for post in posts(split):
            path = tmp_path / "archive" / f"20news-bydate-{split}" / str(post["id"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(str(post["text"]).encode("latin-1"))
    (tmp_path / "archive" / "20news-bydate-train" / GROUPS[0] / ".hidden").write_text("not a post")
    return tmp_path / "archive"


def test_every_source_gives_the_texts_of_scikit_learn(
    tables: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-learn's own fetch, with a download that finds the archive's folders already there."""
    from sklearn.datasets import _twenty_newsgroups as module

    def found(**_: object) -> dict[str, object]:
        folders = {split: archive / f"20news-bydate-{split}" for split in ("train", "test")}
        (folders["train"] / GROUPS[0] / ".hidden").unlink(missing_ok=True)
        return {split: sklearn.datasets.load_files(folder, encoding="latin1") for split, folder in folders.items()}

    monkeypatch.setattr(module, "_download_20newsgroups", found)
    theirs = sklearn.datasets.fetch_20newsgroups(
        data_home=tmp_path / "home", subset="train", remove=("headers", "footers", "quotes"), shuffle=False
    )
    names = ["/".join(Path(name).parts[-2:]) for name in theirs.filenames]
    task = load_newsgroups(archive)
    assert {document.id: document.text for document in task.train} == dict(zip(names, theirs.data, strict=True))
    assert {document.id: document.label for document in task.train} == dict(zip(names, theirs.target, strict=True))
    assert {"", "first\n\nsecond", "one\r\ntwo"} < set(theirs.data) and len(names) == 6
    assert task.label_names == GROUPS and task.notes()[0] == "1 of 6 training documents is empty"
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "home"))
    assert load_newsgroups() == load_newsgroups(tables) == task


def test_the_by_date_test_is_halved_stratified_with_seed_10(tables: Path) -> None:
    task = load_newsgroups(tables)
    ids = [str(post["id"]) for post in posts("test")]
    labels = [post["label"] for post in posts("test")]
    dev, test = train_test_split(ids, test_size=0.5, stratify=labels, random_state=10)
    assert [document.id for document in task.dev] == sorted(dev)
    assert [document.id for document in task.test] == sorted(test)
    assert abs(sum(document.label for document in task.dev) - sum(document.label for document in task.test)) <= 1


def test_without_the_network_the_error_asks_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", fetch)
    with pytest.raises(ConnectionError, match=r"URLError.*--data-dir FOLDER.*20news-bydate-train.*train\.jsonl"):
        load_newsgroups()


def test_a_folder_without_the_posts(tmp_path: Path) -> None:
    (tmp_path / "empty" / "20news-bydate-train").mkdir(parents=True)
    (tmp_path / "empty" / "20news-bydate-test").mkdir()
    with pytest.raises(ValueError, match="20news-bydate-train: the folder is empty"):
        load_newsgroups(tmp_path / "empty")
