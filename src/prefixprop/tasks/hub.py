"""Data sets of the Hugging Face hub, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from prefixprop.optional_packages import import_optional
from prefixprop.tasks.labelled_rows import Columns
from prefixprop.tasks.rows import Row

# What the hub's data sets call the splits of this package, the usual name first.
_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "valid", "val"), "test": ("test",)}
_SECRET = -1  # how the hub marks the labels of a benchmark's secret test


@dataclass(frozen=True)
class HubDataset:
    """A data set of the hub: the rows of its splits, the columns to read, and what to tell the user about it."""

    splits: dict[str, Iterator[Row]]
    columns: Columns
    remarks: tuple[str, ...] = ()


def load_hub_dataset(name: str, config: str | None, columns: Columns, instead: str) -> HubDataset:
    """Load a data set of the hub, or from the cache of an earlier download; `instead` says what to do if that fails.

    Numbers that the hub knows the names of become labels with names. A test whose labels are kept secret is left out.
    """
    datasets = import_optional("datasets", "Data sets of the hub")
    full_name = name if config is None else f"{name} ({config})"
    try:
        loaded = datasets.load_dataset(name, config)
    except Exception as error:  # the library passes on whatever the network, the hub and the data raise
        reason = str(error).strip().splitlines() or [""]
        raise ConnectionError(
            f"The data set {full_name} cannot be loaded from the hub ({type(error).__name__}: {reason[0]}). Check "
            f"its name and the network, or {instead}."
        ) from error

    splits: dict[str, Iterator[Row]] = {}
    remarks: tuple[str, ...] = ()
    for split_name, hub_names in _SPLITS.items():
        hub_name = next((hub_name for hub_name in hub_names if hub_name in loaded), None)
        if hub_name is None:
            continue
        table = loaded[hub_name]
        feature = table.features.get(columns.label)
        if isinstance(feature, datasets.ClassLabel):
            if split_name == "test" and set(table[columns.label]) == {_SECRET}:
                remarks += (f"the labels of the test of {full_name} are secret: there is no test",)
                continue
            columns = replace(columns, label_names=tuple(feature.names))
        splits[split_name] = _rows(table, f"{full_name}, {hub_name}")
    if "train" not in splits:
        raise ValueError(f"The data set {full_name} has no split 'train'; its splits are {', '.join(loaded)}.")
    return HubDataset(splits, columns, remarks)


def _rows(table: Any, place: str) -> Iterator[Row]:
    for number, record in enumerate(table, start=1):
        yield Row(f"{place}, row {number}", record)
