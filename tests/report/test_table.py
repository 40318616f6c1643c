"""One table structure, and three ways to write it."""

from __future__ import annotations

import pytest

from prefixprop.report.table import Table, frame, mean_cell, ranked, to_latex, to_markdown

CELLS = frame(
    [
        {"Method": "a_b|<c>", "Model": "m", "F1, % ↑": "85.0 ± 7.1", "F1, % (paper)": "99.0", "ECE ↓": "0.200"},
        {"Method": "second", "Model": "m", "F1, % ↑": "85.0", "F1, % (paper)": None, "ECE ↓": "0.100"},
        {"Method": "third", "Model": "m", "F1, % ↑": "60.0", "F1, % (paper)": None, "ECE ↓": None},
        {"Method": "TF-IDF", "Empty": None, "F1, % ↑": "90.0"},
    ]
)
TABLE = Table("name", "A_title & 5 %", CELLS, ["Note α."], marks=ranked(CELLS, rows=3))

MARKDOWN = r"""### A\_title & 5 %

| Method | F1, % ↑ | F1, % (paper) | ECE ↓ |
| --- | ---: | ---: | ---: |
| a\_b\|\<c\> | **85.0 ± 7.1** | 99.0 | <u>0.200</u> |
| second | **85.0** | — | **0.100** |
| third | <u>60.0</u> | — | — |
| TF-IDF | 90.0 | — | — |

Note α.
"""
LATEX = r"""% needs \usepackage{booktabs,graphicx}
\begin{table}
\centering\small
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
\begin{tabular}{lrrr}
\toprule
Method & F1, \% $\uparrow$ & F1, \% (paper) & ECE $\downarrow$ \\
\midrule
a\_b|\textless{}c\textgreater{} & \textbf{85.0 $\pm$ 7.1} & 99.0 & \underline{0.200} \\
second & \textbf{85.0} & --- & \textbf{0.100} \\
third & \underline{60.0} & --- & --- \\
TF-IDF & 90.0 & --- & --- \\
\bottomrule
\end{tabular}}
\caption{A\_title \& 5 \%. Note $\alpha$.}
\label{tab:name}
\end{table}
"""


@pytest.mark.parametrize(("write", "expected"), [(to_markdown, MARKDOWN), (to_latex, LATEX)])
def test_ranked_cells_and_special_characters(write: object, expected: str) -> None:
    assert write(TABLE) == expected  # type: ignore[operator]


def test_latex_escapes_every_special_character() -> None:
    special = r"50 % of $x_1 & {y} ~ #3 ^ \ < > ± — ↑ × α"
    text = to_latex(Table("name", special, frame([{"Method": special}])))
    assert text.isascii()
    escaped = (
        r"50 \% of \$x\_1 \& \{y\} \textasciitilde{} \#3 \textasciicircum{} \textbackslash{} \textless{} "
        r"\textgreater{} $\pm$ --- $\uparrow$ $\times$ $\alpha$"
    )
    assert rf"{escaped} \\" in text and rf"\caption{{{escaped}.}}" in text


@pytest.mark.parametrize(("values", "text"), [([80, 90], "85.0 ± 7.1"), ([80], "80.0"), ([], None)])  # √(2 · 5² / 1)
def test_a_number_is_the_mean_and_the_sample_deviation(values: list[float], text: str | None) -> None:
    assert mean_cell(values, 1) == text
