"""eLife's articles and the files made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixprop.data import iterate_json_lines
from prefixprop.data.elife import Article, articles, is_for_evaluation, split_numbers, write_split

from tiny_articles import write_article

BODY = """
<sec><title>Introduction</title>
<p>Birds <italic>sing</italic>
 (<xref>Li, 2020</xref>), <inline-formula><mml:math><mml:mi>x</mml:mi></mml:math></inline-formula>often.
 <disp-formula><mml:math><mml:mi>y</mml:mi></mml:math></disp-formula></p>
<fig-group><fig><label>Figure 1</label><caption><title>A bird</title><p>Seen.</p></caption></fig></fig-group>
<table-wrap><caption><title>Table</title></caption><table><tbody><tr><td><p>1</p></td></tr></tbody></table></table-wrap>
<p> </p>
<sec><title>At night</title><list><list-item><p>Owls.</p></list-item></list></sec></sec>
<boxed-text><p>A box.</p></boxed-text><media><caption><p>A video.</p></caption></media>
"""


def test_an_article(tmp_path: Path) -> None:
    write_article(tmp_path, 7, BODY, title="Song in\n <italic>Aves</italic>", subjects=["Ecology", "Neuroscience"])
    assert list(articles(tmp_path)) == [
        Article(
            number=7,
            year="2021",
            subjects=("Ecology", "Neuroscience"),
            licence="http://creativecommons.org/licenses/by/4.0/",
            title="Song in Aves",
            text="Introduction\nBirds sing (Li, 2020), often.\nAt night\nOwls.",
        )
    ]


def test_the_newest_version_of_each_by_number(tmp_path: Path) -> None:
    for number, version in [(100_000, 1), (20, 9), (20, 10), (20, 2)]:
        write_article(tmp_path, number, f"<p>Version {version}.</p>", version=version)
    assert [(one.number, one.text) for one in articles(tmp_path)] == [(20, "Version 10."), (100_000, "Version 1.")]
    assert [one.number for one in articles(tmp_path, [100_000, 3, 20])] == [100_000, 20]


def test_broken_xml_and_entities_that_grow_without_measure(tmp_path: Path) -> None:
    write_article(tmp_path, 7, "<p>&h;</p>")
    path = tmp_path / "articles" / "elife-00007-v1.xml"
    doubled = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefg", "bcdefgh", strict=True))
    page = path.read_text().replace(
        'archivearticle1.dtd">', f'archivearticle1.dtd" [<!ENTITY a "aaaaaaaaaa">{doubled}]>'
    )
    path.write_text(page)
    with pytest.raises(ValueError, match=r"broken XML .*amplification"):
        list(articles(tmp_path))
    write_article(tmp_path, 7, "<p>")
    with pytest.raises(ValueError, match=r"elife-00007-v1\.xml: broken XML \(mismatched tag"):
        list(articles(tmp_path))


def test_the_splits() -> None:
    splits = split_numbers()
    assert {name: len(set(numbers)) for name, numbers in splits.items()} == {"train": 8104, "dev": 600, "test": 800}
    assert not any(map(is_for_evaluation, splits["train"]))
    assert all(map(is_for_evaluation, splits["dev"] + splits["test"]))
    assert not set(splits["dev"]) & set(splits["test"])


def test_the_file_of_a_split(tmp_path: Path) -> None:
    long = Article(7, "2021", ("Ecology",), "", "Tïtle", "é" * 20_001)
    others = [
        Article(8, "2021", ("Ecology",), "", "", "x" * 17_999),
        Article(9, "2021", ("A", "B"), "", "", long.text),
    ]
    path = tmp_path / "folder" / "train.jsonl.xz"
    assert write_split(path, [long, *others]) == 1
    record = {"id": "elife-00007", "year": "2021", "label": "Ecology", "title": "Tïtle", "text": "é" * 20_000}
    assert list(iterate_json_lines(path)) == [(1, record)]
