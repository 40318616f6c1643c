"""Tables of runs: methods in brief, quality as in the paper's Table 2, calibration as in its Table 3, and folds.

The paper's own values can be shown next to measured ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import pandas as pd

from prefixprop.evaluate.significance import summarise_seeds
from prefixprop.report.choose import (
    Comparison,
    Row,
    cross_validations,
    documents_of,
    grouped,
    row_key,
    set_name,
    stored_name,
)
from prefixprop.report.table import BOLD, Table, file_name, frame, interval_cell, mean_cell, number, ranked
from prefixprop.runs.find import Run
from prefixprop.settings.run_settings import RunSettings

ALL_METRICS = "All metrics"
_TIME = "Time, s ↓"
_BRIEF = "Scaling: by the temperature fitted on the dev set. Trained: parameters, with the head. Time: of training."
_MARKS = "best bold, second best underlined"
_PAPER = (
    "Columns marked (paper) show what the paper reports for the method on Longformer-base or RoBERTa-base; they were "
    "not measured here. Its F1 on Hyperpartisan is that of the positive class, whatever its caption says."
)
_BASELINE = "The baseline, a simple model of words, was judged on the same documents as the runs; it is not ranked."
_FOLDS = (
    "These numbers serve to choose and to compare settings; they are not results. Bold: the values that were chosen."
)
Extra = Mapping[str, Callable[[Row], str | None]]  # columns besides metrics


class Metric(NamedTuple):
    """A metric by its name in `metrics.json`; the arrow says which values are better."""

    name: str
    title: str
    decimals: int = 1
    scale: float = 100
    arrow: str = "↑"
    calibrated: bool = False  # after temperature scaling

    @property
    def heading(self) -> str:
        return f"{self.title} {self.arrow}"

    def cell(self, values: Sequence[float]) -> str | None:
        return mean_cell([self.scale * value for value in values], self.decimals)


QUALITY = (
    Metric("average_precision", "AP macro, %"),  # where a document can have several labels
    Metric("micro_f1", "F1 micro, %"),
    Metric("macro_f1", "F1 macro, %"),
    Metric("macro_precision", "P macro, %"),
    Metric("macro_recall", "R macro, %"),
    Metric("binary_f1", "F1 binary, %"),
    Metric("accuracy", "Accuracy, %"),
)
_NAMES = {"ece": "ECE", "adaptive_ece": "Adaptive ECE", "mce": "MCE", "brier": "Brier", "nll": "NLL"}
CALIBRATION = tuple(Metric(name, title, 3, 1, "↓") for name, title in _NAMES.items())
ECE, *_, NLL = CALIBRATION
SCALED = tuple(one._replace(title=f"{one.title} after scaling", calibrated=True) for one in (ECE, NLL))


def headline(name: str) -> Metric:
    """The metric of quality of this name."""
    return next(metric for metric in QUALITY if metric.name == name)


def quality_of(name: str) -> list[Metric]:
    """This metric first, and the others; but not accuracy, which is micro-F1 where every document has one label."""
    return [headline(name), *(metric for metric in QUALITY if metric.name not in (name, "accuracy"))]


def metric_tables(comparison: Comparison, name: str, with_paper: bool) -> list[Table]:
    """Methods in brief first; then, folded away, all metrics of every split."""
    metric, judged_on = headline(comparison.settings.metric), comparison.judged_on
    seeds: Extra = {"Seeds": lambda row: str(len(row.runs))}
    brief: Extra = {
        "95 % interval": lambda row: interval_cell(summarise_seeds(row.values(judged_on, metric.name)).interval),
        "Trained": lambda row: number(row.runs[0].metric("parameters", "trainable"), ",.0f"),
        _TIME: lambda row: (_recorded(row, "seconds", 0) or "").partition(" ")[0] or None,
        **(seeds if len({len(row.runs) for row in comparison.rows}) > 1 else {}),
    }
    quality: Extra = {"Learning rate": _learning_rate, **seeds}
    calibration: Extra = {"Temperature": lambda row: _recorded(row, "temperature", 2)}
    table = _table(comparison, judged_on, "methods", (metric, ECE, SCALED[0]), brief)
    notes = [*table.notes, _BRIEF, *different_circumstances(comparison.runs)]
    tables = [replace(table, name=f"{name}-methods", notes=notes)]
    for split in reversed(comparison.documents):
        for kind, end, metrics, extra in (
            ("quality", "", quality_of(metric.name), quality),
            ("calibration", "-calibration", [*CALIBRATION, *SCALED], calibration),
        ):
            table = _table(comparison, split, kind, metrics, extra, with_paper)
            tables.append(replace(table, name=f"{name}-{split}{end}", fold=ALL_METRICS))
    return tables


def _table(
    comparison: Comparison, split: str, kind: str, metrics: Sequence[Metric], extra: Extra, with_paper: bool = False
) -> Table:
    rows = []
    for row in (row for row in comparison.rows if row.values(split, metrics[0].name)):
        cells: dict[str, str | None] = {"Method": row.name, "Model": row.model}
        for metric in metrics:
            cells[metric.heading] = metric.cell(row.values(split, metric.name, metric.calibrated))
            if with_paper and not metric.calibrated:
                reported = paper_value(row.settings, split, metric.name)
                cells[f"{metric.title} (paper)"] = number(reported, f".{metric.decimals}f")
        rows.append(cells | {heading: cell(row) for heading, cell in extra.items()})
    baseline = _baseline_rows(comparison.runs, split, metrics)
    found = frame([*rows, *baseline])
    # Times of different machines are not a contest.
    marks = ranked(found, len(rows), _TIME if len({run.device for run in comparison.runs}) > 1 else "")
    notes = _notes(comparison, split) + [_BASELINE] * bool(baseline)
    notes += [_PAPER] * any("(paper)" in heading for heading in found.columns)
    return Table("", f"{comparison.title}, {split}: {kind}", found, notes, marks=marks)


def overview_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """The paper's two tables, methods by task: how good they are, and their calibration error."""
    tables = []
    for name, title in (("results", "Methods by task"), ("calibration", "Calibration error by task")):
        rows: dict[tuple[str, str | None], dict[str, str | None]] = {}
        for one in comparisons:
            metric = ECE if name == "calibration" else headline(one.settings.metric)
            for row in one.rows:
                cells = rows.setdefault((row.name, row.model), {"Method": row.name, "Model": row.model})
                cells[f"{one.title} {metric.heading}"] = metric.cell(row.values(one.judged_on, metric.name))
        found = frame(rows.values())
        sets = "; ".join(f"{one.title}: {set_name(one.judged_on)}" for one in comparisons)
        note = f"Mean ± standard deviation over seeds; {_MARKS}. {sets}."
        tables.append(Table(name, title, found, [note], marks=ranked(found, len(found))))
    return tables


def _recorded(row: Row, name: str, decimals: int) -> str | None:
    """The mean of a number that `metrics.json` has outside the splits."""
    return mean_cell([run.metrics[name] for run in row.runs if name in run.metrics], decimals)


def _learning_rate(row: Row) -> str | None:
    """The one that stands for the method, and among how many values it was chosen."""
    rate, alpha = row.searched
    tried = f" (of {row.tried} tried{' on folds' if row.by_folds else ''})" if row.tried > 1 else ""
    return None if rate is None else f"{rate:g}" + ("" if alpha is None else f", α {alpha:g}") + tried


def baseline_name(run: Run) -> str:
    """What the baseline of a run is called: TF-IDF for documents, BM25 for questions."""
    return f"{run.metrics['baseline']['model'].split()[0]} baseline"


def _baseline_rows(runs: Iterable[Run], split: str, metrics: Sequence[Metric]) -> list[dict[str, str | None]]:
    """A row for each number of training documents: the mean over folds and samples of the training set."""
    stored, rows = stored_name(split), []
    with_baseline = [
        run
        for run in runs
        if run.settings.method != "tfidf"  # which has a row of its own
        and split in documents_of(run)
        and run.baseline(stored, "accuracy") is not None
    ]
    by_number = grouped(with_baseline, lambda run: run.settings.max_train_documents)
    for count, together in by_number.items():
        part = f", max train documents {count}" if count is not None and len(by_number) > 1 else ""
        row: dict[str, str | None] = {"Method": baseline_name(together[0]) + part}
        for metric in (one for one in metrics if not one.calibrated):
            # Runs on the same documents have the same baseline.
            found = {(run.settings.fold, run.settings.seed): run.baseline(stored, metric.name) for run in together}
            values = [value for value in found.values() if value is not None]
            row[metric.heading] = metric.cell(values[:1] if len(set(values)) == 1 else values)
        rows.append(row)
    return rows


def _notes(comparison: Comparison, split: str) -> list[str]:
    """What stands behind the numbers, what chose on the split, and by which protocol it was judged."""
    counts, keeps_last = {len(row.runs) for row in comparison.rows}, comparison.settings.keep == "last"
    over = f"{max(counts)} seeds" if len(counts) == 1 else "seeds"
    spread = f"mean ± standard deviation over {over}" if max(counts) > 1 else "one seed each"
    notes = [f"{comparison.documents[split]:,} {split} {comparison.items}; {spread}; {_MARKS}."]
    if split == "dev":
        chosen = [] if all(row.by_folds for row in comparison.rows) else ["the learning rate"]
        chosen += [] if keeps_last else ["the epoch"]
        told = f"chose {' and '.join(chosen) or 'nothing'}{', so its numbers are optimistic' if chosen else ''}"
        notes.append(f"The dev set {told}.")
    notes += ["The weights of the last epoch were judged, not those of the best on the dev set."] * keeps_last
    notes += [f"Model: {', '.join(comparison.models)}."] * (len(comparison.models) == 1)
    return notes


