"""The plan of a sweep, read from YAML: any setting, of which lists are axes, and some keys of its own.

```yaml
task: [hyperpartisan, newsgroups]   # any setting; a list is an axis of the grid
seed: [1, 2, 3, 4, 5]
search: [learning_rate, alpha]      # chosen on the dev set in this order, before the seeds; other axes are compared
variants:                           # each with its own settings, which override those above
  prefix-propagation: {learning_rate: [1e-2, 5e-3]}
  fine-tuning: {method: fine-tuning, learning_rate: [3e-5, 5e-5]}
cross_validation: {folds: 5, seeds: [1, 2]}  # choose by folds of the training set; seeds: by default the first
```
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from prefixprop.data.tasks import TASKS
from prefixprop.settings.declaration import TEXTS, SettingsError, as_declared, problem_of
from prefixprop.settings.resolve import (
    YamlEntry,
    YamlValue,
    check_settings,
    override,
    read_entries,
    setting_name,
    unknown_setting,
    unused_settings,
    with_defaults,
)
from prefixprop.settings.run_settings import DATA, SETTINGS, RunSettings
from prefixprop.sweep.sweep import Axes, Cell, SweepPlan, run_name

MOST_RUNS = 10_000
SEARCH, VARIANTS, CROSS_VALIDATION = _SPECIAL = ("search", "variants", "cross_validation")
# The settings that can be searched and decide which other settings are used.
_DECIDES_OTHERS = ("method", "kernel")


def read_plan(path: str | Path, data_dirs: Mapping[str, str] | None = None) -> SweepPlan:
    """Read a plan; `SettingsError` has all of its problems, each with `file:line`.

    `data_dirs` names local copies of tasks' data: paths do not belong in a file that others use too.

    >>> read_plan("recipes/sweeps/table2.yaml").size
    68
    """
    reader = _Reader(Path(path))
    cells = reader.cells(data_dirs or {})
    if reader.problems:
        raise SettingsError(list(dict.fromkeys(reader.problems)))
    return SweepPlan(Path(path).stem, cells)


class _Variant(NamedTuple):
    name: str | None
    line: int
    axes: Axes


class _Reader:
    """Reads a file and collects its problems, so that a user sees all of them at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def cells(self, data_dirs: Mapping[str, str]) -> tuple[Cell, ...]:
        entries = read_entries(self.path)
        if not entries:
            self.problems.append(f"{self.path}: the file is empty, so there is nothing to run; name at least a task.")
        special = {entry.key: entry for entry in entries if entry.key in _SPECIAL}
        shared = self._axes(entries, allowed=_SPECIAL)
        variants = [variant._replace(axes=shared | variant.axes) for variant in self._variants(special.get(VARIANTS))]
        searched = self._searched(special.get(SEARCH), variants)
        folds, judging_seeds = self._cross_validation(special, variants)
        for task in data_dirs:
            if task not in TASKS:
                self.problems.append(f"--data-dir: there is no task {task!r}; choose one of {', '.join(TASKS)}.")
        if not self.problems:  # values that are wrong one by one need not be checked together
            self._check_size(variants, searched, (folds or 1) * (len(judging_seeds) or 1))
        if self.problems:
            return ()
        cells = tuple(cell for variant in variants for cell in self._cells_of(variant, searched, data_dirs))
        self._check_distinct(cells)
        self._check_used(
            [name for variant in variants for name in variant.axes if len(variant.axes[name]) > 1], cells
        )
        if folds is None:
            return cells
        return tuple(_judged(cell, folds, judging_seeds or cell.seeds[:1]) for cell in cells)

    def _problem(self, line: int, text: str) -> None:
        self.problems.append(f"{self.path}:{line}: {text}")

    # --- entries of the file --------------------------------------------------------------------------------------

    def _axes(self, entries: tuple[YamlEntry, ...], allowed: tuple[str, ...] = ()) -> Axes:
        axes: Axes = {}
        seen: set[str] = set()
        for entry in entries:
            name = setting_name(entry.key)
            known = name or (entry.key if entry.key in allowed else None)
            if known is None:
                self._problem(entry.line, unknown_setting(entry.key, *allowed))
                continue
            if known in seen:
                self._problem(entry.line, f"{entry.key!r} is set twice; keep one of the lines.")
            elif name is not None:
                axes[name] = self._axis(name, entry, str(entry.key))
            seen.add(known)
        return axes

    def _axis(self, name: str, entry: YamlEntry, label: str) -> tuple[Any, ...]:
        items = _axis_items(name, entry.value)
        if not items:
            self._problem(entry.line, f"{label}: the list is empty, so there is nothing to run; give a value.")
        if len(items) > 1 and SETTINGS[name].resumable:
            self._problem(entry.line, f"{label}: changes how runs are computed, not their results; give one value.")
        values: dict[Any, None] = {}
        for item in items:
            problem = problem_of(RunSettings, name, item.plain)
            value = repr(item.plain) if problem else as_declared(RunSettings, name, item.plain)
            if problem is None and value in values:
                problem = f"{value!r} is listed twice; keep one."
            if problem is not None:
                self._problem(item.line, f"{label}: {problem}")
            else:
                values[value] = None
        return tuple(values)

    def _variants(self, entry: YamlEntry | None) -> list[_Variant]:
        if entry is None:
            return [_Variant(None, 1, {})]
        if not entry.value.entries:
            self._problem(entry.line, f"{VARIANTS}: expected a name and settings for each variant.")
        variants: dict[str, _Variant] = {}
        for variant in entry.value.entries or ():
            name = str(variant.key)
            if name in variants:
                self._problem(variant.line, f"the variant {name!r} is listed twice; give it another name.")
            if variant.value.entries is None and variant.value.plain is not None:
                self._problem(variant.line, f"{name}: expected settings, got {variant.value.plain!r}.")
            variants[name] = _Variant(name, variant.line, self._axes(variant.value.entries or ()))
        return list(variants.values())

    def _searched(self, entry: YamlEntry | None, variants: Sequence[_Variant]) -> tuple[str, ...]:
        names: list[str] = []
        for item in () if entry is None else entry.value.items or (entry.value,):
            name = setting_name(item.plain)
            if name is None:
                self._problem(item.line, f"{SEARCH}: {unknown_setting(item.plain)}")
            elif name == "seed" or SETTINGS[name].group == DATA:
                self._problem(item.line, f"{SEARCH}: {item.plain} cannot be chosen on the dev set.")
            elif name in names:
                self._problem(item.line, f"{SEARCH}: {item.plain} is listed twice; keep one.")
            elif not any(name in variant.axes for variant in variants):
                self._problem(item.line, f"{SEARCH}: {item.plain} has no values to choose from; give it a list.")
            else:
                names.append(name)
        return tuple(names)

    def _cross_validation(
        self, special: Mapping[str, YamlEntry], variants: Sequence[_Variant]
    ) -> tuple[int | None, tuple[int, ...]]:
        """The number of folds, None without cross-validation, and the seeds that every fold is run with."""
        entry = special.get(CROSS_VALIDATION)
        if entry is None:
            return None, ()
        before = len(self.problems)
        if SEARCH not in special:
            self._problem(entry.line, f"{CROSS_VALIDATION}: without {SEARCH} there is nothing to choose; add it.")
        if any(name in variant.axes for variant in variants for name in ("folds", "fold")):
            self._problem(entry.line, f"{CROSS_VALIDATION}: leave folds and fold out, it sets them for its runs.")
        axes: Axes = {}
        for part in entry.value.entries or ():
            name = {"folds": "folds", "seeds": "seed"}.get(str(part.key))
            if name is None or name in axes:
                self._problem(
                    part.line, f"{CROSS_VALIDATION}: expected folds and seeds, each once, got {part.key!r}."
                )
            else:
                axes[name] = self._axis(name, part, f"{CROSS_VALIDATION}: {part.key}")
        folds, seeds = axes.get("folds", ()), axes.get("seed", ())
        if len(folds) == 1 and folds[0] is not None:
            return folds[0], seeds
        if len(self.problems) == before:
            self._problem(entry.line, f"{CROSS_VALIDATION}: give the number of folds, such as {{folds: 5}}.")
        return None, ()

    # --- from axes to cells ---------------------------------------------------------------------------------------

    def _check_size(self, variants: Sequence[_Variant], searched: tuple[str, ...], judges: int) -> None:
        """Refuse a plan of too many runs before its cells are made; settings without an effect are counted too."""
        sizes: list[tuple[int, dict[str, int]]] = []
        for variant in variants:
            lengths = {name: len(values) for name, values in variant.axes.items() if len(values) > 1}
            choices = sum(length - 1 for name, length in lengths.items() if name in searched)
            compared = math.prod(length for name, length in lengths.items() if name not in (*searched, "seed"))
            judging = (choices + 1) * judges if choices else 0
            sizes.append((compared * (judging + lengths.get("seed", 1)), lengths))
        total = sum(runs for runs, _ in sizes)
        if total > MOST_RUNS:
            _, lengths = max(sizes, key=lambda size: size[0])
            lists = ", ".join(f"{name} ({length:,})" for name, length in lengths.items())
            self.problems.append(
                f"{self.path}: the lists multiply to {total:,} runs, and a sweep may have {MOST_RUNS:,}; shorten "
                f"lists or divide the file. Their lengths: {lists}."
            )

    def _cells_of(self, variant: _Variant, searched: tuple[str, ...], data_dirs: Mapping[str, str]) -> Iterator[Cell]:
        axes = {name: variant.axes[name] for name in SETTINGS if name in variant.axes}
        seeds = axes.pop("seed", (RunSettings().seed,))
        compared = {name: values for name, values in axes.items() if name not in searched}
        deciding = {name: axes[name] for name in _DECIDES_OTHERS if name in searched and name in axes}
        known: set[RunSettings] = set()
        for chosen in _combinations(compared):
            settings = override(RunSettings(), {**chosen, "seed": seeds[0]})
            settings = replace(settings, method=settings.method_row.name)  # documents have no say in what is compared
            # Unused for all of the searched values: alpha, if there is no kernel among them.
            possible = (override(settings, values) for values in _combinations(deciding))
            unused = set.intersection(*(set(unused_settings(one)) for one in possible))
            settings = with_defaults(settings, unused)
            own = {name: axes[name] for name in searched if name in axes and name not in unused}
            first = {name: values[0] for name, values in own.items()}
            if settings.task is not None and settings.task in data_dirs:
                first["data_dir"] = data_dirs[settings.task]
            settings = override(settings, first)
            if settings in known:  # another cell differs from it only in unused settings
                continue
            known.add(settings)
            shown = {name: chosen[name] for name in compared if len(axes[name]) > 1 and name not in unused}
            self._check(variant.line, settings, own)
            yield Cell(_cell_name(variant, shown, settings), settings, own, seeds)

    def _check(self, line: int, settings: RunSettings, searched: Axes) -> None:
        if len(settings.label_column) > 1:
            self._problem(line, "label_column: a run of a sweep has one column; compare columns as [[one], [other]].")
            return
        for name, values in (searched or {"seed": (settings.seed,)}).items():
            for value in values:
                try:
                    check_settings(override(settings, {name: value}))
                except SettingsError as error:
                    for problem in error.problems:
                        self._problem(line, problem)

    def _check_used(self, lists: Iterable[str], cells: Sequence[Cell]) -> None:
        """Refuse lists of values that change nothing in any run; a single value may be there for other methods."""
        unused = [unused_settings(cell.settings) for cell in cells]
        for name in dict.fromkeys(lists):
            if all(name in each and name not in cell.searched for each, cell in zip(unused, cells, strict=True)):
                self.problems.append(f"{self.path}: {name}: belongs to {unused[0][name]}, which no run here has.")

    def _check_distinct(self, cells: Sequence[Cell]) -> None:
        """Refuse cells that would be the same runs because they differ only in settings without an effect."""
        known: dict[Any, Cell] = {}
        for cell in cells:
            same = known.setdefault((run_name(cell.settings), tuple(cell.searched.items())), cell)
            if same.settings != cell.settings:
                self.problems.append(
                    f"{self.path}: {same.name!r} and {cell.name!r} would be the same runs: they differ only in how "
                    "runs are computed, not in their results; keep one of them."
                )


def _judged(cell: Cell, folds: int, seeds: Sequence[int]) -> Cell:
    """The cell, with its candidates judged by every fold with every seed."""
    judges = ({"seed": seed, "folds": folds, "fold": fold} for seed in seeds for fold in range(folds))
    return replace(cell, judges=tuple(judges))


def _combinations(axes: Axes) -> Iterator[dict[str, Any]]:
    return (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def _axis_items(name: str, value: YamlValue) -> tuple[YamlValue, ...]:
    """The values of an axis; for a setting that is itself a list, only a list of lists is an axis."""
    if value.items is None:
        return (value,)
    is_list_itself = SETTINGS[name].kind == TEXTS
    if is_list_itself and not (value.items and all(item.items is not None for item in value.items)):
        return (value,)
    return value.items


def _cell_name(variant: _Variant, values: Mapping[str, Any], settings: RunSettings) -> str:
    """The task, the variant or method, and the values by which cells differ."""
    method = [values["method"]] if variant.name and "method" in values else []
    rest = [f"{name}={value}" for name, value in values.items() if name not in ("task", "method")]
    return " ".join([settings.data_name, variant.name or settings.method_row.name, *method, *rest])
