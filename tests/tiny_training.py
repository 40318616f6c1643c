"""Tiny runs: a random model in a folder, invented documents in files, settings that train in a second."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from prefixprop.data import Task, load_data, select_documents
from prefixprop.progress import Progress
from prefixprop.train import RunSettings

from tiny import tiny_model
from tiny_questions import WORDS, invented, sentence, tiny_tokenizer

LABELS = ("law", "art")
TELLING = {"law": WORDS[0], "art": WORDS[1]}


class Notes(Progress):
    """Keeps what a run tells its user."""

    def __init__(self, notes: list[str] | None = None) -> None:
        self.notes = [] if notes is None else notes

    def note(self, text: str) -> None:
        self.notes.append(text)


def save_tiny_model(folder: Path, family: str = "longformer") -> Path:
    """A random model without a head that is of use, with its tokenizer, as a folder of the hub."""
    tiny_model(family, num_labels=2).save_pretrained(folder)
    tiny_tokenizer(special_tokens=False).save_pretrained(folder)
    return folder


def write_documents(path: Path, count: int, seed: int, longest: int = 30) -> Path:
    """Documents of 5 to 30 words, or more, a third of which tell the label."""
    generator = random.Random(seed)
    lines = []
    for number in range(count):
        label = LABELS[number % 2]
        words = sentence(generator, generator.randint(5, longest)).split()
        words = [TELLING[label] if generator.random() < 0.3 else word for word in words]
        lines.append(json.dumps({"id": f"{path.stem}-{number}", "text": " ".join(words), "label": label}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def rewrite(path: str | Path, change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> None:
    """Change every document of a file; `change` gets its number and its fields."""
    rows = [change(number, json.loads(line)) for number, line in enumerate(Path(path).read_text().splitlines())]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_questions(folder: Path) -> Path:
    """Twelve questions of train and eight of dev, as QAngaroo has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count, seed in (("train", 12, 1), ("dev", 8, 2)):
        records = [
            {
                "id": question.id,
                "query": question.query,
                "candidates": list(dict.fromkeys(question.candidates)),
                "supports": list(question.supports),
                "answer": question.candidates[question.answer],
            }
            for question in invented(count, seed)
        ]
        (folder / f"{split}.json").write_text(json.dumps(records), encoding="utf-8")
    return folder


def load_run_task(settings: RunSettings) -> Task:
    """The documents that a run reads."""
    return select_documents(load_data(**settings.source), **settings.selection)


def tiny_settings(folder: Path, family: str = "longformer", **changes: Any) -> RunSettings:
    """Settings of a run on 24 train, 10 dev and 8 test documents, all of which are written to `folder`.

    There is a checkpoint after each of the three epochs of three steps.
    """
    model = folder / family
    if not model.is_dir():
        save_tiny_model(model, family)
    files = {}
    for split, count, seed in (("train", 24, 1), ("dev", 10, 2), ("test", 8, 3)):
        file = folder / f"{split}.jsonl"
        files[f"{split}_files"] = (str(file if file.exists() else write_documents(file, count, seed)),)
    settings = RunSettings(
        **files,
        model=str(model),
        id_column="id",
        method="prefix-propagation",
        num_virtual_tokens=2,
        epochs=3,
        batch_size=8,
        device_batch_size=4,
        learning_rate=1e-2,
        checkpoint_seconds=0.0,
    )
    return replace(settings, **changes)


def write_plan(folder: Path, **entries: Any) -> Path:
    """A sweep of tiny runs, of one epoch unless `entries` say otherwise, as `folder`/plan.yaml."""
    settings = asdict(tiny_settings(folder, epochs=1))
    needed = ("train_files", "dev_files", "test_files", "model", "id_column", "num_virtual_tokens")
    needed += ("epochs", "batch_size", "device_batch_size", "checkpoint_seconds")
    plain = {name: list(value) if isinstance(value := settings[name], tuple) else value for name in needed}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plain | entries, sort_keys=False), encoding="utf-8")
    return path


def comparable(metrics: dict[str, Any]) -> dict[str, Any]:
    """All of the metrics that two runs of the same settings must share to the last bit."""
    return {name: value for name, value in metrics.items() if name != "seconds"}


def history(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of `history.jsonl`, one per epoch."""
    return [json.loads(line) for line in (run_dir / "history.jsonl").read_text().splitlines()]
