"""eLife's research articles and their subjects: 18 classes, nine texts in ten longer than 4,096 tokens.

The task's files are made from a clone of github.com/elifesciences/elife-article-xml. An article has exactly one
subject and a body of at least 18,000 characters; its text is the first 20,000 of them, without title and abstract.
The licence of an article is CC BY 4.0, CC BY 3.0 or CC0. Its authors are in the clone, and at the address
https://doi.org/10.7554/eLife.NUMBER, with the number in five digits.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

from prefixprop.atomic_files import replacing_file
from prefixprop.data.documents import ClassificationTask
from prefixprop.data.files import Columns, load_folder

REPOSITORY = "https://github.com/elifesciences/elife-article-xml"
MIN_CHARACTERS, MAX_CHARACTERS = 18_000, 20_000

_FOLDER_MUST_HOLD = (
    "train.jsonl.xz, dev.jsonl.xz and test.jsonl.xz, which `prefixprop build-elife CLONE FOLDER` makes from a clone "
    f"of {REPOSITORY} (git clone --depth 1)"
)
_FILE_NAME = re.compile(r"elife-(?P<number>\d+)-v(?P<version>\d+)\.xml")
_SPLITS = files("prefixprop.data") / "assets" / "elife" / "splits.json.gz"
_META = "front/article-meta"
_SUBJECTS = f"{_META}/article-categories/subj-group[@subj-group-type='heading']/subject"
_LINK = "{http://www.w3.org/1999/xlink}href"
_PARAGRAPHS = {"title", "p"}
_NOT_TEXT = {"boxed-text", "disp-formula", "fig", "inline-formula", "media", "table-wrap"}


def load_elife(data_dir: Path | None = None) -> ClassificationTask:
    """Load the 8,104 training, 600 dev and 800 test articles from a folder."""
    return load_folder("elife", data_dir, Columns(id="id"), _FOLDER_MUST_HOLD)


@dataclass(frozen=True)
class Article:
    """The newest version of an article.

    Attributes:
        number: What its DOI ends in: 10.7554/eLife.00011 has the number 11.
        year: When this version appeared.
        subjects: The fields of research that eLife lists it under, none to two.
        licence: The address of its licence.
        title: Its title.
        text: The whole body: headings and paragraphs, one a line, without title and abstract, figures, tables, boxes,
            videos, formulas and references.
    """

    number: int
    year: str
    subjects: tuple[str, ...]
    licence: str
    title: str
    text: str


def articles(clone: str | Path, numbers: Iterable[int] | None = None) -> Iterator[Article]:
    """Read the newest version of all articles of a clone, by number, or of those with `numbers`, in that order.

    Numbers that the clone lacks are skipped.
    """
    newest = _newest_files(Path(clone))
    wanted = sorted(newest) if numbers is None else [number for number in numbers if number in newest]
    return (_read(number, newest[number]) for number in wanted)


def is_for_evaluation(number: int) -> bool:
    """Whether an article is for evaluation only, never for training or pretraining: every fifth, by chance."""
    return int(hashlib.sha1(str(number).encode()).hexdigest(), 16) % 5 == 0


def split_numbers() -> dict[str, list[int]]:
    """The numbers of the articles in the training, dev and test set."""
    return json.loads(gzip.decompress(_SPLITS.read_bytes()))


def write_split(path: Path, found: Iterable[Article]) -> int:
    """Write a file of the task (`.jsonl.xz`); return how many articles it holds.

    An article needs one subject and a long text. A version newer than the splits may have neither.
    """
    count = 0
    with replacing_file(path) as temporary, lzma.open(temporary, "wt", encoding="utf-8") as lines:
        for article in found:
            if len(article.subjects) == 1 and len(article.text) >= MIN_CHARACTERS:
                count += 1
                record = {
                    "id": f"elife-{article.number:05}",
                    "year": article.year,
                    "label": article.subjects[0],
                    "title": article.title,
                    "text": article.text[:MAX_CHARACTERS],
                }
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    return count


def _newest_files(clone: Path) -> dict[int, Path]:
    versions: dict[int, tuple[int, Path]] = {}
    for path in (clone / "articles").glob("*.xml"):
        if match := _FILE_NAME.fullmatch(path.name):
            number, version = int(match["number"]), int(match["version"])
            versions[number] = max(versions.get(number, (0, path)), (version, path))
    if not versions:
        raise FileNotFoundError(
            f"{clone}: no articles of eLife here (articles/elife-NUMBER-vVERSION.xml). Give the folder that "
            f"`git clone --depth 1 {REPOSITORY}` makes."
        )
    return {number: path for number, (_, path) in versions.items()}


def _read(number: int, path: Path) -> Article:
    try:
        # The parser fetches no external entities, and expat stops at entities that grow without measure.
        article = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}: broken XML ({error}); get the file again with git.") from error
    licence = article.find(f"{_META}/permissions/license")
    return Article(
        number=number,
        year=article.findtext(f"{_META}/pub-date/year", ""),
        subjects=tuple(_one_line(subject.itertext()) for subject in article.iterfind(_SUBJECTS)),
        licence="" if licence is None else licence.get(_LINK, ""),
        title=" ".join(
            _one_line(title.itertext()) for title in article.iterfind(f"{_META}/title-group/article-title")
        ),
        text="\n".join(paragraph for body in article.iterfind("body") for paragraph in _paragraphs(body)),
    )


def _paragraphs(element: ElementTree.Element) -> Iterator[str]:
    for child in element:
        if child.tag in _PARAGRAPHS:
            if paragraph := _one_line(_texts(child)):
                yield paragraph
        elif child.tag not in _NOT_TEXT:
            yield from _paragraphs(child)


def _texts(element: ElementTree.Element) -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if child.tag not in _NOT_TEXT:
            yield from _texts(child)
        yield child.tail or ""


def _one_line(texts: Iterable[str]) -> str:
    return " ".join("".join(texts).split())
