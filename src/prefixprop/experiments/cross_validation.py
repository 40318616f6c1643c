"""Cross-validation in a sweep: candidates are judged by the mean over left-out folds of train, not on dev.

```yaml
cross_validation: {folds: 5, seeds: [1, 2]}   # seeds: the sweep's first, if not given
```

dev then judges nothing that is chosen by the search, and test nothing at all: fold runs do not read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prefixprop.experiments.cells import Judge
from prefixprop.settings.check import close_match, value_problem
from prefixprop.settings.yaml_entries import YamlEntry, YamlValue

CROSS_VALIDATION = "cross_validation"
_FOLDS, _SEEDS = "folds", "seeds"


@dataclass(frozen=True)
class CrossValidation:
    """How candidates are judged: by every fold with every seed; without seeds, with the first of the cell's."""

    folds: int
    seeds: tuple[int, ...] = ()

    def judges(self, first_seed: int) -> tuple[Judge, ...]:
        return tuple(
            {"seed": seed, "folds": self.folds, "fold": fold}
            for seed in self.seeds or (first_seed,)
            for fold in range(self.folds)
        )


def read_cross_validation(entry: YamlEntry, tell: Callable[[int, str], None]) -> CrossValidation | None:
    """Read the entry of a sweep's file; None if anything is wrong with it, which `tell` then gets with its line."""
    problems: list[tuple[int, str]] = []
    values: dict[str, Any] = {}
    for part in entry.value.entries or ():
        if part.key in values:
            problems.append((part.line, f"{part.key!r} is set twice; keep one."))
        elif part.key not in (_FOLDS, _SEEDS):
            hint = close_match(str(part.key), (_FOLDS, _SEEDS)) or f"; it has {_FOLDS} and {_SEEDS}"
            problems.append((part.line, f"there is no {part.key!r}{hint}."))
        elif part.key == _SEEDS:
            values[_SEEDS] = _seeds(part.value, problems)
        else:
            values[_FOLDS] = part.value.plain
            problem = "needs a whole number." if part.value.plain is None else value_problem(_FOLDS, part.value.plain)
            if problem is not None:
                problems.append((part.line, f"{_FOLDS}: {problem}"))
    if _FOLDS not in values and not problems:
        problems.append((entry.line, "say how many folds there are, such as {folds: 5}."))
    for line, problem in problems:
        tell(line, f"{CROSS_VALIDATION}: {problem}")
    return None if problems else CrossValidation(**values)


def _seeds(value: YamlValue, problems: list[tuple[int, str]]) -> tuple[int, ...]:
    seeds: list[int] = []
    for item in (value,) if value.items is None else value.items:
        problem = value_problem("seed", item.plain)
        if problem is None and item.plain in seeds:
            problem = f"{item.plain} is listed twice; keep one."
        if problem is not None:
            problems.append((item.line, f"{_SEEDS}: {problem}"))
        seeds.append(item.plain)
    if not seeds:
        problems.append((value.line, f"{_SEEDS}: the list is empty; give a seed, or leave {_SEEDS} out."))
    return tuple(seeds)
