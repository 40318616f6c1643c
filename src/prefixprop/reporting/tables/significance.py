"""Tables of significance: every method against a baseline, and all pairs, with test, split and n of every p-value.

The paper asks whether prefix-propagation is better than prefix-tuning, by a one-tailed t-test over seeds (Results and
Discussion); so the default baseline is prefix-tuning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from prefixprop.evaluation import SignificanceTest, holm_correction
from prefixprop.evaluation.significance import Alternative
from prefixprop.reporting.choose.comparisons import Comparison, Contender
from prefixprop.reporting.tables.pair_tests import DocumentTests, Pair, SeedTests, document_tests, seed_tests
from prefixprop.reporting.tables.table import (
    ABSENT,
    Cell,
    Column,
    Filled,
    Place,
    Table,
    plain_cell,
    range_cell,
    table_of_columns,
)
from prefixprop.settings.methods import BASELINE

SIGNIFICANT = 0.05
_SMALLEST_SHOWN = 0.001
_MOST_NAMED = 4  # pairs in a note
_MEASURES = {"micro_f1": "micro-F1", "accuracy": "accuracy"}
_HOLM = "Holm: corrected for the several methods compared on one split by one test"
_NO_PREDICTIONS = "No paired tests: none of these runs has its predictions; archive runs by their names to add them."
_BOLD = f"bold: below {SIGNIFICANT}"


def significance_tables(comparison: Comparison, name: str, baseline: str = BASELINE) -> list[Table]:
    """The tables of a task, for every model that several methods were tried on."""
    tables: list[Table] = []
    for number, model in enumerate(comparison.models, start=1):
        several = len(comparison.models) > 1
        rows = [contender for contender in comparison.contenders if contender.model == model]
        title = f"{comparison.title}, {model}" if several else comparison.title
        file = f"{name}-model{number}-tests" if several else f"{name}-tests"
        tables += _tables_of_model(comparison, rows, title, file, baseline)
    return tables


def _tables_of_model(
    comparison: Comparison, rows: Sequence[Contender], title: str, name: str, baseline: str
) -> Iterator[Table]:
    is_base = [row.best.settings.method == baseline and row.best.settings.kernel is None for row in rows]
    bases = [row for row, base in zip(rows, is_base, strict=True) if base]
    others = [row for row, base in zip(rows, is_base, strict=True) if not base]
    against = [Pair(row, base, split) for split in comparison.splits for base in bases for row in others]
    kept = [run for row in rows for run in row.best.runs if any(map(run.has_predictions, comparison.splits))]
    lack = () if kept else (_NO_PREDICTIONS,)
    if against:
        yield _over_seeds(comparison, against, f"{title}: better than {baseline}? Over seeds", f"{name}-seeds", lack)
        if kept:
            documents = f"{title}: better than {baseline}? Over {comparison.items}"
            yield _over_documents(comparison, against, documents, f"{name}-documents")
    if len(rows) > 2 or not against:
        pairs = [Pair(*two, split) for split in comparison.splits for two in combinations(rows, 2)]
        if pairs:
            yield _all_pairs(comparison, pairs, f"{title}: all pairs", f"{name}-pairs", lack)


def _over_seeds(comparison: Comparison, pairs: Sequence[Pair], title: str, name: str, more: Sequence[str]) -> Table:
    problems = _Problems()
    found = [_seed_tests(comparison, pair, "greater", problems) for pair in pairs]
    columns = [*_pair_columns(pairs), *_seed_columns(comparison, found)]
    columns += _p_columns("Student's t", [None if tests is None else tests.student for tests in found], pairs)
    columns += _p_columns("Welch's t", [None if tests is None else tests.welch for tests in found], pairs)
    notes = (
        f"One-tailed t-tests of {_measure(comparison)}, n = the seeds of either method; the paper's is Student's, "
        f"which takes both to vary alike. {_HOLM}; {_BOLD}.",
        *problems.notes("No p-value over seeds"),
        *more,
    )
    return table_of_columns(name, title, columns, notes)


def _over_documents(comparison: Comparison, pairs: Sequence[Pair], title: str, name: str) -> Table:
    problems = _Problems()
    found = [_document_tests(pair, "greater", problems) for pair in pairs]
    columns = [*_pair_columns(pairs), *_document_columns(comparison, found)]
    differences = [None if tests is None else tests.bootstrap for tests in found]
    columns.append((Column("Difference, points"), [_points(test) for test in differences]))
    intervals = [ABSENT if test is None else _points_range(*test.interval) for test in differences]
    columns.append((Column("95 % interval"), intervals))
    columns += _p_columns("bootstrap", differences, pairs)
    columns += _p_columns("McNemar", [None if tests is None else tests.mcnemar for tests in found], pairs)
    notes = (
        f"One run of each method, n = the {comparison.items} that both judged; the difference is that of accuracy. "
        "One-tailed paired bootstrap with its interval, and exact McNemar. They tell of these two runs, not of other "
        f"seeds. {_HOLM}; {_BOLD}.",
        *problems.notes("No paired test"),
    )
    return table_of_columns(name, title, columns, notes)


def _all_pairs(comparison: Comparison, pairs: Sequence[Pair], title: str, name: str, lack: Sequence[str]) -> Table:
    problems = _Problems()
    seeds = [_seed_tests(comparison, pair, "two-sided", problems) for pair in pairs]
    columns = [*_pair_columns(pairs, both=True), *_seed_columns(comparison, seeds)]
    columns += _p_columns("Welch's t", [None if tests is None else tests.welch for tests in seeds], pairs)
    tests_told = f"Welch's of {_measure(comparison)} with n = the seeds of either method"
    more = [*problems.notes("No p-value over seeds"), *lack]
    if not lack:
        problems = _Problems()
        documents = [_document_tests(pair, "two-sided", problems) for pair in pairs]
        columns += _document_columns(comparison, documents)
        columns += _p_columns("McNemar", [None if tests is None else tests.mcnemar for tests in documents], pairs)
        tests_told += f", exact McNemar of one run each with n = the {comparison.items} that both judged"
        more += problems.notes("No paired test")
    return table_of_columns(name, title, columns, (f"Two-sided tests: {tests_told}. {_HOLM}; {_BOLD}.", *more))


class _Problems:
    """Why tests are undefined, the same reasons told once; of many pairs how many, for the table shows which."""

    def __init__(self) -> None:
        self._pairs: dict[str, list[str]] = {}

    def add(self, pair: Pair, reason: str) -> None:
        self._pairs.setdefault(reason, []).append(f"{pair.first.method} and {pair.second.method} on {pair.split}")

    def notes(self, start: str) -> list[str]:
        return [f"{start} for {_listed(pairs)}: {reason.rstrip('.')}." for reason, pairs in self._pairs.items()]


def _listed(pairs: Sequence[str]) -> str:
    return "; ".join(pairs) if len(pairs) <= _MOST_NAMED else f"{len(pairs)} of these pairs"


def _seed_tests(
    comparison: Comparison, pair: Pair, alternative: Alternative, problems: _Problems
) -> SeedTests | None:
    try:
        found = seed_tests(pair, comparison.settings.metric, alternative)
    except ValueError:
        problems.add(pair, f"runs without {comparison.settings.metric}")
        return None
    if found.student.reason is not None:
        problems.add(pair, found.student.reason)
    return found


def _document_tests(pair: Pair, alternative: Alternative, problems: _Problems) -> DocumentTests | None:
    try:
        return document_tests(pair, alternative)
    except (ValueError, OSError) as error:
        problems.add(pair, str(error))
        return None


def _pair_columns(pairs: Sequence[Pair], both: bool = False) -> list[Filled]:
    columns: list[Filled] = [(Column("Method", is_text=True), [Cell(pair.first.method) for pair in pairs])]
    if both or len({pair.second.method for pair in pairs}) > 1:
        columns.append((Column("Against", is_text=True), [Cell(pair.second.method) for pair in pairs]))
    columns.append((Column("Split", is_text=True), [Cell(pair.split) for pair in pairs]))
    return columns


def _seed_columns(comparison: Comparison, found: Sequence[SeedTests | None]) -> list[Filled]:
    counts = [ABSENT if tests is None else _two(*tests.seeds) for tests in found]
    differences = [_points(None if tests is None else tests.welch) for tests in found]
    title = f"{_measure(comparison)} difference, points"
    return [(Column("n seeds"), counts), (Column(title[0].upper() + title[1:]), differences)]


def _document_columns(comparison: Comparison, found: Sequence[DocumentTests | None]) -> list[Filled]:
    counts = [plain_cell(None if tests is None else tests.documents, 0) for tests in found]
    seeds = [ABSENT if tests is None else _two(*(run.settings.seed for run in tests.runs)) for tests in found]
    return [(Column(f"n {comparison.items}"), counts), (Column("Runs of seed"), seeds)]


def _p_columns(test: str, found: Sequence[SignificanceTest | None], pairs: Sequence[Pair]) -> list[Filled]:
    """The p-values of a test, and where several methods are compared also the corrected ones."""
    values = [None if one is None else one.p_value for one in found]
    corrected: list[float | None] = [None] * len(values)
    for split in {pair.split for pair in pairs}:
        places = [place for place, pair in enumerate(pairs) if pair.split == split]
        for place, value in zip(places, holm_correction([values[place] for place in places]), strict=True):
            corrected[place] = value
    if corrected == values:
        return [(Column(f"p, {test}"), [_p_cell(value, may_be_bold=True) for value in values])]
    return [
        (Column(f"p, {test}"), [_p_cell(value, may_be_bold=False) for value in values]),
        (Column(f"p, {test}, Holm"), [_p_cell(value, may_be_bold=True) for value in corrected]),
    ]


def _p_cell(value: float | None, may_be_bold: bool) -> Cell:
    if value is None:
        return ABSENT
    text = f"< {_SMALLEST_SHOWN}" if value < _SMALLEST_SHOWN else f"{value:.3f}"
    return Cell(text, value, Place.FIRST if may_be_bold and value < SIGNIFICANT else Place.OTHER)


def _points(test: SignificanceTest | None) -> Cell:
    return plain_cell(None if test is None else 100 * test.difference, 1, sign="+")


def _points_range(low: float, high: float) -> Cell:
    return range_cell(100 * low, 100 * high, decimals=1, sign="+")


def _two(first: int, second: int) -> Cell:
    return Cell(f"{first} and {second}", float(first))


def _measure(comparison: Comparison) -> str:
    return _MEASURES.get(comparison.settings.metric, comparison.settings.metric)
