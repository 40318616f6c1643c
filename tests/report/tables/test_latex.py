"""Tables as LaTeX: escaping and structure, without LaTeX, and compiled where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from prefixprop.report.tables.latex import to_latex
from prefixprop.report.tables.table import ABSENT, Better, Cell, Column, Mark, Table, text_column

SPECIAL = r"50 % of $x_1 & {y} ~ #3 ^ \ < > ± — ↑ × α"
WIDE = Table(
    "wide",
    "Is it wide?",
    [
        text_column("Method", ["a", "b"]),
        *(Column(f"Measure {n}, %", [Cell("90.1 ± 10.2", 90.1), ABSENT], from_paper=n % 2 == 1) for n in range(20)),
    ],
    ("A note.",),
)


def test_special_characters_are_escaped() -> None:
    table = Table("name", SPECIAL, [Column("A_b", [Cell(SPECIAL, None, Mark.BOLD)], is_text=True)])
    text = to_latex(table)
    escaped = (
        r"50 \% of \$x\_1 \& \{y\} \textasciitilde{} \#3 \textasciicircum{} \textbackslash{} \textless{} "
        r"\textgreater{} $\pm$ --- $\uparrow$ $\times$ $\alpha$"
    )
    assert rf"\textbf{{{escaped}}} \\" in text
    assert rf"\caption{{{escaped}.}}" in text
    assert r"A\_b \\" in text
    assert text.isascii()


def test_a_wide_table_is_set_in_parts_with_the_names_and_the_papers_values_kept_beside() -> None:
    text = to_latex(WIDE)
    bodies = re.findall(r"\\begin\{tabular\}\{(l[lr]*)\}(.*?)\\bottomrule", text, re.DOTALL)
    assert [alignment for alignment, _ in bodies] == ["l" + "r" * 10] * 2
    for alignment, body in bodies:
        rows = body.split(r"\midrule")[1].strip().splitlines()
        assert [row.split(" & ")[0] for row in rows] == ["a", "b"]
        assert {row.count(" & ") for row in rows} == {len(alignment) - 1}
        assert body.count("(paper)") == body.count("Measure") / 2 == 5
    assert r"\begin{table*}" in text and r"\end{table*}" in text
    assert r"\caption{Is it wide? A note.}" in text


def test_a_narrow_table_stays_in_its_column() -> None:
    table = Table("small", "Small", [text_column("Method", ["a"]), Column("F1", [ABSENT], Better.HIGHER)])
    text = to_latex(table)
    assert r"\begin{table}" in text
    assert r"Method & F1 $\uparrow$ \\" in text
    assert text.count("{") == text.count("}")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX: apt install texlive-latex-recommended")
def test_latex_takes_it(tmp_path: Path) -> None:
    special = Table("special", SPECIAL, [Column(SPECIAL, [Cell(SPECIAL)])])
    tables = "\n".join(map(to_latex, (WIDE, special)))
    document = "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n"
    (tmp_path / "page.tex").write_text(document + tables + "\\end{document}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout
