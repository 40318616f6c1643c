"""Hyperpartisan news detection (SemEval-2019 Task 4, by-article); the data set is shipped inside the package.

Train and dev are Longformer's split of the 645 published articles. That split's own test is not used: 58 of
its 65 articles are also in train or dev. Test is the official test set of the shared task, less the articles
whose text is also among the 645. `assets/hyperpartisan/ATTRIBUTION.md` names the sources and the licence.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from prefixprop.data.documents import ClassificationTask, Document, Split
from prefixprop.data.rows import read_json_lines

if TYPE_CHECKING:
    from prefixprop.data.rows import Traversable

LABEL_NAMES = ("mainstream", "hyperpartisan")

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
    """Load the shipped data set: 516 training, 64 development and 625 test articles, their texts cleaned.

    `data_dir` is a folder with the files of the shipped one: `train.jsonl.gz`, `test.jsonl.gz`, `hp-splits.json`.
    """
    folder = _ASSETS if data_dir is None else data_dir
    try:
        published, official_test = _read_articles(folder / "train.jsonl.gz"), _read_articles(folder / "test.jsonl.gz")
        split_ids = json.loads((folder / "hp-splits.json").read_text(encoding="utf-8"))
        by_number = {int(article.id): article for article in published}
        train, dev = (tuple(by_number[number] for number in split_ids[split]) for split in ("train", "dev"))
        return ClassificationTask(
            "hyperpartisan", LABEL_NAMES, train, dev, without_texts_of(published, official_test)
        )
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


def without_texts_of(known: Iterable[Document], documents: Iterable[Document]) -> Split:
    """Return the documents whose text, compared by its words alone, is not the text of a known document."""
    known_texts = {_words_of(document) for document in known}
    return tuple(document for document in documents if _words_of(document) not in known_texts)


def _words_of(document: Document) -> str:
    return _NOT_A_WORD.sub(" ", document.text.casefold()).strip()


def _read_articles(path: Path | Traversable) -> list[Document]:
    return [
        Document(record["id"], clean_text(record["text"]), record["label"], clean_text(record["title"]))
        for record in read_json_lines(path)
    ]
