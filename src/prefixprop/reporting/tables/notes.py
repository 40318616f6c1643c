"""What is told below the tables: over what numbers were averaged, what was chosen, and whose values they are."""

from __future__ import annotations

from collections.abc import Sequence

from prefixprop.reporting.choose.comparisons import Comparison, Contender, Trial
from prefixprop.reporting.choose.method_rows import searched_values
from prefixprop.reporting.choose.protocol import keeps_last_epoch
from prefixprop.reporting.tables.paper_values import REPORTED_SPLITS
from prefixprop.reporting.tables.table import Column

ONE_SEED = "†"
TUNED = "Tuned, %"


def spread_note(comparison: Comparison, split: str) -> str:
    """How many documents and seeds stand behind the numbers, and what the marks mean."""
    seeds = "mean ± standard deviation over seeds" if comparison.has_several_seeds else "one seed each"
    if has_lone_seeds(comparison):
        seeds += f" ({ONE_SEED} one seed)"
    marks = "; best bold, second best underlined" if len(comparison.contenders) > 1 else ""
    return f"{comparison.documents[split]:,} {split} {comparison.items}; {seeds}{marks}."


def has_lone_seeds(comparison: Comparison) -> bool:
    """Whether some rows have one seed, and others more."""
    return comparison.has_several_seeds and any(is_lone_seed(contender) for contender in comparison.contenders)


def is_lone_seed(contender: Contender) -> bool:
    return len(contender.best.runs) == 1


def protocol_notes(comparison: Comparison, split: str) -> list[str]:
    """What the split is for, and by which protocol it was judged."""
    notes = []
    if split == "dev":
        notes.append(_dev_note(comparison))
    if keeps_last_epoch(comparison.settings):
        notes.append("The weights of the last epoch were judged, not those of the epoch that is best on dev.")
    if len(comparison.models) == 1:
        notes.append(f"Model: {comparison.models[0]}.")
    return notes


def _dev_note(comparison: Comparison) -> str:
    """What dev chose, which its numbers are then too good for."""
    is_papers = REPORTED_SPLITS.get(comparison.settings.task or "") == "dev"
    start = "This is the split that the paper reports; " if is_papers else ""
    chosen = _chosen_on_dev(comparison)
    if chosen:
        it = "but it" if is_papers else "Dev"
        return f"{start}{it} also chose {' and '.join(chosen)}, so its numbers flatter. Test did not."
    it = "here it" if is_papers else "Dev"
    return (
        f"{start}{it} chose nothing: a cross-validation on train chose the learning rate, and the epoch is the last."
    )


def _chosen_on_dev(comparison: Comparison) -> list[str]:
    by_folds = [bool(contender.folds) for contender in comparison.contenders]
    chosen = ["the learning rate"] if not any(by_folds) else []
    if not keeps_last_epoch(comparison.settings):
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


def tuned_notes(columns: Sequence[Column]) -> list[str]:
    """Of what the trained parameters are a share, where a column has that."""
    if not any(column.title == TUNED for column in columns):
        return []
    return ["Tuned: in percent of the encoder's parameters; the head is none of these and counts on top."]


def paper_notes(comparison: Comparison, columns: Sequence[Column]) -> list[str]:
    """Whose values the columns marked (paper) have."""
    if not any(column.from_paper for column in columns):
        return []
    notes = [
        "Columns marked (paper) are what the paper reports for Longformer-base or RoBERTa-base by that method; they "
        "were not measured here, and the models in these rows may be others."
    ]
    if comparison.settings.task == "hyperpartisan" and any("F1" in column.title for column in columns):
        notes.append(
            "The paper calls its F1 of Hyperpartisan micro, but its released code computes that of the positive "
            "class, and its P and R fit that, not macro averages: their harmonic mean is about its F1."
        )
    return notes
