"""The report on a single run: a verdict, facts, its labels, its most confident mistakes, and its settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from prefixprop.data import Document, Question, QuestionTask, fingerprint, load_data, select_documents
from prefixprop.data.tasks import SHIPPED, TASKS
from prefixprop.evaluate import PredictionSet, Trust, accuracy_interval
from prefixprop.evaluate.mixing import READERS, WORDS
from prefixprop.evaluate.predictions import label_table as label_rows
from prefixprop.report.choose import LEFT_OUT, Comparison, documents_of, method_name, stored_name
from prefixprop.report.results import ALL_METRICS, ECE, NLL, baseline_name, quality_of
from prefixprop.report.table import ABSENT, Table, capitalised, frame, interval_cell, number
from prefixprop.runs.directory import DOCUMENTS
from prefixprop.runs.find import Run

SETTINGS = "Settings"  # what they are folded away under
_MISTAKES, _FIRST_LETTERS = 10, 280


@dataclass(frozen=True)
class JudgedRun:
    """A run and the split whose numbers stand first."""

    run: Run
    split: str
    items: str

    @cached_property
    def predictions(self) -> PredictionSet | None:
        """As the model gives them; None where the run has none."""
        try:
            return self.run.predictions(stored_name(self.split))
        except (ValueError, OSError):  # an archive has them for some runs only
            return None

    @cached_property
    def answered(self) -> PredictionSet:
        """As the run answers: after temperature scaling."""
        assert self.predictions is not None
        temperature = self.run.temperature
        return self.predictions if temperature is None else self.predictions.with_temperature(temperature)

    @property
    def is_mixed(self) -> bool:
        """Whether TF-IDF has a say in the answers of readers."""
        return READERS in self.weights and self.weights.get(WORDS, 0) > 0

    @property
    def weights(self) -> dict[str, float]:
        return dict(self.run.metrics.get("mix", {}).get("weights", {}))

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Those of the run as it answers, of readers alone where they are mixed, and of the baseline last."""
        stored, metrics = stored_name(self.split), self.run.metrics
        method = "mix of readers and TF-IDF" if self.is_mixed else method_name(self.run.settings)
        found = {method: metrics.get(f"{stored}_calibrated") or metrics[stored]}
        if self.is_mixed:
            found["readers alone"] = metrics.get("readers", {}).get(stored)
        if "baseline" in metrics and self.run.settings.method != "tfidf":
            found[baseline_name(self.run)] = metrics["baseline"].get(stored)
        return {name: values for name, values in found.items() if values}


def subtitle(run: Run) -> str:
    """The date and the version."""
    started, packages = run.environment.get("started"), run.environment.get("packages") or {}
    date = f"{datetime.fromisoformat(started):%d %B %Y} · ".lstrip("0") if started else ""
    return f"{date}prefixprop {packages.get('prefixprop') or 'of unknown version'}"


def verdict(judged: JudgedRun) -> list[str]:
    """How good the run is, beside the baseline; what to expect of other documents, and which answers to accept."""
    (name, metrics), *others = judged.metrics.items()
    several, count = "average_precision" in metrics, int(metrics["documents"])
    key = "average_precision" if several else "accuracy"
    expected, right = judged.run.metrics.get(f"expected_{key}"), round(metrics["accuracy"] * count)
    expects = f" (95 % interval {interval_cell((expected['low'], expected['high']))})" if expected else ""
    who, where = f"{'The ' if judged.is_mixed else ''}{name}", f"{count:,} {judged.split} {judged.items}"
    told = f"{who} got {right:,} of {where} right: {100 * right / count:.1f} % (95 % interval "
    told += f"{interval_cell(accuracy_interval(right, count))})"
    if several:
        interval = "" if judged.split == "test" else expects
        told = f"{who} reached {100 * metrics[key]:.1f} % average precision on {where}{interval}"
    if others and others[-1][0].endswith("baseline"):
        told += f"; the {others[-1][0]} got {100 * others[-1][1][key]:.1f} % on the same {judged.items}"
    sentences = [f"{capitalised(told)}."]
    if expected and judged.split == "test":
        chosen_by = f"{expected['documents']:,} {next(iter(documents_of(judged.run)))} {judged.items}"
        sentences.append(f"Expected {key.replace('_', ' ')}: {100 * expected[key]:.1f} %{expects}, from {chosen_by}.")
    if trust := judged.run.metrics.get("trust"):
        sentences.append(str(Trust(**{field: value for field, value in trust.items() if field != "test"})))
    return sentences


