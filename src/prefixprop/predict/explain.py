"""Why a run gives a label: how much each passage of a document speaks for it.

A passage is a run of sentences of about 60 words; where no sentence ends in time it is cut at a word. The score of a
passage is what the label's log-odds lose without it, so a passage that speaks against the label has a negative score.
There are two ways to do without a passage:

- `occlusion` leaves its tokens out and answers again, once for every passage. Every method can do it.
- `reading` hides its tokens from the virtual tokens of readers. The states of the text stay as they are, so the
  encoder reads the text once, and only the virtual tokens read again.

TF-IDF, alone or in a mix, is always asked again without the passage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from prefixprop.choices import EXPLANATION_WAYS
from prefixprop.data.tokens import WORD, EncodedDocuments, Frame, contents, readable
from prefixprop.evaluate.metrics import log_odds
from prefixprop.lazy_imports import import_optional
from prefixprop.predict.reading import ReadingEncoder
from prefixprop.predict.trained_model import PredictionOptions, TrainedModel, logits_of_each, output_of

OCCLUSION, READING = EXPLANATION_WAYS
_WORDS = 60  # of a passage, about
MOST_PASSAGES = 200  # of a document, about: those of a book are longer
_SENTENCE_END = re.compile(r"[.!?\u2026][\"'\u201d\u2019)\]]*(?=\s)|[\u3002\uff01\uff1f]|\S(?=\s*\n\s*\n)")

Span = tuple[int, int]


@dataclass(frozen=True)
class Passage:
    """Characters [start, end) of a document, and how much they speak for a label: the log-odds it has from them."""

    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True)
class Explanation:
    """A label that a document gets, its calibrated probability, and its passages, in their order.

    `document` is the text that offsets refer to: the one given, or what a task that cleans its texts makes of it.
    The passages are all of what was read.
    """

    label: str
    confidence: float
    passages: tuple[Passage, ...]
    document: str

    @property
    def strongest(self) -> list[Passage]:
        """The passages from the one that speaks most for the label to the one that speaks most against it."""
        return sorted(self.passages, key=lambda passage: -passage.score)


def explain(
    run: TrainedModel,
    texts: Sequence[str],
    options: PredictionOptions,
    way: str | None = None,
    most_passages: int = MOST_PASSAGES,
) -> list[tuple[Explanation, ...]]:
    """Explain the label of every text; where a document can have several, each that it gets, most probable first.

    Where it gets none, the most probable one is explained. `most_passages` is about how many passages what is read of
    a text has at most. `TrainedModel.explain` describes the rest.
    """
    way = _way(run, way)
    documents = [readable(run.prepare(text)) for text in texts]
    if not documents:
        return []
    pieces = run.encoded(documents, options)
    content = [read - pieces.special_tokens for read in pieces.tokens_read]
    # TF-IDF reads the whole document.
    read = np.ones(len(documents)) if run.words else np.array(pieces.tokens_read) / np.maximum(1, pieces.tokens)
    tiles = [passages_of(*each, most_passages) for each in zip(documents, read.tolist(), strict=True)]
    tokens = [list(_token_spans(run, *each)) for each in zip(documents, tiles, content, strict=True)]
    if run.words is None:
        tiles = [own[: len(spans)] for own, spans in zip(tiles, tokens, strict=True)]
    answers = _answers(run, documents, tiles, tokens, pieces, options, way)
    return [_explanations(run, *each) for each in zip(documents, tiles, answers, strict=True)]


def _way(run: TrainedModel, way: str | None) -> str:
    reads = isinstance(run.model, ReadingEncoder)
    if way is None:
        return READING if reads else OCCLUSION
    if way not in EXPLANATION_WAYS:
        raise ValueError(f"way={way!r} is unknown; choose one of {', '.join(EXPLANATION_WAYS)}.")
    if way == READING and not reads:
        raise ValueError(
            f"{run.run_dir}: way={READING!r} is for runs of readers (methods readers and prefix-reading), whose "
            f"virtual tokens the text does not see; this is a run of {run.settings.method}: choose {OCCLUSION!r}."
        )
    return way


def explanations_page(title: str, explanations: Sequence[tuple[str, Explanation]]) -> str:
    """An HTML page of documents, by id, with their passages marked. Whatever documents hold is escaped."""
    jinja2 = import_optional("jinja2", "HTML pages", extra="report")
    loader = jinja2.PackageLoader("prefixprop.predict")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    page: str = environment.get_template("explanations.html").render(title=title, explanations=explanations)
    return page


# --- passages -----------------------------------------------------------------------------------------------------


def passages_of(text: str, read: float = 1.0, most: int = MOST_PASSAGES) -> list[Span]:
    """The passages of a text, each with the space in front of it, so that together they are the text.

    There are about `most` passages, at most, in the share of the text that is `read`.

    A tokenizer makes the same tokens of a text and of its tiles, because a tile begins where a word has ended.
    """
    words = [found.end() for found in WORD.finditer(text)]
    if not words:
        return []
    sentences = {found.end() for found in _SENTENCE_END.finditer(text)}
    size = max(_WORDS, int(read * len(words)) // most)
    cuts, since = [0], 0
    for number, end in enumerate(words, start=1):
        since += 1
        if len(words) - number < size // 2:
            break  # the rest is no passage by itself
        if (since >= 2 * size // 3 and end in sentences) or since >= 4 * size // 3:
            cuts.append(end)
            since = 0
    return list(pairwise([*cuts, len(text)]))


def _token_spans(run: TrainedModel, document: str, tiles: Sequence[Span], read: int) -> Iterator[Span]:
    """Which tokens of a document each tile has, until the last of the tokens that are read."""
    end = 0
    for _, count in contents((document[slice(*tile)] for tile in tiles), run.tokenizer):
        yield end, min(read, end + count)
        end += count
        if end >= read:
            break


# --- answers without each passage ---------------------------------------------------------------------------------


def _answers(
    run: TrainedModel,
    documents: Sequence[str],
    tiles: Sequence[Sequence[Span]],
    tokens: Sequence[Sequence[Span]],
    pieces: EncodedDocuments,
    options: PredictionOptions,
    way: str,
) -> list[NDArray[np.float64]]:
    """For every document the log-probabilities of labels, first with all of its tiles, then without each of them."""
    frame = Frame.of(run.tokenizer, run.max_length)
    hidden: list[tuple[int, int, int]] = []  # tokens [start, end) of a piece
    # Of a document: its pieces, or where tokens are hidden the entry behind all pieces.
    versions: list[list[int]] = []
    first = np.unique(pieces.documents, return_index=True)[1]
    for start_piece, chunks, own, spans in zip(first.tolist(), pieces.chunks, tiles, tokens, strict=True):
        whole = list(range(start_piece, start_piece + chunks))
        versions.append(whole)
        for number in range(len(own)):
            version = whole.copy()
            start, end = spans[number] if number < len(spans) else (0, 0)
            for chunk in range(start // frame.room, -(-end // frame.room)):
                before = chunk * frame.room
                inside = [len(frame.before) + max(0, min(frame.room, token - before)) for token in (start, end)]
                version[chunk] = len(pieces.input_ids) + len(hidden)
                hidden.append((whole[chunk], inside[0], inside[1]))
            versions.append(version)
    left = [np.delete(pieces.input_ids[piece], slice(start, end)) for piece, start, end in hidden]
    input_ids = (*pieces.input_ids, *left)
    if way == READING:
        (logits,) = run.model.start(pieces.input_ids, [run.readers], *run.limits(options), hidden)()
    else:
        (logits,) = logits_of_each([run], replace(pieces, input_ids=input_ids), options)
    rows = [piece for version in versions for piece in version]
    of_version = [number for number, version in enumerate(versions) for _ in version]
    texts = (
        text
        for document, own in zip(documents, tiles, strict=True)
        for text in (document, *(document[:start] + document[end:] for start, end in own))
    )
    read = EncodedDocuments(tuple(input_ids[row] for row in rows), tuple(of_version), (), frame.size)
    output = output_of(run, logits[..., rows, :], read, texts)
    found = output.log_probabilities(run.temperature.value)
    return np.split(found, np.cumsum([1 + len(own) for own in tiles])[:-1])


def _explanations(
    run: TrainedModel, document: str, tiles: Sequence[Span], answers: NDArray[np.float64]
) -> tuple[Explanation, ...]:
    """An explanation of every label that the document gets, from `_answers` to it."""
    if run.thresholds is not None:
        odds, probabilities = log_odds(answers), np.exp(answers[0, :, 1])
        labels = [label for label in np.argsort(-probabilities) if probabilities[label] >= run.thresholds[label]]
        labels = labels or [int(probabilities.argmax())]
    else:
        probabilities = np.exp(answers[0])
        labels = [int(probabilities.argmax())]
        odds = np.zeros_like(answers)
        odds[:, labels[0]] = answers[:, labels[0]] - logsumexp(np.delete(answers, labels[0], axis=1), axis=1)
    explained = []
    for label in labels:
        passages = []
        for (start, end), without in zip(tiles, odds[1:, label].tolist(), strict=True):
            text = document[start:end]
            start += len(text) - len(text.lstrip())
            passage = Passage(start, start + len(text.strip()), text.strip(), float(odds[0, label]) - without)
            passages.append(passage)
        explained.append(Explanation(run.label_names[label], float(probabilities[label]), tuple(passages), document))
    return tuple(explained)
