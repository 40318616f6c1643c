"""How many readers a run trains, and how long they are.

A reader's virtual tokens cost what so many more tokens of text would cost, at every step. So the rows of a bank, on
average over the epochs, are at most a sixteenth of the tokens of a document: long documents get several learning
rates and seeds, short ones get few and short readers.
"""

from __future__ import annotations

from typing import NamedTuple

FOLDS = 5
ROWS_PER_TOKEN = 1 / 16
LEARNING_RATES = (1e-3, 3e-3, 5e-4)  # the first is the one where there is room for one only


class BankPlan(NamedTuple):
    """The readers of a label column: of each learning rate, for each fold and for all documents, and of each seed."""

    length: int  # virtual tokens of a reader
    learning_rates: tuple[float, ...]
    seeds: int

    def rows(self, groups: int) -> float:
        """Rows on average over the epochs, in so many groups of documents; the third rate is dropped halfway."""
        rates = len(self.learning_rates)
        return self.length * self.seeds * groups * (rates + min(rates, 2)) / 2


def _plan(length: int, rates: int, seeds: int) -> BankPlan:
    return BankPlan(length, LEARNING_RATES[:rates], seeds)


# The most readers last. Three seeds were as good as eight, and longer prefixes no better.
PLANS = (
    _plan(length=1, rates=1, seeds=1),
    _plan(length=1, rates=1, seeds=2),
    _plan(length=1, rates=2, seeds=2),
    _plan(length=1, rates=2, seeds=3),
    _plan(length=2, rates=2, seeds=3),
    _plan(length=2, rates=3, seeds=3),
)


def plan_bank(
    mean_tokens: float, groups: int, length: int | None = None, learning_rate: float | None = None
) -> BankPlan:
    """The largest plan that documents of so many tokens on average allow; what is given is as given."""
    plans = [
        plan._replace(
            length=length or plan.length,
            learning_rates=plan.learning_rates if learning_rate is None else (learning_rate,),
        )
        for plan in PLANS
    ]
    fitting = (plan for plan in reversed(plans) if plan.rows(groups) <= mean_tokens * ROWS_PER_TOKEN)
    return next(fitting, plans[0])