def facts(comparison: Comparison, judged: JudgedRun) -> dict[str, str]:
    """What was trained on what, and what it cost."""
    run, settings, lengths = judged.run, judged.run.settings, judged.run.lengths
    counts = {"training": len(lengths), **comparison.documents}
    found = {capitalised(judged.items): ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)}
    if model := comparison.rows[0].model:
        found = {"Model": model, **found}
        if lengths and settings.max_length:
            limit = settings.max_length
            cut = 1 - sum(min(length, limit) for length in lengths) / max(sum(lengths), 1)
            found["Tokens cut"] = f"{cut:.0%}, those after the first {limit:,} of a document"
    trained, encoder = (run.metric("parameters", part) for part in ("trainable", "backbone"))
    if trained is not None and encoder:
        share = f", {100 * trained / encoder:.2g} % of the encoder" if "Model" in found else ""
        found["Trained"] = f"{trained:,.0f} parameters{share}"
    if (seconds := run.metrics.get("seconds")) is not None:
        found["Time"] = f"{seconds:,.0f} s on {run.device}"
    found["Seed"] = str(settings.seed)
    if git := run.environment.get("git"):
        found["Commit"] = f"{git.get('commit') or 'unknown':.7}{', with changes' if git.get('changed') else ''}"
    return found


def command(judged: JudgedRun) -> str:
    """What trains the run again, and what started it."""
    config, again = judged.run.path / "config.yaml", f"{judged.run.path}-again"
    # A run of an archive has no directory.
    lines = [shlex.join(["prefixprop", "train", "--config", str(config), "--run-dir", again])] * config.is_file()
    if started := shlex.split(judged.run.environment.get("command") or ""):
        lines.append(f"# it was started with: prefixprop {shlex.join(started[1:])}")
    return "\n".join(lines)


def one_run_tables(judged: JudgedRun, title: str, name: str) -> list[Table]:
    """The run beside the TF-IDF baseline first; all metrics and settings are folded away."""
    on_split = f"{title}, {judged.split}"
    tables = [_answers(judged, f"{on_split}: results", f"{name}-results")]
    if "learning_rates" in judged.run.metrics:
        tables.append(_learning_rates(judged.run, f"{title}: learning rates", f"{name}-learning-rates"))
    if judged.predictions is not None:
        if judged.answered.label_names is not None:
            tables.append(label_table(judged.answered, f"{on_split}: labels", f"{name}-labels"))
        if not judged.answered.several_labels:
            tables += _mistakes(judged, f"{on_split}: most confident mistakes", f"{name}-mistakes")
    tables.append(_all_metrics(judged, f"{title}: all metrics", f"{name}-metrics"))
    values = asdict(judged.run.settings)
    given = [{"Setting": key, "Value": str(value)} for key, value in values.items() if value not in (None, (), [])]
    return [*tables, Table(f"{name}-settings", f"{title}: settings", frame(given), fold=SETTINGS)]


def label_table(predictions: PredictionSet, title: str, name: str) -> Table:
    """How every label fares, from a file of predictions alone."""
    rows = [
        {
            "Label": row.label,
            "Documents": f"{row.support:,}",
            "Predicted": f"{row.predicted:,}",
            "Precision, %": f"{100 * row.precision:.1f}" if row.predicted else None,
            "Recall, %": f"{100 * row.recall:.1f}" if row.support else None,
            "F1, %": f"{100 * row.f1:.1f}",
            "AP, %": None if row.average_precision is None else f"{100 * row.average_precision:.1f}",
        }
        for row in label_rows(predictions)
    ]
    return Table(name, title, frame(rows), ["AP: average precision, which needs no threshold."])


def _answers(judged: JudgedRun, title: str, name: str) -> Table:
    metrics = [*quality_of(judged.run.settings.metric), ECE, NLL]
    rows = [
        {"Method": method, **{one.heading: one.cell([found[one.name]]) for one in metrics if one.name in found}}
        for method, found in judged.metrics.items()
    ]
    weights = ", ".join(f"{part} {weight:.3f}" for part, weight in judged.weights.items())
    notes = [
        f"{documents_of(judged.run)[judged.split]:,} {judged.split} {judged.items}, the same in all rows.",
        f"Weights of the mix: {weights}." if judged.is_mixed else "",
        "ECE and NLL: of probabilities as the run gives them, scaled.",
        "Without predictions there are no figures of them, labels and mistakes."
        if judged.predictions is None
        else "",
    ]
    return Table(name, title, frame(rows), list(filter(None, notes)))