def different_circumstances(runs: Sequence[Run]) -> list[str]:
    """A line on what differs between the runs in code, machine and versions, if anything does."""
    facts = []
    for run in runs:
        git = run.environment.get("git") or {}
        commit = f"{git.get('commit') or 'unknown':.7}{' with changes' if git.get('changed') else ''}"
        versions = {"Python": run.environment.get("python"), **(run.environment.get("packages") or {})}
        facts.append({"commit": commit, "device": run.device, **versions})
    counts = [pd.DataFrame(facts)[name].fillna("unknown").value_counts() for name in dict.fromkeys(chain(*facts))]
    differing = [
        f"{found.index.name} ({', '.join(f'{value}: {count}' for value, count in found.items())})"
        for found in counts
        if len(found) > 1
    ]
    return [f"Not all runs were made alike: {'; '.join(differing)}."] if differing else []


def fold_tables(runs: Iterable[Run], comparisons: Sequence[Comparison] = ()) -> dict[str, list[Table]]:
    """A table of every cross-validation among the runs, by the title of the comparison that it belongs to.

    `comparisons` have the results that were run at the chosen values, and so show which these are.
    """
    chosen = {row_key(row.runs[0]): row.searched for one in comparisons for row in one.rows}
    tables: dict[str, list[Table]] = {}
    for at, comparison in enumerate(cross_validations(runs), start=1):
        tables.setdefault(comparison.title, []).append(_fold_table(comparison, chosen, at))
    return tables


def _fold_table(comparison: Comparison, chosen: Mapping[Any, Any], at: int) -> Table:
    settings, metric, rows = comparison.settings, headline(comparison.settings.metric), comparison.rows
    bold: list[Row] = []
    for key, same in grouped(rows, lambda row: row_key(row.runs[0])).items():
        best = max(same, key=lambda row: (len(row.runs), row.dev_score)).searched
        bold += [row for row in same if row.searched == chosen.get(key, best) and len(same) > 1]
    extra: Extra = {
        "Learning rate": lambda row: number(row.searched[0], "g"),
        "Alpha": lambda row: number(row.searched[1], "g"),
        "Runs": lambda row: str(len(row.runs)),
    }
    table = _table(comparison, "dev", "", (metric, ECE), extra)
    seeds = ", ".join(map(str, sorted({run.settings.seed for run in comparison.runs})))
    notes = [
        f"{settings.folds} folds of the training set, seeds {seeds}: every run is judged on the fold that its "
        "training left out; mean ± standard deviation over the runs.",
        _FOLDS,
        *table.notes[2:],
        *different_circumstances(comparison.runs),
    ]
    title = f"{comparison.title}: cross-validation on {settings.folds} folds"
    marks = pd.DataFrame({metric.heading: [BOLD if row in bold else "" for row in rows]})
    return Table(f"cross-validation-{at}-{file_name(settings.data_name)}", title, table.cells, notes, marks=marks)


# --- the paper ------------------------------------------------------------------------------------------------------
# What it reports in its Tables 2 and 3. Longformer is Longformer-base and RoBERTa is RoBERTa-base. Hyperpartisan is
# reported on the dev set, the others on the test set (caption of Table 2).

_REPORTED_SPLITS = {"wikihop": "test", "arxiv": "test", "newsgroups": "test", "hyperpartisan": "dev"}
_ROWS = (
    ("prefix-tuning", "roberta"), ("prefix-tuning", "longformer"), ("prefix-propagation", "longformer"),
    ("fine-tuning", "longformer"),
)  # fmt: skip
# By task and metric. The paper calls the F1 of Hyperpartisan micro, but its released code computes that of the
# positive class, and its P and R fit that: their harmonic mean is about this F1.
_VALUES = {
    ("wikihop", "accuracy"): (11.7, 38.9, 42.2, 74.0),
    ("arxiv", "macro_precision"): (79.4, 81.5, 83.1, 83.1),
    ("arxiv", "macro_recall"): (79.6, 81.7, 83.1, 82.9),
    ("arxiv", "micro_f1"): (79.8, 82.7, 83.3, 83.3),
    ("arxiv", "ece"): (0.056, 0.075, 0.042, 0.099),
    ("newsgroups", "macro_precision"): (67.9, 68.9, 70.1, 71.8),
    ("newsgroups", "macro_recall"): (67.0, 68.4, 69.7, 71.2),
    ("newsgroups", "micro_f1"): (68.2, 69.7, 71.0, 72.3),
    ("newsgroups", "ece"): (0.123, 0.117, 0.122, 0.212),
    ("hyperpartisan", "macro_precision"): (70.4, 78.3, 86.4, 87.8),
    ("hyperpartisan", "macro_recall"): (59.2, 73.8, 77.7, 76.2),
    ("hyperpartisan", "binary_f1"): (64.1, 75.3, 81.8, 81.5),
    ("hyperpartisan", "ece"): (0.228, 0.153, 0.093, 0.138),
}  # fmt: skip


def paper_value(settings: RunSettings, split: str, metric: str) -> float | None:
    """What the paper reports for the task and method on a model of the same family, in its units; None if nothing."""
    family = next((name for name in ("longformer", "roberta") if name in settings.model.lower()), "")
    row = (settings.method_row.name, family)
    if row not in _ROWS or settings.kernel is not None or _REPORTED_SPLITS.get(settings.task or "") != split:
        return None
    values = _VALUES.get((settings.task or "", metric))
    return None if values is None else values[_ROWS.index(row)]
