"""Archives: finished runs without their weights, in two files that are small enough to keep and to publish.

| file | what it is |
| --- | --- |
| `runs.jsonl.gz` | a line for each run: its name, settings, metrics, environment, history and labels |
| `predictions.npz` | logits in single precision, the documents they belong to, and the lengths of the training set |

`prefixprop report` makes the same tables from an archive, and `prefixprop sweep` counts its runs as finished. A run
that only served a search, on a fold or at values that its sweep did not choose, has no predictions and no lengths
here: reports need them for results only. The folder of a task's data and the command that trained are left out.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.atomic_files import replacing_file, write_text
from prefixprop.data.rows import iterate_json_lines
from prefixprop.evaluate import PredictionSet
from prefixprop.runs.directory import ARCHIVE_TABLE
from prefixprop.runs.find import SPLITS, Run
from prefixprop.settings.resolve import override, resolve
from prefixprop.settings.run_settings import RunSettings

PREDICTIONS = "predictions.npz"
_ARCHIVE_AGAIN = "archive the runs again"

Arrays = dict[str, NDArray[Any]]


def archive_runs(runs: Sequence[Run], folder: str | Path) -> None:
    """Write an archive of these runs into a folder that has none yet; the runs themselves are only read.

    >>> archive_runs(find_runs(["runs/hyperpartisan"]).runs, "results/hyperpartisan")
    """
    folder = Path(folder)
    _check(runs, folder)
    arrays: Arrays = {}
    lines = [_line(run, arrays) for run in sorted(runs, key=lambda run: run.path.name)]
    folder.mkdir(parents=True, exist_ok=True)
    # The table comes last: it refers to the predictions, and makes the folder an archive.
    with replacing_file(folder / PREDICTIONS) as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    write_text(folder / ARCHIVE_TABLE, text)


def read_archive(folder: Path) -> dict[str, Run]:
    """The runs of an archive by name; empty if the folder has no archive, `ValueError` if it is damaged."""
    table = folder / ARCHIVE_TABLE
    runs: dict[str, Run] = {}
    for number, line in iterate_json_lines(table) if table.is_file() else ():
        try:
            run = _run(line, folder)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{table}:{number}: this is not a run ({error!r}); {_ARCHIVE_AGAIN}.") from error
        runs[run.path.name] = run
    return runs


def _check(runs: Sequence[Run], folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file; give a folder.")
    if (folder / ARCHIVE_TABLE).exists():
        raise ValueError(
            f"--output {folder} already has an archive; choose another folder. To pack its runs again together "
            "with others, give the archive as a RUN."
        )
    if not runs:
        raise ValueError("There are no finished runs to archive.")
    name, count = Counter(run.path.name for run in runs).most_common(1)[0]
    if count > 1:
        places = ", ".join(str(run.path.parent) for run in runs if run.path.name == name)
        raise ValueError(f"Runs in {places} have the same name, {name}; archive these folders separately.")


def _line(run: Run, arrays: Arrays) -> dict[str, Any]:
    """The line of a run in the table; its predictions and lengths go into `arrays`."""
    line: dict[str, Any] = {
        "name": run.path.name,
        # Whoever reads an archive has neither these folders nor these files.
        "settings": asdict(replace(run.settings, data_dir=None)),
        "metrics": run.metrics,
        "environment": {name: value for name, value in run.environment.items() if name != "command"},
        "history": run.history,
        "labels": run.labels,
        "search_only": run.search_only,
        "predictions": {},
        "lengths": None,
    }
    if run.search_only or run.settings.fold is not None:
        return line
    for split in filter(run.has_predictions, SPLITS):
        predictions = run.predictions(split)
        logits = _add(arrays, predictions.logits.astype(np.float32))
        line["predictions"][split] = {"documents": _add(arrays, _documents(predictions)), "logits": logits}
    return line | {"lengths": _add(arrays, np.array(run.lengths, dtype=np.int32))}


def _run(line: dict[str, Any], folder: Path) -> Run:
    name, labels, lengths = line["name"], line["labels"], line["lengths"]
    arrays = folder / PREDICTIONS
    return Run(
        path=folder / name,
        settings=resolve(override(RunSettings(), line["settings"])),
        metrics=line["metrics"],
        environment=line["environment"],
        history=tuple(line["history"]),
        labels=None if labels is None else tuple(labels),
        search_only=line["search_only"],
        read_predictions={
            split: cache(partial(_read_predictions, arrays, **keys)) for split, keys in line["predictions"].items()
        },
        read_lengths=tuple if lengths is None else partial(_read_lengths, arrays, lengths),
    )


def _documents(predictions: PredictionSet) -> NDArray[np.uint8]:
    """Everything but the logits, as the bytes of a JSON object."""
    about = {
        "ids": predictions.ids,
        "labels": predictions.labels,
        "label_names": predictions.label_names,
        "candidates": predictions.candidates,
        "decisions": None if predictions.decisions is None else predictions.decisions.astype(int).tolist(),
    }
    return np.frombuffer(json.dumps(about, separators=(",", ":")).encode(), dtype=np.uint8)


def _add(arrays: Arrays, array: NDArray[Any]) -> str:
    """Store an array under a name made from its content, so once for all runs that share it."""
    key = hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()[:16]
    arrays[key] = array
    return key


def _read_predictions(path: Path, documents: str, logits: str) -> PredictionSet:
    about = json.loads(_array(path, documents).tobytes())
    names, candidates, decisions = about["label_names"], about["candidates"], about.get("decisions")
    return PredictionSet(
        tuple(about["ids"]),
        tuple(tuple(label) if isinstance(label, list) else label for label in about["labels"]),
        _array(path, logits).astype(np.float64),
        label_names=None if names is None else tuple(names),
        candidates=None if candidates is None else tuple(map(tuple, candidates)),
        decisions=None if decisions is None else np.array(decisions, dtype=bool),
    )


def _read_lengths(path: Path, key: str) -> tuple[int, ...]:
    return tuple(_array(path, key).tolist())


def _array(path: Path, key: str) -> NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found: NDArray[Any] = arrays[key]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: {key} is missing or damaged ({error}); {_ARCHIVE_AGAIN}.") from error
    return found