def _learning_rates(run: Run, title: str, name: str) -> Table:
    """What every learning rate reached on the documents that choose."""
    chosen = run.metrics["mix"]["chosen"].get(READERS)
    key = next(key for key in ("average_precision", "accuracy") if key in run.metrics["learning_rates"][0])
    heading = capitalised(f"{key.replace('_', ' ')}, %")
    rows = [
        {
            "Learning rate": f"{one['learning_rate']:g}",
            heading: f"{100 * one[key]:.1f}",
            "Outcome": "dropped halfway" if one["dropped"] else "chosen" if one["learning_rate"] == chosen else "",
        }
        for one in run.metrics["learning_rates"]
    ]
    where = f"{next(iter(documents_of(run)))} documents"
    note = f"Of readers alone on {where}, when the learning rate was last judged."
    return Table(name, title, frame(rows), [note], fold="Learning rates")


def _mistakes(judged: JudgedRun, title: str, name: str) -> list[Table]:
    found, labels = judged.answered, judged.answered.known_labels
    guesses, confidence = found.logits.argmax(axis=1), found.probabilities.max(axis=1)
    wrong = np.flatnonzero(guesses != labels)
    places = [int(place) for place in wrong[np.argsort(-confidence[wrong], kind="stable")][:_MISTAKES]]
    texts = _beginnings(judged, [found.ids[place] for place in places])
    notes = [f"{len(places)} of {len(wrong):,} mistakes, those that the run is most confident of."]
    if not texts:
        notes.append("Their texts are not shown: the documents are not at hand, or have changed since the run.")
    rows = [
        {
            "Document": found.ids[place],
            "Label": found.class_names(place)[labels[place]],
            "Predicted as": found.class_names(place)[guesses[place]],
            "Confidence, %": f"{100 * confidence[place]:.0f}",
            "Text": texts.get(found.ids[place]),
        }
        for place in places
    ]
    return [Table(name, title, frame(rows), notes, as_cards=True)] if rows else []


def _beginnings(judged: JudgedRun, ids: list[str]) -> Mapping[str, str]:
    """How these documents begin; empty where they cannot be read without a download, or are not those of the run."""
    run, settings = judged.run, judged.run.settings
    is_shipped = settings.task is not None and TASKS[settings.task].origin == SHIPPED
    if not (settings.train_files or settings.data_dir or is_shipped):
        return {}
    try:
        whole = load_data(**settings.source)
        if run.environment.get(DOCUMENTS) not in (None, fingerprint(whole)):
            return {}
        task = select_documents(whole, **settings.selection)
    except (ValueError, OSError, ImportError):
        return {}
    split = "train" if judged.split == LEFT_OUT else judged.split
    documents: Sequence[Document | Question] = task.split(split)
    names = [one.id for one in documents] if isinstance(task, QuestionTask) else task.split(split).ids
    places = {document_id: place for place, document_id in enumerate(names)}
    return {one: _beginning(documents[places[one]]) for one in ids} if set(ids) <= set(places) else {}


def _beginning(document: Document | Question) -> str:
    text = " ".join((document.text if isinstance(document, Document) else document.query).split())
    return text if len(text) <= _FIRST_LETTERS else f"{text[:_FIRST_LETTERS]} …"


def _all_metrics(judged: JudgedRun, title: str, name: str) -> Table:
    metrics = judged.run.metrics
    columns: dict[str, Any] = {}
    for split in reversed(documents_of(judged.run)):
        stored = stored_name(split)
        columns |= {split: metrics[stored], f"{split}, scaled": metrics.get(f"{stored}_calibrated")}
        columns |= {f"{split}, baseline": metrics.get("baseline", {}).get(stored)}
    found = pd.DataFrame({heading: values for heading, values in columns.items() if values})
    cells = found.map(lambda value: ABSENT if pd.isna(value) else number(value, ",.4g"))
    cells.insert(0, "Metric", found.index)
    return Table(name, title, cells, fold=ALL_METRICS)
