"""Long text for masked language modelling, from clones of three public repositories whose licences are named.

    python recipes/long_text.py --wikipedia CLONE --gutenberg CLONE --elife CLONE --output FOLDER

| flag | repository | licence |
| --- | --- | --- |
| `--wikipedia` | JohanMadsen/02807_Project | CC BY-SA 3.0 |
| `--gutenberg` | rcdm-uga/Gutenberg_Text | public domain in the USA |
| `--elife` | elifesciences/elife-article-xml | CC BY 4.0, CC BY 3.0 or CC0, by article |

Writes JSON lines in xz with `id` and `text`, one document a line, in an order that a fixed seed shuffled:
`part-0.jsonl.xz` and so on, and `heldout.jsonl.xz` with 64 documents of each source that are in no part.
"""

from __future__ import annotations

import argparse
import html
import itertools
import json
import lzma
import random
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from prefixprop.data.elife import articles, is_for_evaluation, split_numbers

SEED = 0
SHORTEST_DOCUMENT, LONGEST_BOOK = 8_000, 240_000  # in characters
HELD_OUT = 64  # documents of each source
PART_BYTES = 140_000_000  # under 55 MB in xz


class Document(NamedTuple):
    id: str
    text: str


TAGS = re.compile(r"</?(?:nowiki|poem|small|big|su[bp]|[bip]|ins|samp|onlyinclude|section|blockquote|h\d)\b[^<>]*>")


def tidy(text: str) -> str:
    """Single spaces, a blank line between paragraphs, no tags or control characters, nothing that has no letters."""
    text = re.sub(r"\r\n?", "\n", TAGS.sub("", html.unescape(text)))
    text = re.sub(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff\u200b]", "", text)
    text = "\n".join(re.sub(r"\s+", " ", line).strip() for line in text.split("\n"))
    paragraphs = (paragraph.strip() for paragraph in text.split("\n\n"))
    return "\n\n".join(paragraph for paragraph in paragraphs if any(map(str.isalpha, paragraph)))


# What WikiExtractor leaves of formulas, tables, files and templates: a line of it is no sentence.
WIKI_DEBRIS = re.compile(r"formula_\d|\[\[|\]\]|\{\{|\}\}|</?(?:math|chem|score|div|table|gallery)\b|style=|colspan=")


def clean_article(text: str) -> str:
    text = re.sub(r"<ref\b[^<>]*/>|<ref\b[^\n]*?</ref>|</?ref\b[^<>]*>", "", text)
    text = re.sub(r"(?i)<w?br\b[^<>]*>", " ", text)
    text = "\n".join(line for line in text.split("\n") if not WIKI_DEBRIS.search(line))
    text = tidy(text)
    text = re.sub(r" ?\((?:[ ,;:]|and|or)*\)", "", text)  # a pronunciation or a foreign name stood there
    text = re.sub(r"\([ ,;:]+", "(", text)
    return re.sub(r" +([,.;)](?:\s|$))", r"\1", text)


def wikipedia(clone: Path) -> Iterator[Document]:
    """Articles in WikiExtractor's files; some files are there twice."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(clone.rglob("wiki_*")))
    found = (re.findall(r'(?s)<doc id="(\d+)"[^\n]*>\n(.*?)\n</doc>', text) for text in texts)
    for number, article in shuffled(dict(itertools.chain.from_iterable(found)).items()):
        yield Document(f"wikipedia-{number}", clean_article(article))


BOOK = re.compile(r"(?ms)^ *\*\*\* ?START OF TH[^*]*\*\*\*(.*?)^ *\*\*\* ?END OF TH")
# Words of those who made the electronic book. What was printed before 1925 has no web address.
PRODUCERS = """gutenberg|proofread|transcriber|redactor|this etext|this e-text|text prepared by|this ebook|this e-book
|typographical error|underscores|internet archive|html|http|www.""".replace("\n", "").split("|")
COMMON_WORDS = re.compile(r"\b(?:the|of|and|to|in|a|is|that|was|it|his|her|he|she|with|as|for|but|had|be|you)\b")


def clean_book(text: str) -> str:
    """A book without Project Gutenberg's words, its lines joined; "" if they frame none or it has a copyright."""
    text = re.sub(r"\r\n?", "\n", text)
    book = BOOK.search(text)
    if book is None or re.search(r"(?i)copyrighted project gutenberg|copyright protected", text[: book.start(1)]):
        return ""
    text = re.sub(r"\[(?:Illustration|Frontispiece)[^\[\]]*\]|[\[{](?:(?:Pg|Page|p\.) ?)?\d+[\]}]|_", "", book[1])
    paragraphs = map(unwrap, tidy(text).split("\n\n"))
    return "\n\n".join(paragraph for paragraph in paragraphs if not is_by_producers(paragraph))


