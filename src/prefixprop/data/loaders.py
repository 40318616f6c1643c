"""How the data sets of `prefixprop.data.tasks` are loaded; eLife and WikiHop have files of their own."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from prefixprop.data.documents import ClassificationTask, Document, StoredDocuments
from prefixprop.data.files import Columns, build_task, load_folder, load_hub_task
from prefixprop.data.rows import KINDS, Row, find_split_files, id_of, read_json_lines, read_rows, text_of
from prefixprop.data.splits import SPLIT_SEED, select
from prefixprop.data.wikihop import QuestionTask, load_questions

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# --- Hyperpartisan --------------------------------------------------------------------------------------------------

_ASSETS = files("prefixprop.data") / "assets" / "hyperpartisan"

# A URL ends before brackets, quotes, dashes and closing punctuation, which belong to the sentence around it.
_URL_START = r"(?:https?[:%]|www\.|pic\.twitter\.com)"
_URL = _URL_START + r"[^\s()\[\]<>\"“”—]*(?<![.,;:!?…])"
_URL_WITH_PARENTHESES = re.compile(rf"\({_URL}\)|{_URL}", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>")
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u2060\ufeff]")
_REPEATED_PUNCTUATION = re.compile(r"([^\w\s]|_)\1+")
_WHITE_SPACE = re.compile(r"\s+")
_NOT_A_WORD = re.compile(r"\W+")


def load_hyperpartisan(data_dir: Path | None = None) -> ClassificationTask:
    """Load Hyperpartisan (SemEval-2019 Task 4, by-article), which is in the package, and clean its texts.

    Train and dev are Longformer's split of the 645 published articles. That split's own test is not used: 58 of its
    65 articles are also in train or dev. Test is the official test set of the shared task, less the articles whose
    text is also among the 645. `assets/hyperpartisan/ATTRIBUTION.md` names the sources and the licence.

    `data_dir` is a folder with the files of the shipped one: `train.jsonl.gz`, `test.jsonl.gz`, `hp-splits.json`.
    """
    folder = _ASSETS if data_dir is None else data_dir
    try:
        published, official = (_read_articles(folder / f"{name}.jsonl.gz") for name in ("train", "test"))
        numbers = json.loads((folder / "hp-splits.json").read_text(encoding="utf-8"))
        by_number = {int(article.id): article for article in published}
        train, dev = (
            StoredDocuments.packed([by_number[number] for number in numbers[split]]) for split in ("train", "dev")
        )
        known = set(map(_words_of, published))
        test = StoredDocuments.packed([article for article in official if _words_of(article) not in known])
        return ClassificationTask("hyperpartisan", ("mainstream", "hyperpartisan"), train, dev, test)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{folder}: Hyperpartisan cannot be read from this folder ({type(error).__name__}: {error}). It must "
            "hold train.jsonl.gz, test.jsonl.gz and hp-splits.json; without --data-dir the shipped data is used."
        ) from error


def clean_text(text: str) -> str:
    """Remove URLs and left-over HTML, and collapse repeated punctuation and white space.

    This follows the preparation of Longformer's authors, without its rules that shorten runs inside words and
    numbers ("1,000" would become "1,0") and drop words joined by a slash.
    """
    # URLs go first: decoding would turn parameters such as "&copy=1" into symbols in the middle of them.
    text = _URL_WITH_PARENTHESES.sub(" ", text)
    # Some articles were escaped up to three times ("&amp;amp;lt;" for "<").
    while (unescaped := html.unescape(text)) != text:
        text = unescaped
    text = _INVISIBLE.sub("", _TAG.sub(" ", text))
    text = _REPEATED_PUNCTUATION.sub(r"\1", text)
    return _WHITE_SPACE.sub(" ", text).strip()


def _words_of(document: Document) -> str:
    return _NOT_A_WORD.sub(" ", document.text.casefold()).strip()


def _read_articles(path: Path | Traversable) -> list[Document]:
    return [
        Document(record["id"], clean_text(record["text"]), record["label"], clean_text(record["title"]))
        for record in read_json_lines(path)
    ]


# --- 20-newsgroups --------------------------------------------------------------------------------------------------

_TRAIN_FOLDER, _TEST_FOLDER = "20news-bydate-train", "20news-bydate-test"
_NEWSGROUPS_FOLDER_MUST_HOLD = (
    f"either the folders {_TRAIN_FOLDER} and {_TEST_FOLDER} of 20news-bydate.tar.gz, or train.jsonl and test.jsonl "
    "(or .jsonl.gz) with the fields id, text (the raw post), label and label_name"
)


def load_newsgroups(data_dir: Path | None = None) -> ClassificationTask:
    """Load 20-newsgroups by date, from a folder or by scikit-learn's `fetch_20newsgroups`, which downloads it once.

    As in the paper, headers, footers and quotes are removed as scikit-learn does, and the by-date test set is halved
    into dev and test set, stratified, seed 10. The posts are put in the order of their ids first, so that the halves
    are the same wherever the posts come from. Posts that were nothing but quotes stay, as empty texts.
    """
    from sklearn.model_selection import train_test_split

    rows = _fetched_rows() if data_dir is None else _folder_rows(data_dir)
    posts = {split: map(_stripped, sorted(found, key=lambda row: id_of(row, "id"))) for split, found in rows.items()}
    by_date = build_task("newsgroups", posts, Columns(id="id", label_name="label_name"))
    # The halves are those of the paper, which did not look for copies.
    numbers, labels = range(len(by_date.test)), by_date.test.labels
    halves = train_test_split(numbers, test_size=0.5, stratify=labels, random_state=SPLIT_SEED)
    dev, test = (select(by_date.test, sorted(half)) for half in halves)
    return replace(by_date, dev=dev, test=test)


def _stripped(row: Row) -> Row:
    """What `fetch_20newsgroups(remove=("headers", "footers", "quotes"))` does to a post."""
    from sklearn.datasets import _twenty_newsgroups as posts

    text = text_of(row, "text")
    # In this order, which is scikit-learn's: another gives other texts.
    for strip in (posts.strip_newsgroup_header, posts.strip_newsgroup_footer, posts.strip_newsgroup_quoting):
        text = strip(text)
    return Row(row.location, {**row.values, "text": text})


def _folder_rows(folder: Path) -> Mapping[str, Iterable[Row]]:
    if (folder / _TRAIN_FOLDER).is_dir() and (folder / _TEST_FOLDER).is_dir():
        return {"train": _posts(folder / _TRAIN_FOLDER), "test": _posts(folder / _TEST_FOLDER)}
    must_hold = _NEWSGROUPS_FOLDER_MUST_HOLD
    return {split: read_rows(find_split_files(folder, split, must_hold=must_hold)) for split in ("train", "test")}


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
                f"--data-dir FOLDER, which must hold {_NEWSGROUPS_FOLDER_MUST_HOLD}."
            ) from error
        rows[split] = map(_post, map(Path, fetched.filenames), fetched.data)
    return rows


# --- arXiv, CUAD and HybridQA ---------------------------------------------------------------------------------------

_ARXIV_FOLDER_MUST_HOLD = (
    "train, dev (or validation) and, if you have it, test, as files that end in one of "
    f"{KINDS}, with the columns text and label and, if you have them, label_name and id"
)
_CUAD_FOLDER_MUST_HOLD = "contracts.jsonl.xz; to build it, see the page 'Several labels' of the docs"
_RAREST_CLAUSE = 0.05  # of the contracts have it, or it is left out: with five folds, one would have four contracts
_HYBRIDQA_FOLDER_MUST_HOLD = (
    "train, dev and test; build these files from clones of github.com/wenhuchen/HybridQA and "
    "github.com/wenhuchen/WikiTables-WithLinks, see the page 'Several labels' of the docs"
)


def load_arxiv(data_dir: Path | None = None) -> ClassificationTask:
    """Load arXiv papers and their subjects (He et al., 2019) from the hub, or from a folder with its own classes.

    As in the paper, the configuration is `no_ref`, which removes the subject where the text gives it away, and the
    first 30,000 characters of a paper are read.
    """
    columns = Columns(max_characters=30_000)
    if data_dir is not None:
        return load_folder("arxiv", data_dir, replace(columns, label_name="label_name"), _ARXIV_FOLDER_MUST_HOLD)
    instead = f"pass --data-dir FOLDER with {_ARXIV_FOLDER_MUST_HOLD}"
    return load_hub_task("arxiv", "ccdv/arxiv-classification", "no_ref", columns, instead)


def load_cuad(data_dir: Path | None = None) -> ClassificationTask:
    """Load CUAD (Hendrycks et al., 2021): commercial contracts, and which clauses each has that are not too rare.

    The Contract Understanding Atticus Dataset v1, by The Atticus Project, CC BY 4.0: 510 contracts that companies
    filed with the SEC, each with a yes or no for 33 kinds of clauses. `recipes/build_cuad.py` makes the task's file
    from it. There is no split, all are the training set: runs are compared on folds.
    """
    paths = find_split_files(data_dir, "contracts", must_hold=_CUAD_FOLDER_MUST_HOLD)
    rows = [row for row in read_rows(paths) if isinstance(row.values.get("labels"), list)]
    counts = Counter(label for row in rows for label in row.values["labels"])
    kept = {label for label, count in counts.items() if count >= _RAREST_CLAUSE * len(rows)}
    rows = [
        replace(row, values={**row.values, "labels": [label for label in row.values["labels"] if label in kept]})
        for row in rows
    ]
    return build_task("cuad", {"train": rows}, Columns(label="labels", id="id"))


def load_hybridqa(data_dir: Path | None = None) -> QuestionTask:
    """Load HybridQA (Chen et al., 2020) as a choice among rows: which row of a table holds the answer to a question.

    People wrote the questions about a Wikipedia table whose cells link to other articles, so that table and articles
    have to be read together. The candidates are the rows of the table, and each has one support: its cells and the
    beginnings of the articles that they link to. This is row selection, not the original task, which asks for the
    answer's words, and not WikiHop, whose candidates are entities and have no supports of their own.

    The questions are those of HybridQA's dev set whose answer lies in exactly one row by the authors' tracing, which
    is a string match. `recipes/build_hybridqa.py` makes the files `train`, `dev` and `test`; questions are under the
    MIT licence, passages are Wikipedia's (CC BY-SA).
    """
    task = load_questions("hybridqa", data_dir, _HYBRIDQA_FOLDER_MUST_HOLD)
    for question in (*task.train, *task.dev, *task.test):
        if len(question.supports) != len(question.candidates):
            raise ValueError(
                f"{data_dir}: question {question.id!r} has {len(question.candidates)} candidates and "
                f"{len(question.supports)} supports, but every row has one support; the folder must hold "
                f"{_HYBRIDQA_FOLDER_MUST_HOLD}."
            )
    return task
