"""How faithful reasons are, and what they cost: comprehensiveness and sufficiency (ERASER, DeYoung et al. 2020).

    prefixprop train --task hyperpartisan --method readers --run-dir runs/readers
    python benchmarks/explain.py runs/readers [--documents 200] [--output explain.jsonl]

Test documents of each run's task, cut to what the run reads, are explained in several ways:

- occlusion, and reading for readers: those of `prefixprop explain` (see `prefixprop.predict.explain`);
- attention, for readers: what the first virtual token attends to, times the length of the value, summed over layers
  and heads;
- gradient: gradient times input at the embeddings, of the log-odds of the label;
- random.

Attention and gradient do not see the TF-IDF part of a mix. The strongest passages that have at least 10 %, 20 % and
50 % of the tokens are then removed, or all others are. Comprehensiveness is the mean drop of the label's probability
when they are removed (more is better), sufficiency the drop when only they are kept (less is better). The cost is the
processor time of all threads, on a GPU the time, as a multiple of that of plain answers to the same documents.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import prefixprop.backbones.base as backbone_base
from prefixprop import load_run
from prefixprop.attention.pattern import as_bias
from prefixprop.attention.sliding_window import split_heads
from prefixprop.backbones import find_backbone
from prefixprop.data import load_data
from prefixprop.data.splits import draw_sample
from prefixprop.data.tokens import EncodedDocuments, Frame, contents, encode_documents
from prefixprop.predict import PredictionOptions, TrainedModel
from prefixprop.predict.explain import OCCLUSION, READING, passages_of
from prefixprop.predict.reading import ReadingEncoder
from prefixprop.predict.trained_model import logits_of_each, output_of
from prefixprop.tuners.reader_bank import ReaderBank
from prefixprop.tuners.reading import text_of

from measuring import add_line

SHARES = (0.1, 0.2, 0.5)
Scores = list[np.ndarray]  # of the passages of every document


class Documents:
    """Texts of three passages or more, cut to what a run reads, and its answers to them."""

    def __init__(self, run: TrainedModel, texts: Sequence[str], count: int) -> None:
        self.run, self.options = run, PredictionOptions()
        self.frame = Frame.of(run.tokenizer, run.max_length)
        self.texts, self.starts, self.bounds = [], [], []
        for text in map(run.prepare, texts):
            tiles = passages_of(text)
            counts = np.cumsum([count for _, count in contents((text[a:b] for a, b in tiles), run.tokenizer)])
            inside = int((counts <= self.frame.room).sum())  # the last one that is read may be cut, and is left out
            if inside > 2 and len(self.texts) < count:
                self.texts.append(text[: tiles[inside - 1][1]])
                self.starts.append([start for start, _ in tiles[:inside]] + [tiles[inside - 1][1]])
                self.bounds.append([0, *counts[:inside].tolist()])
        pieces = encode_documents(self.texts, run.tokenizer, run.max_length)
        self.input_ids = pieces.input_ids
        self.log_probabilities = self.answers([np.ones(len(starts) - 1, bool) for starts in self.starts])
        self.labels = self.log_probabilities.argmax(axis=1)

    def answers(self, kept: Sequence[np.ndarray]) -> np.ndarray:
        """Log-probabilities of labels where only some passages of each document are kept."""
        texts, rows = [], []
        for index, mask in enumerate(kept):
            starts, bounds = self.starts[index], self.bounds[index]
            texts.append("".join(self.texts[index][starts[n] : starts[n + 1]] for n in np.flatnonzero(mask)))
            ids, front = self.input_ids[index], len(self.frame.before)
            keep = np.ones(len(ids), bool)
            for n in np.flatnonzero(~mask):
                keep[front + bounds[n] : front + bounds[n + 1]] = False
            rows.append(ids[keep])
        pieces = EncodedDocuments(tuple(rows), tuple(range(len(rows))), tuple(map(len, rows)), self.frame.size)
        (logits,) = logits_of_each([self.run], pieces, self.options)
        return output_of(self.run, logits, pieces, texts).log_probabilities(self.run.temperature.value)

    def per_passage(self, of_tokens: Sequence[np.ndarray]) -> Scores:
        front = len(self.frame.before)
        return [
            np.array([values[front + a : front + b].sum() for a, b in pairwise(bounds)])
            for values, bounds in zip(of_tokens, self.bounds, strict=True)
        ]


# --- ways that are not shipped ------------------------------------------------------------------------------------


@contextmanager
def plain_reading(seen: list[Tensor]) -> Iterator[None]:
    """Readers compute their attention in plain operations, which have gradients for the text too; `seen` gets it."""

    def read_text(
        rows: Tensor,
        states: Tensor,
        projections: Any,
        pattern: Any,
        heads: int,
        readers: int,
        first_only: bool,
        *_: Any,
    ) -> Tensor:
        length = rows.shape[1] // readers
        first = rows[:, ::length]
        asking = first if first_only else rows
        query, own_key, own_value = (
            split_heads(project(x), heads).unflatten(2, (readers, -1))
            for project, x in zip(projections, (asking, rows, rows), strict=True)
        )
        key, value = (split_heads(project(states), heads)[:, :, None] for project in projections[1:])
        scores = torch.cat([query @ own_key.mT, query @ key.mT], dim=-1) / query.shape[-1] ** 0.5
        scores[..., own_key.shape[3] :] += as_bias(~pattern.is_unseen[:, None, None, None, :], scores.dtype)
        weights = scores.softmax(dim=-1)
        on_own, on_text = weights.split([own_key.shape[3], states.shape[1]], dim=-1)
        seen.append((on_text[..., 0, :] * value[:, :, 0].norm(dim=-1)[:, :, None]).sum(dim=(0, 1, 2)).detach())
        return (on_own @ own_value + on_text @ value).flatten(2, 3).transpose(1, 2).flatten(2)

    original = backbone_base.read_text
    backbone_base.read_text = read_text
    try:
        yield
    finally:
        backbone_base.read_text = original


@contextmanager
def leaf_embeddings(backbone: Any, found: list[Tensor]) -> Iterator[None]:
    def hook(_: Any, __: Any, output: Tensor) -> Tensor:
        found.append(output.detach().requires_grad_())
        return found[-1]

    handle = backbone.embeddings.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def scores_of_tokens(documents: Documents, with_gradient: bool) -> Scores:
    """Gradient times input of every token, or for readers the attention that it gets."""
    run, of_tokens = documents.run, []
    reads, bank = isinstance(run.model, ReadingEncoder), None
    backbone = run.model.backbone if reads else find_backbone(run.model)
    device = next(backbone.module.parameters()).device
    if reads:
        bank = ReaderBank(backbone, [run.model._readers[number] for number in run.readers]).to(device).eval()
    for ids, label in zip(documents.input_ids, documents.labels.tolist(), strict=True):
        inputs = torch.from_numpy(ids).long()[None].to(device)
        seen: list[Tensor] = []
        embedded: list[Tensor] = []
        precision = torch.autocast(device.type, torch.bfloat16, enabled=run.uses_bf16)
        with (
            torch.set_grad_enabled(with_gradient),
            precision,
            plain_reading(seen),
            leaf_embeddings(backbone, embedded),
        ):
            if bank is None:
                logits = run.model(inputs).logits
            else:
                states = backbone.module(inputs, output_hidden_states=True).hidden_states[:-1]
                logits = bank(text_of(states, None))[:, 0]
            if with_gradient:
                logits.float().softmax(dim=-1).mean(dim=0)[label].logit().backward()
                of_tokens.append((embedded[0].grad * embedded[0]).sum(dim=-1)[0].detach().float().cpu().numpy())
            else:
                of_tokens.append(torch.stack(seen).sum(dim=0)[-len(ids) :].float().cpu().numpy())
    return documents.per_passage(of_tokens)


# --- the table ----------------------------------------------------------------------------------------------------


def explained(documents: Documents, way: str) -> Scores:
    found = documents.run.explain(documents.texts, way=way)
    scores = [np.array([passage.score for passage in of.passages]) for of, *_ in found]
    assert [len(own) for own in scores] == [len(starts) - 1 for starts in documents.starts]
    return scores


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    started = clock()
    return work(), clock() - started


def faithfulness(documents: Documents, scores: Scores) -> dict[str, float]:
    full = np.exp(documents.log_probabilities[np.arange(len(documents.labels)), documents.labels])
    drops: dict[str, list[np.ndarray]] = {"comprehensiveness": [], "sufficiency": []}
    for share in SHARES:
        chosen = []
        for own, bounds in zip(scores, documents.bounds, strict=True):
            order, sizes = np.argsort(-own, kind="stable"), np.diff(bounds)
            taken = 1 + int(np.searchsorted(np.cumsum(sizes[order]), share * bounds[-1]))
            mask = np.zeros(len(own), bool)
            mask[order[:taken]] = True
            chosen.append(mask)
        for name, kept in (("comprehensiveness", [~mask for mask in chosen]), ("sufficiency", chosen)):
            answers = documents.answers(kept)
            drops[name].append(full - np.exp(answers[np.arange(len(full)), documents.labels]))
    return {name: round(float(np.mean(values)), 4) for name, values in drops.items()}


def measure(run: TrainedModel, count: int) -> Iterator[dict[str, Any]]:
    task = load_data(**run.settings.source)
    documents = Documents(run, [document.text for document in draw_sample(task.test, 2 * count, seed=1)], count)
    run.predict(documents.texts)  # the first pass compiles and records
    _, plain = timed(lambda: run.predict(documents.texts))
    generator = np.random.default_rng(1)
    ways: dict[str, Callable[[], Scores]] = {
        OCCLUSION: lambda: explained(documents, OCCLUSION),
        READING: lambda: explained(documents, READING),
        "attention": lambda: scores_of_tokens(documents, with_gradient=False),
        "gradient": lambda: scores_of_tokens(documents, with_gradient=True),
        "random": lambda: [generator.random(len(starts) - 1) for starts in documents.starts],
    }
    if not isinstance(run.model, ReadingEncoder):
        del ways[READING], ways["attention"]
    if run.model is None:  # all weight of the mix is on TF-IDF
        del ways["gradient"]
    for way, work in ways.items():
        scores, seconds = timed(work)
        yield {
            "task": task.name,
            "method": run.settings.method,
            "documents": len(documents.texts),
            "passages": round(float(np.mean([len(own) for own in scores])), 1),
            "way": way,
            **faithfulness(documents, scores),
            "cost": round(seconds / plain, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="finished runs on named tasks")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("explain.jsonl"))
    given = parser.parse_args()
    for run in given.runs:
        for line in measure(load_run(run), given.documents):
            add_line(given.output, line)


if __name__ == "__main__":
    main()
