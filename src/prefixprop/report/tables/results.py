"""The tables of a task: its methods in brief; then tests, quality (as Table 2) and calibration (as Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prefixprop.report.choose.comparisons import Comparison, Contender, Trial
from prefixprop.report.choose.method_rows import searched_values
from prefixprop.report.file_names import file_name
from prefixprop.report.tables.baseline import with_baseline
from prefixprop.report.tables.circumstances import differing_circumstances
from prefixprop.report.tables.findings import findings
from prefixprop.report.tables.measures import CALIBRATION, QUALITY, Measure, headline
from prefixprop.report.tables.one_run import one_run_findings, one_run_tables
from prefixprop.report.tables.paper import (
    MEASURES,
    REPORTED_SPLITS,
    TUNED_PERCENT,
    PaperMethod,
    find_paper_method,
    paper_value,
)
from prefixprop.report.tables.significance import baseline_pairs, significance_tables
from prefixprop.report.tables.table import (
    ABSENT,
    Better,
    Cell,
    Column,
    Table,
    count_cell,
    name_columns,
    number_cell,
    plain_cell,
    ranked,
    setting_cell,
    text_column,
    without_deviations,
    without_empty,
)
from prefixprop.runs.run import Run, as_number
from prefixprop.settings.methods import BASELINE

_FOLD = "All measures"
_TUNED = "Tuned, %"
_SCALING = "Scaling: by the temperature fitted on dev."


def result_tables(
    comparisons: Sequence[Comparison], with_paper: bool = False, baseline: str = BASELINE
) -> list[Table]:
    """All tables of these comparisons.

    `with_paper` puts the paper's values beside, in columns of their own; `baseline` is the method that the others are
    tested against.
    """
    tables: list[Table] = []
    for number, comparison in enumerate(comparisons, start=1):
        # Two comparisons may share their title, but not the names of their files.
        name = f"{number}-{file_name(comparison.settings.data_name)}"
        against, run = baseline_pairs(comparison, baseline), comparison.lone_run
        told = findings(comparison, against) if run is None else one_run_findings(comparison, run)
        found = [_methods_table(comparison, f"{name}-methods", told)]
        found += [] if run is None else one_run_tables(comparison, run, name)
        found += significance_tables(comparison, name, against, baseline)
        for split in reversed(comparison.splits):
            found.append(_quality_table(comparison, split, f"{name}-{split}", with_paper))
            found.append(_calibration_table(comparison, split, f"{name}-{split}-calibration", with_paper))
        tables += [replace(table, section=comparison.title) for table in found]
    return tables


def _methods_table(comparison: Comparison, name: str, told: Sequence[str]) -> Table:
    """What most readers want to know of every method: how good it is, how well calibrated, and what it costs."""
    trials, split = comparison.trials, comparison.judged_on
    measure, calibration = headline(comparison.settings.metric), CALIBRATION[:2]
    times = [number_cell(_recorded(trial, "seconds"), 0) for trial in trials]
    seconds = without_deviations(Column("Time, s", times, Better.LOWER))
    runs = [run for trial in trials for run in trial.runs]
    columns = [
        # One column of names: on a phone, the score is to be seen beside it.
        text_column("Method", [comparison.short_name(row) for row in comparison.contenders]),
        ranked(measure.column(trials, split)),
        replace(measure.interval_column(trials, split), title="95 % interval"),
        *(ranked(without_deviations(each.column(trials, split))) for each in calibration),
        Column("Trained", [count_cell(trial.runs[0].metric("parameters", "trainable")) for trial in trials]),
        # Times of different machines are not a contest.
        ranked(seconds) if len({run.device for run in runs}) == 1 else seconds,
        *([_seeds_column(trials)] if len(comparison.seed_counts) > 1 else []),
    ]
    notes = (
        " ".join(filter(None, [_spread_note(comparison, split), differing_circumstances(runs)])),
        *protocol_notes(comparison, split),
        f"{_SCALING} Trained: parameters, with the head. Time: of training, with its evaluations on dev.",
    )
    title = f"{comparison.title}, {split}: methods"
    table = Table(name, title, without_empty(columns), notes, findings=told)
    return with_baseline(table, runs, split, (measure, *calibration))


def _quality_table(comparison: Comparison, split: str, name: str, with_paper: bool) -> Table:
    trials = comparison.trials
    columns = _name_columns(comparison)
    for measure in QUALITY[comparison.settings.metric]:
        columns += _measure_columns(comparison, split, measure, with_paper)
        if measure.name == comparison.settings.metric:
            # Of the other measures the interval is the detail of each cell.
            columns.append(measure.interval_column(trials, split))
    columns += _tuned_columns(comparison, split, with_paper)
    columns.append(Column("Learning rate", [setting_cell(trial.settings.learning_rate) for trial in trials]))
    columns.append(_seeds_column(trials))
    columns = without_empty(map(ranked, columns))
    notes = (
        _spread_note(comparison, split),
        *protocol_notes(comparison, split),
        *choice_notes(comparison),
        *_tuned_notes(columns),
        *_paper_notes(comparison, columns),
    )
    table = Table(name, f"{comparison.title}, {split}: quality", columns, notes, fold=_FOLD)
    runs = [run for trial in trials for run in trial.runs]
    return with_baseline(table, runs, split, QUALITY[comparison.settings.metric])


def _calibration_table(comparison: Comparison, split: str, name: str, with_paper: bool) -> Table:
    columns = _name_columns(comparison)
    for measure in CALIBRATION:
        columns += _measure_columns(comparison, split, measure, with_paper)
    temperatures = [_recorded(trial, "temperature") for trial in comparison.trials]
    columns.append(Column("Temperature", [number_cell(values, 2) for values in temperatures]))
    columns = without_empty(map(ranked, columns))
    notes = (_spread_note(comparison, split), _SCALING, *_paper_notes(comparison, columns))
    return Table(name, f"{comparison.title}, {split}: calibration", columns, notes, fold=_FOLD)


def _name_columns(comparison: Comparison) -> list[Column]:
    rows = comparison.contenders
    return name_columns([row.method for row in rows], [row.model for row in rows])


def _measure_columns(comparison: Comparison, split: str, measure: Measure, with_paper: bool) -> list[Column]:
    """The measure, and what the paper says of it."""
    column = measure.column(comparison.trials, split)
    if not with_paper or measure.calibrated:
        return [column]
    task, rows = comparison.settings.task, map(_paper_row, comparison.contenders)
    values = [None if row is None else paper_value(task, split, row, measure.name) for row in rows]
    return [
        column,
        Column(measure.title, [plain_cell(value, measure.decimals) for value in values], from_paper=True),
    ]


def _tuned_columns(comparison: Comparison, split: str, with_paper: bool) -> list[Column]:
    """Trained parameters in percent of the encoder's; the paper's numbers leave the head out."""
    first_runs = [trial.runs[0] for trial in comparison.trials]
    without_head = "Tuned without head, %"
    columns = [
        Column(_TUNED, [_tuned_cell(run, with_head=True) for run in first_runs]),
        Column(without_head, [_tuned_cell(run, with_head=False) for run in first_runs]),
    ]
    if with_paper and REPORTED_SPLITS.get(comparison.settings.task or "") == split:
        rows = map(_paper_row, comparison.contenders)
        cells = [plain_cell(None if row is None else TUNED_PERCENT[row], 2) for row in rows]
        columns.append(Column(without_head, cells, from_paper=True))
    return columns


def _tuned_cell(run: Run, with_head: bool) -> Cell:
    backbone, trainable = run.metric("parameters", "backbone"), run.metric("parameters", "trainable")
    head = 0.0 if with_head else run.metric("parameters", "head")
    if not backbone or trainable is None or head is None:
        return ABSENT
    return plain_cell(100 * (trainable - head) / backbone, 3)


def _paper_row(contender: Contender) -> PaperMethod | None:
    settings = contender.best.settings
    return find_paper_method(settings.method_row.name, settings.kernel, settings.model)


def _seeds_column(trials: Sequence[Trial]) -> Column:
    return Column("Seeds", [plain_cell(len(trial.runs), 0) for trial in trials])


def _recorded(trial: Trial, name: str) -> list[float]:
    """A number that `metrics.json` has outside the splits, of every run that has it."""
    found = (as_number(run.metrics.get(name)) for run in trial.runs)
    return [value for value in found if value is not None]


def _spread_note(comparison: Comparison, split: str) -> str:
    """How many documents and seeds stand behind the numbers, and what the marks mean."""
    counts = comparison.seed_counts
    over = f"{counts[0]} seeds" if len(counts) == 1 else "seeds"
    seeds = f"mean ± standard deviation over {over}" if max(counts) > 1 else "one seed each"
    if len(comparison.contenders) == 1 and max(counts) == 1:
        seeds = "one seed"
    marks = "; best bold, second best underlined" if len(comparison.contenders) > 1 else ""
    return f"{comparison.documents[split]:,} {split} {comparison.items}; {seeds}{marks}."


def protocol_notes(comparison: Comparison, split: str) -> list[str]:
    """What the split is for, and by which protocol it was judged."""
    notes = []
    if split == "dev":
        notes.append(_dev_note(comparison))
    if comparison.settings.keep == "last":
        notes.append("The weights of the last epoch were judged, not those of the epoch that is best on dev.")
    if comparison.usual_model is not None:
        others = "" if len(comparison.models) == 1 else ", where a row names no other"
        notes.append(f"Model: {comparison.usual_model}{others}.")
    return notes


def _dev_note(comparison: Comparison) -> str:
    """What dev chose: its numbers are then too good."""
    is_papers = REPORTED_SPLITS.get(comparison.settings.task or "") == "dev"
    start = "The paper reports this split, " if is_papers else ""
    chosen = _chosen_on_dev(comparison)
    if chosen:
        it = "but it" if is_papers else "Dev"
        return f"{start}{it} also chose {' and '.join(chosen)}, so its numbers are optimistic. Test chose nothing."
    it = "but here it" if is_papers else "Dev"
    return (
        f"{start}{it} chose nothing: a cross-validation on train chose the learning rate, and the epoch is the last."
    )


def _chosen_on_dev(comparison: Comparison) -> list[str]:
    by_folds = [bool(contender.folds) for contender in comparison.contenders]
    chosen = ["the learning rate"] if not any(by_folds) else []
    if comparison.settings.keep != "last":
        chosen.append("the epoch")
    elif any(contender.best.settings.early_stopping for contender in comparison.contenders):
        chosen.append("when to stop")
    if any(by_folds) and not all(by_folds):
        chosen.append("the learning rate where no cross-validation did")
    return chosen


def choice_notes(comparison: Comparison) -> list[str]:
    """Which of several searched values stand in the table; the runs at the others are not averaged."""
    notes = []
    for contender in comparison.contenders:
        reason = _choice(contender)
        if reason is not None:
            values = _values(contender.best)
            notes.append(f"{comparison.short_name(contender)}: learning rate {values}, {reason}")
    return [f"Chosen values: {'; '.join(notes)}."] if notes else []


def _choice(contender: Contender) -> str | None:
    if len(contender.folds) > 1:
        best, runs = contender.folds[0], sum(len(trial.runs) for trial in contender.folds)
        if searched_values(best.settings) == searched_values(contender.best.settings):
            return f"the best of {len(contender.folds)} tried in cross-validation ({runs} runs on folds)"
        return f"while {_values(best)} was the best in cross-validation ({runs} runs on folds)"
    if len(contender.trials) == 1:
        return None
    is_best = contender.best.dev_score == max(trial.dev_score for trial in contender.trials)
    return f"{'the best on dev' if is_best else 'the one with the most seeds'} of {len(contender.trials)} tried"


def _values(trial: Trial) -> str:
    rate, alpha = searched_values(trial.settings)
    return f"{rate:g}" + ("" if alpha is None else f", alpha {alpha:g}")


def _tuned_notes(columns: Sequence[Column]) -> list[str]:
    """What the trained parameters are a share of, where a column shows that."""
    if not any(column.title == _TUNED for column in columns):
        return []
    return ["Tuned: in percent of the encoder's parameters; the head is not part of the encoder and comes on top."]


def _paper_notes(comparison: Comparison, columns: Sequence[Column]) -> list[str]:
    """Whose values the columns marked (paper) have."""
    if not any(column.from_paper for column in columns):
        return []
    notes = [
        "Columns marked (paper) show what the paper reports for the method on Longformer-base or RoBERTa-base; they "
        "were not measured here, and the rows may be of other models."
    ]
    has_binary_f1 = "binary_f1" in MEASURES.get(comparison.settings.task or "", ())
    if has_binary_f1 and any("F1" in column.title for column in columns):
        notes.append(
            "The paper calls its F1 on Hyperpartisan micro, but its released code computes that of the positive "
            "class. Its P and R fit that, not macro averages: their harmonic mean is about its F1."
        )
    return notes
