"""A folder like a clone of eLife's public repository, with invented articles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE article PUBLIC "-//NLM//DTD JATS (Z39.96) Journal Archiving DTD v1.1//EN" "JATS-archivearticle1.dtd">
<article xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:mml="http://www.w3.org/1998/Math/MathML">
<front><article-meta><article-categories>
<subj-group subj-group-type="display-channel"><subject>Research Article</subject></subj-group>
{subjects}</article-categories>
<title-group><article-title>{title}</article-title></title-group>
<pub-date date-type="publication"><day>1</day><year>2021</year></pub-date>
<pub-date pub-type="collection"><year>2020</year></pub-date>
<permissions><license xlink:href="http://creativecommons.org/licenses/by/4.0/"><license-p>Free.</license-p></license>
</permissions><abstract><p>The abstract.</p></abstract></article-meta></front>
<body>{body}</body>
<back><ref-list><ref><article-title>A reference</article-title></ref></ref-list></back>
</article>"""
SUBJECT = '<subj-group subj-group-type="heading"><subject>{}</subject></subj-group>\n'


def write_article(
    clone: Path,
    number: int,
    body: str = "<p>Text.</p>",
    *,
    version: int = 1,
    title: str = "A title",
    subjects: Sequence[str] = ("Ecology",),
) -> None:
    """Write one version of an article where a clone has it."""
    (clone / "articles").mkdir(parents=True, exist_ok=True)
    page = PAGE.format(subjects="".join(map(SUBJECT.format, subjects)), title=title, body=body)
    (clone / "articles" / f"elife-{number:05}-v{version}.xml").write_text(page, encoding="utf-8")
