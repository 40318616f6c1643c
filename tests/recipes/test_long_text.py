"""The text for pretraining: what is cleaned away, what is kept, and what is left out."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import long_text

BOOK = """\
The Project Gutenberg EBook of The Lamp, by A. Writer\r
\r
This eBook is for the use of anyone anywhere.\r
\r
*** START OF THIS PROJECT GUTENBERG EBOOK THE\r
LAMP ***\r
\r
Transcribed from the 1889 edition\r
\r
Produced by Somebody and the Online Distributed\r
Proofreading Team\r
\r
THE LAMP\r
\r
[Illustration: She lit\r
the lamp.]\r
\r
It was _late_ in the evening, and the fog had come up from the river{1} so\r
that nobody  in the street could see the lamp which she had put into the\r
window.[2]\r
\r
       *       *       *       *       *\r
\r
  The fog is grey,\r
  The lamp is bright.</p>\r
\r
End of the Project Gutenberg EBook of The Lamp, by A. Writer\r
\r
*** END OF THIS PROJECT GUTENBERG EBOOK THE LAMP ***\r
\r
Project Gutenberg is a registered trademark.\r
"""
ARTICLE = """\
Lamp &amp; Light

The lamp (; also spelled "lampe") or light () is old .<ref name="x">A book, 1999.</ref>
It gives<br>light<nowiki>'</nowiki>s warmth &ndash; and  needs formula_12 of oil.
<poem>A lamp is near,
A star is far .</poem>
[[File:Lamp.png|thumb|A [[lamp]]]]

"""


CLEAN_BOOK = """\
THE LAMP

It was late in the evening, and the fog had come up from the river so that nobody in the street could see the lamp \
which she had put into the window.

The fog is grey,
The lamp is bright."""
CLEAN_ARTICLE = 'Lamp & Light\n\nThe lamp (also spelled "lampe") or light is old.\nA lamp is near,\nA star is far.'


@pytest.mark.parametrize(
    ("clean", "text", "expected"),
    [
        (long_text.clean_book, BOOK, CLEAN_BOOK),
        (long_text.clean_book, BOOK.replace("*** START", "START"), ""),  # without its frame
        (long_text.clean_book, BOOK.replace("This eBook", "This is a COPYRIGHTED Project Gutenberg eBook. It"), ""),
        (long_text.clean_article, ARTICLE, CLEAN_ARTICLE),
        (long_text.is_english, "It was the lamp that she had put in the window of the house.", True),
        (long_text.is_english, "C'était la lampe que l'on avait mise à la fenêtre de la maison.", False),
        (long_text.is_english, "", False),
    ],
)
def test_what_is_left_of_a_text(clean: Callable[[str], object], text: str, expected: object) -> None:
    assert clean(text) == expected


def test_the_same_text_under_two_names_and_short_texts_count_once_or_not_at_all() -> None:
    story = "THE LAMP\n\n" + "It was late in the evening. " * 400
    other = "THE STAR\n\n" + "It was early in the morning. " * 400
    documents = [
        long_text.Document("author", story),
        long_text.Document("translator", "A second title page\n\n" + story),
        long_text.Document("short", other[:1000]),
        long_text.Document("other", other),
        long_text.Document("too many", "THE MOON\n\n" + "Night fell over the town. " * 400),
    ]
    chosen = long_text.choose(documents, len(story) + len(other) + 100)
    assert [document.id for document in chosen] == ["author", "other"]


def test_articles_of_evaluation_and_other_licences_stay_out(tmp_path: Path) -> None:
    (tmp_path / "articles").mkdir()
    # The number 4 is for evaluation by the rule; the newest version of an article counts.
    licences = {"1-v1": "by/4.0", "1-v2": "by/4.0", "2-v1": "by-nc/4.0", "3-v1": "", "4-v1": "by/4.0"}
    for name, licence in licences.items():
        (tmp_path / "articles" / f"elife-{name}.xml").write_text(
            '<article xmlns:xlink="http://www.w3.org/1999/xlink"><front><article-meta>'
            f"<title-group><article-title>Lamps {name}</article-title></title-group><permissions>"
            f'<license xlink:href="http://creativecommons.org/licenses/{licence}/"/>'
            "</permissions></article-meta></front><body><p>A lamp\u2009 is lit.</p></body></article>",
            encoding="utf-8",
        )
    assert list(long_text.elife(tmp_path)) == [("elife-00001", "Lamps 1-v2\n\nA lamp is lit.")]


def test_parts_and_what_is_held_out(tmp_path: Path) -> None:
    told = _run("--wikipedia", tmp_path, "--output", tmp_path / "text")
    assert told.returncode == 2 and "0 long documents" in told.stderr and "Traceback" not in told.stderr
    clone = tmp_path / "clone" / "AA"
    clone.mkdir(parents=True)
    article = '<doc id="{n}" url="u" title="T">\nT{n}\n\n{text}\n</doc>\n'
    lines = (article.format(n=n, text=f"Lamp number {n} is lit. " * 400) for n in range(70))
    (clone / "wiki_00").write_text("".join(lines), encoding="utf-8")
    (clone / "wiki_01").write_text((clone / "wiki_00").read_text(encoding="utf-8"), encoding="utf-8")
    told = _run("--wikipedia", clone.parent, "--output", tmp_path / "text")
    assert told.returncode == 0, told.stderr
    ids = {
        path.name.removesuffix(".jsonl.xz"): [
            json.loads(line)["id"] for line in lzma.decompress(path.read_bytes()).splitlines()
        ]
        for path in (tmp_path / "text").iterdir()
    }
    assert {name: len(found) for name, found in ids.items()} == {"heldout": 64, "part-0": 6}
    assert len({*ids["heldout"], *ids["part-0"]}) == 70


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, long_text.__file__, *arguments], capture_output=True, text=True, timeout=120
    )
