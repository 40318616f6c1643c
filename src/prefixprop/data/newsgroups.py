"""20-newsgroups, split by date: posts to 20 discussion groups of 1993.

As in the paper, headers, footers and quotes are removed as scikit-learn does, the by-date training set is the
training set, and the by-date test set is halved into dev and test set, stratified, seed 10. The posts are put in the
order of their ids first, so that the halves are the same wherever the posts come from. Posts that were nothing but
quotes stay, as empty texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from prefixprop.data.documents import ClassificationTask, Split, ids_of
from prefixprop.data.files import Columns, build_task
from prefixprop.data.rows import Row, find_split_files, read_rows, text_of
from prefixprop.data.splits import select, split_off

TRAIN_FOLDER, TEST_FOLDER = "20news-bydate-train", "20news-bydate-test"
_FOLDER_MUST_HOLD = (
    f"either the folders {TRAIN_FOLDER} and {TEST_FOLDER} of 20news-bydate.tar.gz, or train.jsonl and test.jsonl "
    "(or .jsonl.gz) with the fields id, text (the raw post), label and label_name"
)


def load_newsgroups(data_dir: Path | None = None) -> ClassificationTask:
    """Load the posts from a folder, or by scikit-learn's `fetch_20newsgroups`, which downloads them once."""
    rows = _fetched_rows() if data_dir is None else _folder_rows(data_dir)
    columns = Columns(id="id", label_name="label_name")
    by_date = build_task("newsgroups", {split: map(_stripped, posts) for split, posts in rows.items()}, columns)
    # The halves are those of the paper, which did not look for copies.
    dev, test = split_off(_in_order(by_date.test), fraction=0.5, copies_together=False)
    return replace(by_date, train=_in_order(by_date.train), dev=dev, test=test)


def _in_order(documents: Split) -> Split:
    ids = ids_of(documents)
    return select(documents, sorted(range(len(ids)), key=ids.__getitem__))


def _stripped(row: Row) -> Row:
    """What `fetch_20newsgroups(remove=("headers", "footers", "quotes"))` does to a post."""
    from sklearn.datasets import _twenty_newsgroups as posts

    text = text_of(row, "text")
    # In this order, which is scikit-learn's: another gives other texts.
    for strip in (posts.strip_newsgroup_header, posts.strip_newsgroup_footer, posts.strip_newsgroup_quoting):
        text = strip(text)
    return Row(row.location, {**row.values, "text": text})


def _folder_rows(folder: Path) -> Mapping[str, Iterable[Row]]:
    if (folder / TRAIN_FOLDER).is_dir() and (folder / TEST_FOLDER).is_dir():
        return {"train": _posts(folder / TRAIN_FOLDER), "test": _posts(folder / TEST_FOLDER)}
    missing = f"20-newsgroups is not here. The folder must hold {_FOLDER_MUST_HOLD}."
    return {split: read_rows(find_split_files(folder, split, missing=missing)) for split in ("train", "test")}


def _posts(folder: Path) -> Iterator[Row]:
    """The posts of one folder per group and one file per post."""
    paths = sorted(path for path in folder.glob("*/*") if path.is_file() and not path.name.startswith("."))
    if not paths:
        raise ValueError(f"{folder}: the folder is empty: it must hold one folder per group with a file per post.")
    # Decoded from bytes, as scikit-learn does: reading text would change the line ends of some posts.
    return (_post(path, path.read_bytes().decode("latin-1")) for path in paths)


def _post(path: Path, text: str) -> Row:
    group = path.parent.name
    return Row(str(path), {"id": f"{group}/{path.name}", "text": text, "label": group})


def _fetched_rows() -> dict[str, Iterator[Row]]:
    from sklearn.datasets import fetch_20newsgroups

    rows: dict[str, Iterator[Row]] = {}
    for split in ("train", "test"):
        try:
            fetched = fetch_20newsgroups(subset=split, shuffle=False)
        except OSError as error:
            raise ConnectionError(
                f"20-newsgroups cannot be downloaded ({type(error).__name__}: {error}). Check the network, or pass "
                f"--data-dir FOLDER, which must hold {_FOLDER_MUST_HOLD}."
            ) from error
        rows[split] = map(_post, map(Path, fetched.filenames), fetched.data)
    return rows