def is_by_producers(paragraph: str) -> bool:
    lower = paragraph.lower()
    return lower.startswith(("produced by", "transcribed from")) or any(words in lower for words in PRODUCERS)


def unwrap(paragraph: str) -> str:
    """Prose on one line. Verse and lists, whose lines are short, stay as they are."""
    lines = paragraph.split("\n")
    return " ".join(lines) if sum(map(len, lines[:-1])) >= 50 * len(lines[:-1]) else paragraph


def is_english(text: str) -> bool:
    start = text[:200_000].lower()
    return len(COMMON_WORDS.findall(start)) > 0.2 * len(start.split())


def gutenberg(clone: Path) -> Iterator[Document]:
    """Books of every author in turn, so that no author has many more than another."""
    authors = [shuffled(sorted(folder.glob("*.txt"))) for folder in sorted(clone.iterdir()) if folder.is_dir()]
    for path in itertools.chain.from_iterable(itertools.zip_longest(*authors)):
        text = clean_book(path.read_text(encoding="utf-8")) if path else ""
        if is_english(text):
            yield Document(f"gutenberg-{path.parent.name}/{path.stem}", text[:LONGEST_BOOK])


def elife(clone: Path) -> Iterator[Document]:
    """Articles of eLife, none of them one that the task `elife` evaluates on or may evaluate on later."""
    evaluated = {number for split in ("dev", "test") for number in split_numbers()[split]}
    numbers = shuffled(number for number in range(200_000) if not is_for_evaluation(number))
    for article in articles(clone, numbers):
        assert not is_for_evaluation(article.number) and article.number not in evaluated
        if re.search(r"creativecommons\.org/(?:licenses/by/|publicdomain/zero/)", article.licence):
            yield Document(f"elife-{article.number:05}", tidy(f"{article.title}\n\n{article.text}"))


def shuffled(items: Iterable[Any]) -> list[Any]:
    items = list(items)
    random.Random(SEED).shuffle(items)
    return items


SOURCES: dict[str, tuple[Callable[[Path], Iterator[Document]], int]] = {
    "elife": (elife, 430_000_000),  # first, for it takes longest
    "wikipedia": (wikipedia, 300_000_000),
    "gutenberg": (gutenberg, 260_000_000),
}


def choose(documents: Iterable[Document], characters: int) -> Iterator[Document]:
    """The first long documents, until there are enough characters. A book that its translator has too counts once."""
    seen = set()
    for document in documents:
        opening = next((line for line in document.text.split("\n") if len(line) > 300), document.text)
        if len(document.text) >= SHORTEST_DOCUMENT and opening not in seen:
            seen.add(opening)
            characters -= len(document.text)
            if characters < 0:
                return
            yield document


def read(name: str, clone: Path) -> list[bytes]:
    reader, limit = SOURCES[name]
    documents = list(choose(reader(clone), limit))
    if len(documents) <= HELD_OUT:
        raise ValueError(f"{clone}: {len(documents)} long documents; --{name} needs a clone of its repository.")
    print(f"{name}: {len(documents):,} documents, {sum(len(d.text) for d in documents):,} characters", flush=True)
    return [json.dumps(document._asdict(), ensure_ascii=False).encode() + b"\n" for document in documents]


def write(path: Path, lines: list[bytes]) -> str:
    with lzma.open(path, "wb", preset=1) as file:  # preset 6 is a fifth smaller and ten times slower
        file.writelines(lines)
    return f"{path}: {len(lines):,} documents, {path.stat().st_size / 1e6:.1f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in SOURCES:
        parser.add_argument(f"--{name}", type=Path, metavar="CLONE")
    parser.add_argument("--output", type=Path, metavar="FOLDER", required=True)
    options = parser.parse_args()
    clones = {name: clone for name in SOURCES if (clone := getattr(options, name)) is not None}
    training, held_out = [], []
    with ProcessPoolExecutor(2) as pool:
        try:
            for lines in pool.map(read, clones, clones.values()):
                held_out += lines[:HELD_OUT]
                training += lines[HELD_OUT:]
        except (OSError, ValueError) as error:
            parser.error(str(error))
    if not training:
        parser.error("name at least one clone: " + ", ".join(f"--{name}" for name in SOURCES))
    options.output.mkdir(parents=True, exist_ok=True)
    training, parts = shuffled(training), -(-sum(map(len, training)) // PART_BYTES)
    files = {"heldout": held_out} | {f"part-{part}": training[part::parts] for part in range(parts)}
    paths = (options.output / f"{name}.jsonl.xz" for name in files)
    with ProcessPoolExecutor(2) as pool:
        for told in pool.map(write, paths, files.values()):
            print(told, flush=True)


if __name__ == "__main__":
    main()
