"""Tables of significance: every method against a baseline, and all pairs, with test, split and n of every p-value.

The paper asks whether prefix-propagation is better than prefix-tuning, by a one-tailed t-test over seeds (Results and
Discussion); so the default baseline is prefix-tuning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from prefixprop.evaluation import (
    McNemarTest,
    PairedBootstrap,
    SignificanceTest,
    holm_correction,
    mcnemar_test,
    paired_bootstrap,
    paired_scores,
    t_test,
    welch_test,
)
from prefixprop.evaluation.significance import Alternative
from prefixprop.reporting.choose.comparisons import Comparison, Contender
from prefixprop.reporting.tables.table import (
    ABSENT,
    Cell,
    Column,
    Mark,
    Table,
    plain_cell,
    range_cell,
    text_column,
)
from prefixprop.runs.run import Run
from prefixprop.settings.methods import BASELINE

SIGNIFICANT = 0.05
_SMALLEST_SHOWN = 0.001
_MOST_NAMED = 4  # pairs in a note
_MEASURES = {"micro_f1": "micro-F1", "accuracy": "accuracy"}
_HOLM = "Holm: corrected for the several methods compared on one split by one test"
_NO_PREDICTIONS = "No paired tests: none of these runs has predictions; archive runs by their names to add them."
_BOLD = f"bold: below {SIGNIFICANT}"


@dataclass(frozen=True)
class Pair:
    """Two rows on one split; the question is whether the first is better than the second."""

    first: Contender
    second: Contender
    split: str

    def values(self, measure: str) -> tuple[list[float], list[float]]:
        """A measure of every seed of either row."""
        return self.first.best.values(self.split, measure), self.second.best.values(self.split, measure)

    def runs_of_one_seed(self) -> tuple[Run, Run]:
        """The runs of the first seed that both rows have predictions of, otherwise the first of each."""
        first, second = (row.best.with_predictions(self.split) for row in (self.first, self.second))
        by_seed = {run.settings.seed: run for run in second}
        shared = (run for run in first if run.settings.seed in by_seed)
        run = next(shared, first[0])
        return run, by_seed.get(run.settings.seed, second[0])


@dataclass(frozen=True)
class DocumentTests:
    """What two runs on the same documents say; `runs` are the two, `documents` is how many they share."""

    runs: tuple[Run, Run]
    documents: int
    bootstrap: PairedBootstrap
    mcnemar: McNemarTest


# Why the test of a pair is undefined.
_Problem = tuple[Pair, str]


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
    kept = any(run.has_predictions(split) for row in rows for run in row.best.runs for split in comparison.splits)
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
    metric = comparison.settings.metric
    student = [t_test(*pair.values(metric), "greater") for pair in pairs]
    welch = [welch_test(*pair.values(metric), "greater") for pair in pairs]
    columns = [
        *_pair_columns(pairs),
        *_seed_columns(comparison, pairs, welch),
        *_p_columns("Student's t", student, pairs),
        *_p_columns("Welch's t", welch, pairs),
    ]
    notes = (
        f"One-tailed t-tests of {_measure(comparison)}, n = the seeds of either method; the paper's is Student's, "
        f"which assumes equal variances. {_HOLM}; {_BOLD}.",
        *_seed_problems(pairs, welch),
        *more,
    )
    return Table(name, title, columns, notes)


def _over_documents(comparison: Comparison, pairs: Sequence[Pair], title: str, name: str) -> Table:
    found, problems = _document_tests(pairs, "greater")
    bootstraps = [None if tests is None else tests.bootstrap for tests in found]
    intervals = [ABSENT if test is None else _points_range(*test.interval) for test in bootstraps]
    columns = [
        *_pair_columns(pairs),
        *_document_columns(comparison, found),
        Column("Difference, points", [_points(test) for test in bootstraps]),
        Column("95 % interval", intervals),
        *_p_columns("bootstrap", bootstraps, pairs),
        *_p_columns("McNemar", [None if tests is None else tests.mcnemar for tests in found], pairs),
    ]
    notes = (
        f"One run of each method, n = the {comparison.items} that both judged; the difference is that of accuracy. "
        "One-tailed paired bootstrap with its interval, and exact McNemar. They are about these two runs, not "
        f"about other seeds. {_HOLM}; {_BOLD}.",
        *problems,
    )
    return Table(name, title, columns, notes)


def _all_pairs(comparison: Comparison, pairs: Sequence[Pair], title: str, name: str, lack: Sequence[str]) -> Table:
    welch = [welch_test(*pair.values(comparison.settings.metric), "two-sided") for pair in pairs]
    columns = [
        *_pair_columns(pairs, both=True),
        *_seed_columns(comparison, pairs, welch),
        *_p_columns("Welch's t", welch, pairs),
    ]
    tested = f"Welch's of {_measure(comparison)} with n = the seeds of either method"
    more = [*_seed_problems(pairs, welch), *lack]
    if not lack:
        found, problems = _document_tests(pairs, "two-sided")
        columns += _document_columns(comparison, found)
        columns += _p_columns("McNemar", [None if tests is None else tests.mcnemar for tests in found], pairs)
        tested += f", exact McNemar of one run each with n = the {comparison.items} that both judged"
        more += problems
    return Table(name, title, columns, (f"Two-sided tests: {tested}. {_HOLM}; {_BOLD}.", *more))


def _document_tests(pairs: Sequence[Pair], alternative: Alternative) -> tuple[list[DocumentTests | None], list[str]]:
    """One run of each row compared by which documents it gets right, and notes on where that cannot be."""
    found: list[DocumentTests | None] = []
    problems: list[_Problem] = []
    for pair in pairs:
        try:
            runs = pair.runs_of_one_seed()
            first, second = paired_scores(*(run.predictions(pair.split) for run in runs))
        except (ValueError, OSError) as error:
            found.append(None)
            problems.append((pair, str(error)))
            continue
        bootstrap, mcnemar = paired_bootstrap(first, second, alternative), mcnemar_test(first, second, alternative)
        found.append(DocumentTests(runs, len(first), bootstrap, mcnemar))
    return found, _problem_notes("No paired test", problems)


def _seed_problems(pairs: Sequence[Pair], tests: Sequence[SignificanceTest]) -> list[str]:
    problems = [(pair, test.reason) for pair, test in zip(pairs, tests, strict=True) if test.reason is not None]
    return _problem_notes("No p-value over seeds", problems)


def _problem_notes(start: str, problems: Iterable[_Problem]) -> list[str]:
    """The same reasons once; of many pairs how many, for the table shows which."""
    by_reason: dict[str, list[str]] = {}
    for pair, reason in problems:
        named = f"{pair.first.method} and {pair.second.method} on {pair.split}"
        by_reason.setdefault(reason.rstrip("."), []).append(named)
    return [
        f"{start} for {'; '.join(named) if len(named) <= _MOST_NAMED else f'{len(named)} of these pairs'}: {reason}."
        for reason, named in by_reason.items()
    ]


def _pair_columns(pairs: Sequence[Pair], both: bool = False) -> list[Column]:
    columns = [text_column("Method", [pair.first.method for pair in pairs])]
    if both or len({pair.second.method for pair in pairs}) > 1:
        columns.append(text_column("Against", [pair.second.method for pair in pairs]))
    return [*columns, text_column("Split", [pair.split for pair in pairs])]


def _seed_columns(comparison: Comparison, pairs: Sequence[Pair], tests: Sequence[SignificanceTest]) -> list[Column]:
    counts = [tuple(map(len, pair.values(comparison.settings.metric))) for pair in pairs]
    title = f"{_measure(comparison)} difference, points"
    return [
        Column("n seeds", [_two(*count) for count in counts]),
        Column(title[0].upper() + title[1:], [_points(test) for test in tests]),
    ]


def _document_columns(comparison: Comparison, found: Sequence[DocumentTests | None]) -> list[Column]:
    counts = [plain_cell(None if tests is None else tests.documents, 0) for tests in found]
    seeds = [ABSENT if tests is None else _two(*(run.settings.seed for run in tests.runs)) for tests in found]
    return [Column(f"n {comparison.items}", counts), Column("Runs of seed", seeds)]


def _p_columns(test: str, found: Sequence[SignificanceTest | None], pairs: Sequence[Pair]) -> list[Column]:
    """The p-values of a test, and where several methods are compared also the corrected ones."""
    values = [None if one is None else one.p_value for one in found]
    corrected: list[float | None] = []
    for split in dict.fromkeys(pair.split for pair in pairs):  # the pairs of a split stand together
        of_split = [value for value, pair in zip(values, pairs, strict=True) if pair.split == split]
        corrected += holm_correction(of_split)
    if corrected == values:
        return [Column(f"p, {test}", [_p_cell(value, may_be_bold=True) for value in values])]
    return [
        Column(f"p, {test}", [_p_cell(value, may_be_bold=False) for value in values]),
        Column(f"p, {test}, Holm", [_p_cell(value, may_be_bold=True) for value in corrected]),
    ]


def _p_cell(value: float | None, may_be_bold: bool) -> Cell:
    if value is None:
        return ABSENT
    text = f"< {_SMALLEST_SHOWN}" if value < _SMALLEST_SHOWN else f"{value:.3f}"
    return Cell(text, value, Mark.BOLD if may_be_bold and value < SIGNIFICANT else Mark.NONE)


def _points(test: SignificanceTest | None) -> Cell:
    return plain_cell(None if test is None else 100 * test.difference, 1, sign="+")


def _points_range(low: float, high: float) -> Cell:
    return range_cell(100 * low, 100 * high, decimals=1, sign="+")


def _two(first: int, second: int) -> Cell:
    return Cell(f"{first} and {second}", float(first))


def _measure(comparison: Comparison) -> str:
    return _MEASURES.get(comparison.settings.metric, comparison.settings.metric)
