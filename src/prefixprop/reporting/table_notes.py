"""What is told below the tables: over what numbers were averaged, what was chosen, and whose values they are."""

from __future__ import annotations

from collections.abc import Sequence

from prefixprop.reporting.groups import Comparison, Contender
from prefixprop.reporting.paper_values import REPORTED_SPLITS
from prefixprop.reporting.protocol import keeps_last_epoch
from prefixprop.reporting.tables import Column

ONE_SEED = "†"


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
        reported = REPORTED_SPLITS.get(comparison.settings.task or "") == "dev"
        start = "This is the split that the paper reports; but it" if reported else "Dev"
        notes.append(f"{start} also chose the learning rate and the epoch, so its numbers flatter. Test did not.")
    if keeps_last_epoch(comparison.settings):
        notes.append("The weights of the last epoch were judged, not those of the epoch that is best on dev.")
    if len(comparison.models) == 1:
        notes.append(f"Model: {comparison.models[0]}.")
    return notes


def choice_notes(comparison: Comparison) -> list[str]:
    """Which of several searched values stand in the table; the runs at the others are not averaged."""
    notes = []
    for contender in comparison.contenders:
        reason = _choice(contender)
        if reason is not None:
            chosen = contender.best.settings
            alpha = f", alpha {chosen.alpha:g}" if chosen.kernel else ""
            rate = f"learning rate {chosen.learning_rate:g}{alpha}"
            notes.append(f"{comparison.short_name(contender)}: {rate}, {reason}")
    return [f"Chosen values: {'; '.join(notes)}."] if notes else []


def _choice(contender: Contender) -> str | None:
    if contender.folds:
        best = max(contender.folds, key=lambda trial: trial.dev_score).settings
        chosen, runs = contender.best.settings, sum(len(trial.runs) for trial in contender.folds)
        if (best.learning_rate, best.alpha) == (chosen.learning_rate, chosen.alpha):
            return f"the best of {len(contender.folds)} tried in cross-validation ({runs} runs on folds)"
        return f"while {best.learning_rate:g} was the best in cross-validation ({runs} runs on folds)"
    if len(contender.trials) == 1:
        return None
    is_best = contender.best.dev_score == max(trial.dev_score for trial in contender.trials)
    return f"{'the best on dev' if is_best else 'the one with the most seeds'} of {len(contender.trials)} tried"


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
