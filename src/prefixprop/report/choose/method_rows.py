"""Which runs make a row of a table, and what the row is called: the model, the method, and settings of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefixprop.runs.run import DECISIVE_SETTINGS, Run
from prefixprop.settings.resolve import resolve
from prefixprop.settings.run_settings import SETTINGS, RunSettings

# These are searched before the seeds are run (Section 4 and Appendix A of the paper), so they do not make another
# method.
SEARCHED = ("learning_rate", "alpha")
_SHOWN_ANYWAY = ("task", "hub_dataset", "hub_config", "model", "method", "kernel", "seed")
# How a run was judged: on dev or on a fold of train, and at its best or its last epoch.
_PROTOCOL = ("fold", "folds", "keep")
_FIXED = tuple(name for name in DECISIVE_SETTINGS if name not in (*SEARCHED, *_SHOWN_ANYWAY, *_PROTOCOL))


@dataclass(frozen=True)
class MethodRow:
    """Runs that differ in nothing but the seed, the fold and the searched values.

    Attributes:
        model: The name of the model.
        method: The method, with its kernel.
        own: Settings that are not the defaults, where another row of the method has them otherwise.
        runs: The runs.
    """

    model: str
    method: str
    own: tuple[tuple[str, Any], ...]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return ", ".join([self.method, *(f"{name.replace('_', ' ')} {value}" for name, value in self.own)])


def method_rows(runs: Sequence[Run]) -> list[MethodRow]:
    """The rows of these runs, by model and method; a method has several where other settings differ too."""
    models = _model_names(runs)
    by_method: dict[tuple[str, str], dict[tuple[Any, ...], list[Run]]] = {}
    for run in runs:
        shown = models[run.settings.model], _method_name(run.settings)
        by_method.setdefault(shown, {}).setdefault(_fixed_values(run), []).append(run)
    rows = []
    for (model, method), by_settings in sorted(by_method.items()):
        columns = zip(_FIXED, zip(*by_settings, strict=True), strict=True)
        differing = [name for name, values in columns if any(value != values[0] for value in values)]
        longest = max(_positions(together[0].settings) for together in by_settings.values())
        for together in by_settings.values():
            own = _own_settings(together[0].settings, differing, longest)
            rows.append(MethodRow(model, method, own, tuple(together)))
    return rows


def row_key(run: Run) -> Any:
    """What the runs of a row have in common with those on folds that chose its values; their documents are others."""
    settings = run.settings
    return data_key(run), settings.model, _method_name(settings), settings.keep, _fixed_values(run)


def data_key(run: Run) -> Any:
    """What runs on the same data have in common, whichever of its documents they were judged on."""
    settings = run.settings
    return settings.data_name, settings.hub_config, run.names_of_files, run.fingerprint_of_files, run.labels


def searched_values(settings: RunSettings) -> tuple[float | None, float | None]:
    """The learning rate, and alpha; without a kernel there is none, whatever the settings say."""
    return settings.learning_rate, settings.alpha if settings.kernel else None


def _fixed_values(run: Run) -> tuple[Any, ...]:
    return tuple(getattr(run.settings, name) for name in _FIXED)


def _own_settings(settings: RunSettings, differing: Sequence[str], longest: int) -> tuple[tuple[str, Any], ...]:
    """Those of the differing settings that are not the defaults; two rows never have the same.

    How much of a document is read has no default but the model's, which runs do not record: it is a row's own where
    another row takes more positions.
    """
    values = {name: getattr(settings, name) for name in differing}
    own = {name: value for name, value in values.items() if value != _default(settings, name)}
    if _positions(settings) == longest:
        own.pop("max_length", None)
    return tuple(own.items())


def _positions(settings: RunSettings) -> int:
    """Positions of the model that a document can take; layout `reference` gives some to the prefix."""
    reserved = settings.num_virtual_tokens if settings.is_prefix_method and settings.layout == "reference" else 0
    return (settings.max_length or 0) + (reserved or 0)


def _default(settings: RunSettings, name: str) -> Any:
    """What the setting would be if it had not been given; that may depend on the task and on other settings."""
    untouched: dict[str, Any] = {name: SETTINGS[name].default}
    return getattr(resolve(replace(settings, **untouched)), name)


def _method_name(settings: RunSettings) -> str:
    if not (settings.is_prefix_method and settings.kernel):
        return settings.method_row.name
    mode = "" if settings.alpha_mode == "fixed" else f", alpha per {settings.alpha_mode}"
    return f"{settings.method_row.name}, {settings.kernel} kernel{mode}"


def _model_names(runs: Sequence[Run]) -> dict[str, str]:
    """Models without the folders they lie in, unless only these tell them apart."""
    models = {run.settings.model for run in runs}
    short = {model: model if not Path(model).is_absolute() else Path(model).name for model in models}
    return {model: name if list(short.values()).count(name) == 1 else model for model, name in short.items()}
