"""A sweep as YAML: settings, of which any may be a list of values, variants that change some, and what is searched.

```yaml
task: [hyperpartisan, newsgroups]   # any setting; a list is an axis of the grid
seed: [1, 2, 3, 4, 5]
search: [learning_rate, alpha]      # chosen on dev in this order, before the seeds; other axes are compared
variants:                           # each with its own settings, which override those above
  prefix-propagation: {learning_rate: [1e-2, 5e-3]}
  fine-tuning: {method: fine-tuning, learning_rate: [3e-5, 5e-5]}
cross_validation: {folds: 5}        # choose by folds of train instead; see CrossValidation
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from prefixprop.data.registry import TASKS
from prefixprop.settings.declaration import TEXTS, SettingsError, as_declared, close_match, problem_of
from prefixprop.settings.recipe import (
    YamlEntry,
    YamlValue,
    override,
    read_entries,
    setting_name,
    unknown_setting,
)
from prefixprop.settings.resolve import check_settings, unused_settings, with_defaults
from prefixprop.settings.run_settings import DATA, SETTINGS, RunSettings
from prefixprop.sweep.cells import Axis, Cell, Judge, run_name

CROSS_VALIDATION = "cross_validation"
_FOLDS, _SEEDS = "folds", "seeds"


@dataclass(frozen=True)
class CrossValidation:
    """How candidates are judged: by every fold with every seed; without seeds, with the cell's first seed."""

    folds: int
    seeds: tuple[int, ...] = ()

    def judges(self, first_seed: int) -> tuple[Judge, ...]:
        return tuple(
            {"seed": seed, "folds": self.folds, "fold": fold}
            for seed in self.seeds or (first_seed,)
            for fold in range(self.folds)
        )


def read_cross_validation(entry: YamlEntry, report: Callable[[int, str], None]) -> CrossValidation | None:
    """Read the entry of a sweep's file; None if it has problems, which `report` gets, each with its line."""
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
            problem = (
                "needs a whole number."
                if part.value.plain is None
                else problem_of(RunSettings, _FOLDS, part.value.plain)
            )
            if problem is not None:
                problems.append((part.line, f"{_FOLDS}: {problem}"))
    if _FOLDS not in values and not problems:
        problems.append((entry.line, "say how many folds there are, such as {folds: 5}."))
    for line, problem in problems:
        report(line, f"{CROSS_VALIDATION}: {problem}")
    return None if problems else CrossValidation(**values)


def _seeds(value: YamlValue, problems: list[tuple[int, str]]) -> tuple[int, ...]:
    seeds: list[int] = []
    for item in (value,) if value.items is None else value.items:
        problem = problem_of(RunSettings, "seed", item.plain)
        if problem is None and item.plain in seeds:
            problem = f"{item.plain} is listed twice; keep one."
        if problem is not None:
            problems.append((item.line, f"{_SEEDS}: {problem}"))
        seeds.append(item.plain)
    if not seeds:
        problems.append((value.line, f"{_SEEDS}: the list is empty; give a seed, or leave {_SEEDS} out."))
    return tuple(seeds)


SEARCH, VARIANTS = "search", "variants"
_SPECIAL = (SEARCH, VARIANTS, CROSS_VALIDATION)


@dataclass(frozen=True)
class SweepPlan:
    """Everything that a sweep compares."""

    name: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()  # what a user should know: settings that no run uses

    @property
    def size(self) -> int:
        """How many runs the sweep needs, if none fails."""
        return sum(cell.size for cell in self.cells)


@dataclass(frozen=True)
class _Variant:
    name: str | None
    line: int
    axes: dict[str, Axis]


def read_plan(path: str | Path, data_dirs: Mapping[str, str] | None = None) -> SweepPlan:
    """Read a sweep; `SettingsError` has all of its problems, each with `file:line`.

    `data_dirs` has the folders of tasks whose data is local; paths do not belong in a file that others use too.

    >>> read_plan("recipes/sweeps/table2.yaml").size
    68
    """
    reader = _Reader(Path(path))
    cells = reader.cells(data_dirs or {})
    if reader.problems:
        raise SettingsError(list(dict.fromkeys(reader.problems)))
    return SweepPlan(Path(path).stem, cells, tuple(reader.notes))


