"""Tables of measured speed, from the files that `prefixprop bench … --json FILE` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefixprop.report.tables.paper import INFERENCE_SECONDS
from prefixprop.report.tables.table import (
    ABSENT,
    Cell,
    Column,
    Table,
    plain_cell,
    range_cell,
    setting_cell,
    text_column,
)
from prefixprop.runs.run import as_number

SPEED = "Speed"
_PAPER_PERCENT = {name.lower(): percent for name, _, percent in INFERENCE_SECONDS}
_PAPER_NOTE = (
    "The column marked (paper) is inference on a GTX 1080 Ti with Hugging Face's attention, Longformer-base and "
    "4,096 tokens; it was not measured here."
)


def bench_tables(paths: Sequence[str | Path], with_paper: bool = False) -> list[Table]:
    """A table for each file; `ValueError` names a file that is not a benchmark's."""
    return [_table(Path(path), number, with_paper) for number, path in enumerate(paths, start=1)]


def _table(path: Path, number: int, with_paper: bool) -> Table:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        kind = record["benchmark"]
        if kind == "runtime":
            return _runtime_table(record, f"bench-{number}-{kind}", with_paper)
        if kind == "attention":
            return _attention_table(record, f"bench-{number}-{kind}")
        problem = f"there is no benchmark {kind!r}"
    except KeyError as error:
        problem = f"it lacks {error}"
    except (TypeError, AttributeError):
        problem = "its parts are of other kinds"
    except ValueError as error:
        problem = f"broken JSON: {error}"
    again = "`prefixprop bench runtime --json FILE` or `prefixprop bench attention --json FILE`"
    raise ValueError(f"{path} is not what a benchmark wrote: {problem}. Write it again with {again}.")


def _runtime_table(record: dict[str, Any], name: str, with_paper: bool) -> Table:
    """The paper's run-time table (appendix, Runtime Performance), as it was measured."""
    is_inference, results = record["pass"] == "inference", record["results"]
    changes, intervals = zip(*map(_relative, results), strict=True) if results else ((), ())
    columns = [
        text_column("Method", [result["method"] for result in results]),
        Column("Time, ms", [_milliseconds(result) for result in results]),
        Column("More than no PEFT, %", changes),
        Column("95 % interval", intervals),
        Column("Peak memory, GiB", [_memory(result) for result in results]),
    ]
    notes = [
        f"Median of {record['repeats']} batches of {record['batch']} × {record['length']:,} tokens, j = "
        f"{record['prefix']}; {_circumstances(record)}. The interval is a bootstrap over the rounds."
    ]
    if with_paper and is_inference:
        theirs = [_PAPER_PERCENT.get(result["method"].lower()) for result in results]
        cells = [plain_cell(percent, 1, sign="+") for percent in theirs]
        columns.append(Column("More than no PEFT, %", cells, from_paper=True))
        notes.append(_PAPER_NOTE)
    what = "inference" if is_inference else "training step"
    title = f"Run time, {what}: {record['device']}"
    return Table(name, title, columns, notes, section=SPEED)


def _attention_table(record: dict[str, Any], name: str) -> Table:
    results = record["results"]
    methods = [result.get("method") or "" for result in results]  # files of version 0.1 have none, nor a model
    theirs, ours = [result["hugging_face"] for result in results], [result["prefixprop"] for result in results]
    columns = [
        text_column("Documents × tokens", [f"{result['batch']} × {result['length']:,}" for result in results]),
        Column("Global tokens", [plain_cell(as_number(result["global"]), 0) for result in results]),
        Column("Dropout", [setting_cell(as_number(result["dropout"])) for result in results]),
        *([text_column("Trained", methods)] if any(methods) else []),
        text_column("Pass", [result["pass"] for result in results]),
        Column("Hugging Face, ms", [_milliseconds(timing) for timing in theirs]),
        Column("prefixprop, ms", [_milliseconds(timing) for timing in ours]),
        Column("Times as fast", [plain_cell(as_number(result["ratio"]), 1) for result in results]),
        Column("Hugging Face, GiB", [_memory(timing) for timing in theirs]),
        Column("prefixprop, GiB", [_memory(timing) for timing in ours]),
    ]
    note = f"Median of {record['repeats']} measurements, and peak memory; {_circumstances(record)}."
    title = f"Attention of {record.get('model', 'longformer')}: {record['device']}"
    return Table(name, title, columns, (note,), section=SPEED)


def _relative(result: dict[str, Any]) -> tuple[Cell, Cell]:
    """How much more time than without an adapter, and its interval, in percent."""
    relative, low, high = (as_number(result[name]) for name in ("relative", "low", "high"))
    if relative is None or low is None or high is None:
        return ABSENT, ABSENT
    change, lowest, highest = (100 * (value - 1) for value in (relative, low, high))
    return plain_cell(change, 1, sign="+"), range_cell(lowest, highest, decimals=1, sign="+")


def _milliseconds(timing: dict[str, Any] | None) -> Cell:
    if timing is None:
        return ABSENT
    if timing["out_of_memory"]:
        return Cell("out of memory")
    seconds = as_number(timing["median_s"])
    return ABSENT if seconds is None else plain_cell(1000 * seconds, 1)


def _memory(timing: dict[str, Any] | None) -> Cell:
    return ABSENT if timing is None else plain_cell(as_number(timing["peak_gib"]), 1)


def _circumstances(record: dict[str, Any]) -> str:
    return (
        f"{record['size']} size, {record['dtype']}, backend {record['backend']}, torch {record['torch']}, "
        f"transformers {record['transformers']}"
    )