class _Reader:
    """Collects problems on the way, so that a user sees all of them together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._lines: dict[str, int] = {}  # where a setting has its first value that is not the default
        self._used: set[str] = set()  # settings that change something in some cell

    def cells(self, data_dirs: Mapping[str, str]) -> tuple[Cell, ...]:
        entries = read_entries(self.path)
        if not entries:
            self.problems.append(f"{self.path}: the file is empty, so there is nothing to run; name at least a task.")
        special = {entry.key: entry for entry in entries if entry.key in _SPECIAL}
        shared = self._axes(entries, allowed=_SPECIAL)
        variants = self._variants(special.get(VARIANTS))
        merged = [replace(variant, axes={**shared, **variant.axes}) for variant in variants]
        searched = self._searched(special.get(SEARCH), merged)
        validation = self._cross_validation(special.get(CROSS_VALIDATION), SEARCH in special, merged)
        for task in data_dirs:
            if task not in TASKS:
                self.problems.append(f"--data-dir: {task!r} is no task; choose one of {', '.join(TASKS)}.")
        if self.problems:
            # Values that make no sense one by one need not be checked together.
            return ()
        cells = tuple(cell for variant in merged for cell in self._cells_of(variant, searched, data_dirs))
        self._check_apart(cells)
        self._note_unused(cells)
        if validation is None:
            return cells
        return tuple(replace(cell, judges=validation.judges(cell.seeds[0])) for cell in cells)

    def _check_apart(self, cells: Sequence[Cell]) -> None:
        """Refuse cells that differ only in settings that do not change the outcome: they would be the same runs."""
        known: dict[Any, Cell] = {}
        for cell in cells:
            same = known.setdefault((run_name(cell.settings), cell.searched), cell)
            if same.settings != cell.settings:
                self.problems.append(
                    f"{self.path}: {same.name!r} and {cell.name!r} would be the same runs: they differ only in how "
                    "runs are computed, not in their results; keep one of them, or give each its own file and "
                    "--runs-dir."
                )

    def _note_unused(self, cells: Sequence[Cell]) -> None:
        """A setting may be idle in some cells; one that is idle in all of them gets a note."""
        owners = {name: owner for cell in cells for name, owner in unused_settings(cell.settings).items()}
        for name, line in self._lines.items():
            if name in owners and name not in self._used:
                self.notes.append(f"{self.path}:{line}: {name} belongs to {owners[name]}, which no run here has.")

    def _problem(self, line: int, text: str) -> None:
        self.problems.append(f"{self.path}:{line}: {text}")

    def _axes(self, entries: tuple[YamlEntry, ...], allowed: tuple[str, ...] = ()) -> dict[str, Axis]:
        axes: dict[str, Axis] = {}
        seen: set[str] = set()
        for entry in entries:
            name = setting_name(entry.key)
            known = name or (entry.key if entry.key in allowed else None)
            if known is None:
                self._problem(entry.line, unknown_setting(entry.key, *allowed))
            elif known in seen:
                self._problem(entry.line, f"{entry.key!r} is set twice; keep one of the lines.")
            elif name is not None:
                axes[name] = self._axis(name, entry)
                if axes[name].values != (SETTINGS[name].default,):
                    self._lines.setdefault(name, entry.line)
            if known is not None:
                seen.add(known)
        return axes

    def _axis(self, name: str, entry: YamlEntry) -> Axis:
        items = _axis_items(name, entry.value)
        if not items:
            self._problem(entry.line, f"{entry.key}: the list is empty, so there is nothing to run; give a value.")
        if len(items) > 1 and SETTINGS[name].resumable:
            self._problem(
                entry.line, f"{entry.key}: changes how runs are computed, not their results; give one value."
            )
        values: list[Any] = []
        for item in items:
            problem = problem_of(RunSettings, name, item.plain)
            value = item.plain if problem else as_declared(RunSettings, name, item.plain)
            if problem is not None:
                self._problem(item.line, f"{entry.key}: {problem}")
            elif value in values:
                self._problem(item.line, f"{entry.key}: {value!r} is listed twice; keep one.")
            values.append(value)
        return Axis(name, tuple(values))

    def _variants(self, entry: YamlEntry | None) -> list[_Variant]:
        if entry is None:
            return [_Variant(None, 1, {})]
        if not entry.value.entries:
            self._problem(entry.line, f"{VARIANTS}: expected a name and settings for each variant.")
            return []
        variants: list[_Variant] = []
        for variant in entry.value.entries:
            name = str(variant.key)
            if name in [known.name for known in variants]:
                self._problem(variant.line, f"the variant {name!r} is listed twice; give it another name.")
            if variant.value.entries is None and variant.value.plain is not None:
                self._problem(variant.line, f"{name}: expected settings, got {variant.value.plain!r}.")
            variants.append(_Variant(name, variant.line, self._axes(variant.value.entries or ())))
        return variants

    def _searched(self, entry: YamlEntry | None, variants: list[_Variant]) -> tuple[str, ...]:
        if entry is None:
            return ()
        names: list[str] = []
        for item in entry.value.items or (entry.value,):
            name = setting_name(item.plain)
            if name is None:
                self._problem(item.line, f"{SEARCH}: {unknown_setting(item.plain)}")
            elif name == "seed" or SETTINGS[name].group == DATA:
                self._problem(item.line, f"{SEARCH}: {item.plain} cannot be chosen on dev.")
            elif name in names:
                self._problem(item.line, f"{SEARCH}: {item.plain} is listed twice; keep one.")
            elif not any(name in variant.axes for variant in variants):
                self._problem(item.line, f"{SEARCH}: {item.plain} has no values to choose from; give it a list.")
            else:
                names.append(name)
        return tuple(names)

    def _cross_validation(
        self, entry: YamlEntry | None, has_search: bool, variants: list[_Variant]
    ) -> CrossValidation | None:
        if entry is None:
            return None
        if not has_search:
            self._problem(entry.line, f"{CROSS_VALIDATION}: without {SEARCH} there is nothing to choose; add it.")
        for name in ("folds", "fold"):
            if any(name in variant.axes for variant in variants):
                self._problem(entry.line, f"{CROSS_VALIDATION}: sets {name} of its runs itself; leave {name!r} out.")
        return read_cross_validation(entry, self._problem)

    def _cells_of(self, variant: _Variant, searched: tuple[str, ...], data_dirs: Mapping[str, str]) -> Iterator[Cell]:
        axes = {name: variant.axes[name] for name in SETTINGS if name in variant.axes}
        seeds = axes.pop("seed", Axis("seed", (RunSettings().seed,))).values
        compared = [axis for name, axis in axes.items() if name not in searched]
        known: set[RunSettings] = set()
        for values in product(*(axis.values for axis in compared)):
            chosen = {axis.name: value for axis, value in zip(compared, values, strict=True)}
            settings = override(RunSettings(), {**chosen, "seed": seeds[0]})
            idle = _always_idle(settings, [axes[name] for name in searched if name in axes])
            settings = with_defaults(settings, idle)
            self._used |= set(axes) - idle
            if settings.task is not None and settings.task in data_dirs:
                settings = replace(settings, data_dir=data_dirs[settings.task])
            own = tuple(axes[name] for name in searched if name in axes and name not in idle)
            settings = override(settings, {axis.name: axis.values[0] for axis in own})
            if settings in known:  # they differ only in idle settings
                continue
            known.add(settings)
            shown = [axis.name for axis in compared if len(axis.values) > 1 and axis.name not in idle]
            self._check(variant.line, settings, own)
            yield Cell(_cell_name(variant, {name: chosen[name] for name in shown}, settings), settings, own, seeds)

    def _check(self, line: int, settings: RunSettings, searched: tuple[Axis, ...]) -> None:
        for axis in searched or (Axis("seed", (settings.seed,)),):
            for value in axis.values:
                try:
                    check_settings(replace(settings, **{axis.name: value}))
                except SettingsError as error:
                    for problem in error.problems:
                        self._problem(line, problem)


def _always_idle(settings: RunSettings, searched: list[Axis]) -> set[str]:
    """The settings that are idle for all of the searched values: an alpha, if no kernel is among them."""
    possible = [
        override(settings, dict(zip((axis.name for axis in searched), values, strict=True)))
        for values in product(*(axis.values for axis in searched))
    ]
    return set.intersection(*(set(unused_settings(chosen)) for chosen in possible))


def _axis_items(name: str, value: YamlValue) -> tuple[YamlValue, ...]:
    """The values of an axis; for a setting that is itself a list, only a list of lists is an axis."""
    if value.items is None:
        return (value,)
    is_list_itself = SETTINGS[name].kind == TEXTS
    if is_list_itself and not (value.items and all(item.items is not None for item in value.items)):
        return (value,)
    return value.items


def _cell_name(variant: _Variant, values: Mapping[str, Any], settings: RunSettings) -> str:
    """The task, the variant, and the values of axes by which cells differ."""
    rest = [f"{name}={value}" for name, value in values.items() if name not in ("task", "method")]
    return " ".join([settings.data_name, variant.name or settings.method_row.name, *_method(variant, values), *rest])


def _method(variant: _Variant, values: Mapping[str, Any]) -> list[str]:
    return [values["method"]] if variant.name and "method" in values else []
