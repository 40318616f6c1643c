"""A trained classifier, and its predictions: labels with calibrated confidence, in the order of the texts.

Documents of similar length are batched. In another batch the last digits of a prediction may differ.

A document over the model's limit is cut there (`truncate`), or read in chunks whose probabilities are averaged
(`chunk-average`). Every chunk is calibrated by itself, because the temperature was fitted on texts of that length,
and weighted by its number of tokens, so that a short remainder counts for little.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from prefixprop.choices import LONG_DOCUMENTS
from prefixprop.data import chunk_documents, encode_documents
from prefixprop.data.documents import checked_texts
from prefixprop.data.tokens import EncodedDocuments, count_words, shredded
from prefixprop.evaluate import Mix, Temperature, TfidfModel, Trust
from prefixprop.evaluate.metrics import log_softmax, yes_or_no
from prefixprop.evaluate.mixing import READERS, WORDS, mean_answer
from prefixprop.models.gpu import default_batch_tokens, use_bf16
from prefixprop.predict.inputs import windows
from prefixprop.predict.reading import ReadingEncoder
from prefixprop.predict.token_batches import Logits, start_classifying
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import pad_token

if TYPE_CHECKING:
    from prefixprop.predict.explain import Explanation

_MAX_NAMES = 5  # of documents in a warning
_COUNTED_DOCUMENTS = 1000  # whose words are counted: enough to see a language that the tokenizer shreds


@dataclass(frozen=True)
class Prediction:
    """The model's prediction of one document.

    Attributes:
        label: The most probable label.
        confidence: Its probability, calibrated by the run's temperature.
        probabilities: The probability of every label, by name.
        tokens_read: How many tokens of the document were read, special tokens included.
        tokens: How many the whole document has; of a very long one that was cut, an estimate.
        truncated: Whether it was cut at the model's limit.
        chunks: In how many pieces it was read.
        decision: "accept" or "review", for a run with a `target_precision`.
        labels: Where a document can have several labels, those whose probability reaches their threshold; else None.
    """

    label: str
    confidence: float
    probabilities: dict[str, float]
    tokens_read: int
    tokens: int
    truncated: bool
    chunks: int = 1
    decision: str | None = None
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PredictionOptions:
    """How documents are read: `long` is "truncate" or "chunk-average", `batch_tokens` the size of a batch.

    None: the default for the device.
    """

    long: str = "truncate"
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.long not in LONG_DOCUMENTS:
            raise ValueError(f"long={self.long!r} is unknown; choose one of {', '.join(LONG_DOCUMENTS)}.")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise ValueError(f"batch_tokens={self.batch_tokens} must be at least 1.")

    def tokens_of_a_batch(self, device: torch.device) -> int:
        return self.batch_tokens or default_batch_tokens(device)


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of a finished run, in evaluation mode; `prefixprop.load_run` makes one.

    `label_names` is empty for a run on WikiHop, whose model scores the candidates of questions. `settings` are those
    of `config.yaml`. `prepare` cleans a text as the run's task cleaned its own. `adapter` is the name of the run's
    adapter in a model that it shares with other runs.

    A run of readers shares a `ReadingEncoder` as its model, where `readers` are its numbers; a mixed run has a `mix`,
    and `words` if TF-IDF is in it. Where a document can have several labels, each has one of the `thresholds`.
    """

    run_dir: Path
    model: Any
    tokenizer: PreTrainedTokenizerBase
    label_names: tuple[str, ...]
    max_length: int
    temperature: Temperature
    settings: RunSettings
    prepare: Callable[[str], str]
    trust: Trust | None = None
    adapter: str | None = None
    readers: tuple[int, ...] = ()
    mix: Mix | None = None
    words: TfidfModel | None = None
    thresholds: tuple[float, ...] | None = None

    def predict(
        self, texts: Iterable[str], *, long: str = "truncate", batch_tokens: int | None = None
    ) -> list[Prediction]:
        """Predict texts, in their order; warn of documents that are empty or over the limit.

        Args:
            texts: The documents.
            long: What to do with one over the limit: "truncate" cuts it, "chunk-average" reads all of it in chunks.
            batch_tokens: The size of a batch in tokens; 65,536 on a GPU and 4,096 on a CPU if left out. Lower it if
                memory runs out.
        """
        options = PredictionOptions(long, batch_tokens)
        texts = list(self._checked(texts))
        predictions = [prediction for (prediction,) in predict_with_each([self], texts, options)] if texts else []
        summary = PredictionSummary(self)
        for index, (text, prediction) in enumerate(zip(texts, predictions, strict=True)):
            summary.add(str(index), text, prediction)
        if found := summary.warnings():
            warnings.warn(f"{self.run_dir}: {'; '.join(found)} (documents are numbered from 0).", stacklevel=2)
        return predictions

    def predict_stream(
        self, texts: Iterable[str], *, long: str = "truncate", batch_tokens: int | None = None
    ) -> Iterator[Prediction]:
        """Like `predict`, but one prediction at a time; memory does not grow with the number of texts.

        The first text is predicted alone. After it, texts are batched as the model handles them in about two seconds,
        so the last digits of a prediction may differ from call to call. There are no warnings: see `tokens_read`,
        `tokens` and `chunks` of each prediction.
        """
        options = PredictionOptions(long, batch_tokens)
        checked = self._checked(texts)
        return (
            prediction
            for window in windows(checked, text_of=str)
            for (prediction,) in predict_with_each([self], window, options)
        )

    def explain(
        self,
        texts: Iterable[str],
        *,
        way: str | None = None,
        long: str = "truncate",
        batch_tokens: int | None = None,
    ) -> list[tuple[Explanation, ...]]:
        """For every text, how much each passage speaks for the label that it gets, or for each of several labels.

        Args:
            texts: The documents.
            way: "occlusion" leaves each passage out and answers again; "reading", for readers, hides it from their
                virtual tokens. None: "reading" for readers, "occlusion" for everything else.
            long: As for `predict`.
            batch_tokens: As for `predict`.
        """
        from prefixprop.predict.explain import explain

        return explain(self, list(self._checked(texts)), PredictionOptions(long, batch_tokens), way)

    @property
    def answers_questions(self) -> bool:
        """Whether this is a run on WikiHop, for questions with candidates."""
        return self.settings.answers_questions

    @property
    def several_labels(self) -> bool:
        """Whether a document can have several labels."""
        return self.thresholds is not None

    @property
    def tokens_key(self) -> Hashable:
        """What decides the tokens of a text: equal for runs that were loaded together and read texts alike."""
        return id(self.tokenizer), self.max_length, self.prepare

    @property
    def pad_token_id(self) -> int:
        return pad_token(self.tokenizer)

    @property
    def device(self) -> torch.device:
        """Where its model computes."""
        if isinstance(self.model, ReadingEncoder):
            return self.model.device
        return torch.device("cpu") if self.model is None else next(self.model.parameters()).device

    @property
    def uses_bf16(self) -> bool:
        """Whether it computes in bf16: on a GPU on which a run of this precision is trained in it."""
        return self.device.type == "cuda" and use_bf16(self.settings.precision)

    def limits(self, options: PredictionOptions) -> tuple[int, int, bool, int]:
        """How its model reads tokens: what pads them, how many are a batch, whether in bf16, and the longest text."""
        return self.pad_token_id, options.tokens_of_a_batch(self.device), self.uses_bf16, self.max_length

    def encoded(self, texts: Sequence[str], options: PredictionOptions) -> EncodedDocuments:
        """The tokens of texts that are prepared already."""
        encode = encode_documents if options.long == "truncate" else chunk_documents
        return encode(texts, self.tokenizer, self.max_length)

    def check_reads_documents(self) -> None:
        """Raise if this model is for questions."""
        if self.answers_questions:
            raise ValueError(
                f"{self.run_dir}: this run was trained on questions, so it chooses among their candidates "
                "and cannot label documents; `prefixprop evaluate` reads questions with it."
            )

    def _checked(self, texts: Iterable[str]) -> Iterator[str]:
        self.check_reads_documents()
        return checked_texts(texts)


@dataclass(frozen=True)
class ModelOutput:
    """What a run's model computed for texts: the logits [pieces, labels], uncalibrated.

    `words` has the scores of TF-IDF [texts, labels], where the run has it. Where a document can have several labels,
    logits and scores are those of no and yes, [..., labels, 2].
    """

    run: TrainedModel
    logits: NDArray[np.float64]
    pieces: EncodedDocuments
    words: NDArray[np.float64] | None

    def log_probabilities(self, temperature: float) -> NDArray[np.float64]:
        """[texts, labels], or with several labels [texts, labels, 2].

        The probabilities of a text's chunks are averaged, weighted by their tokens.
        """
        mix = self.run.mix
        if mix is None:
            return self._of_encoder(temperature)
        parts = {} if self.words is None else {WORDS: self.words}
        if READERS in mix.used:
            parts[READERS] = self._of_encoder(1.0)
        return mix.log_probabilities(parts)

    def _of_encoder(self, temperature: float) -> NDArray[np.float64]:
        return self.pieces.mean_answers(log_softmax(self.logits / temperature))

    def predictions(self) -> list[Prediction]:
        run, pieces = self.run, self.pieces
        # TF-IDF alone counts the words of the whole document.
        read = pieces.tokens if run.mix is not None and READERS not in run.mix.used else pieces.tokens_read
        found = np.exp(self.log_probabilities(run.temperature.value))
        rows = (found[..., 1] if run.several_labels else found).tolist()
        predictions = []
        for row, own, total, chunks in zip(rows, read, pieces.tokens, pieces.chunks, strict=True):
            confidence = max(row)
            label = run.label_names[row.index(confidence)]
            decision = None if run.trust is None else run.trust.decide(confidence)
            labels = None
            if run.thresholds is not None:
                limits = zip(run.label_names, row, run.thresholds, strict=True)
                labels = tuple(name for name, probability, threshold in limits if probability >= threshold)
            counts = own, total, own < total, chunks
            probabilities = dict(zip(run.label_names, row, strict=True))
            predictions.append(Prediction(label, confidence, probabilities, *counts, decision, labels))
        return predictions


EncodedForEach = dict[Hashable, tuple[list[str], EncodedDocuments]]  # cleaned and encoded, by `tokens_key`


def predict_with_each(
    runs: Sequence[TrainedModel], texts: list[str], options: PredictionOptions
) -> list[tuple[Prediction, ...]]:
    """What each run predicts of texts, of which there is at least one; runs that read alike share the tokens."""
    return start_predicting(runs, encode_for_each(runs, texts, options), options)()


def encode_for_each(runs: Sequence[TrainedModel], texts: list[str], options: PredictionOptions) -> EncodedForEach:
    """The texts as the runs read them; no model takes part, so a thread can do it while models compute."""
    encoded: EncodedForEach = {}
    for run in runs:
        if run.tokens_key not in encoded:
            cleaned = [run.prepare(text) for text in texts]
            encoded[run.tokens_key] = cleaned, run.encoded(cleaned, options)
    return encoded


def start_predicting(
    runs: Sequence[TrainedModel], encoded: EncodedForEach, options: PredictionOptions
) -> Callable[[], list[tuple[Prediction, ...]]]:
    """A function that waits for what each run predicts of texts that `encode_for_each` has encoded.

    On a GPU these are only queued here.
    """
    sharing: dict[tuple[int, Hashable], list[TrainedModel]] = {}
    for run in runs:
        sharing.setdefault((id(run.model), run.tokens_key), []).append(run)
    started = [
        (own, encoded[key[1]], _start_logits(own, encoded[key[1]][1], options)) for key, own in sharing.items()
    ]

    def predictions() -> list[tuple[Prediction, ...]]:
        found = {
            run.run_dir: output_of(run, logits, pieces, cleaned).predictions()
            for sharers, (cleaned, pieces), waiting in started
            for run, logits in zip(sharers, waiting(), strict=True)
        }
        return list(zip(*(found[run.run_dir] for run in runs), strict=True))

    return predictions


def output_of(
    run: TrainedModel, logits: NDArray[np.float64], pieces: EncodedDocuments, texts: Iterable[str]
) -> ModelOutput:
    """A run's output for texts, which TF-IDF reads, and for their pieces, of which `logits_of_each` told."""
    form: Callable[[Any], Any] = yes_or_no if run.several_labels else np.asarray
    answers = form(logits[..., : len(run.label_names)])
    if isinstance(run.model, ReadingEncoder):
        answers = mean_answer(answers)
    words = None if run.words is None else form(run.words.scores(texts))
    return ModelOutput(run, answers, pieces, words)


def logits_of_each(runs: Sequence[TrainedModel], pieces: EncodedDocuments, options: PredictionOptions) -> Logits:
    """What the model that these runs share says of pieces, with what each of them trained; no columns without one.

    For readers, [readers, pieces, labels].
    """
    return _start_logits(runs, pieces, options)()


def _start_logits(
    runs: Sequence[TrainedModel], pieces: EncodedDocuments, options: PredictionOptions
) -> Callable[[], Logits]:
    first = runs[0]
    if first.model is None:
        return lambda: [np.empty((len(pieces.input_ids), 0)) for _ in runs]
    if isinstance(first.model, ReadingEncoder):
        return first.model.start(pieces.input_ids, [run.readers for run in runs], *first.limits(options))
    return start_classifying(first.model, pieces.input_ids, *first.limits(options), [run.adapter for run in runs])


class PredictionSummary:
    """Counts over a stream of predictions, in constant memory."""

    def __init__(self, run: TrainedModel) -> None:
        self.max_length, self._special_tokens = run.max_length, run.tokenizer.num_special_tokens_to_add()
        self._has_encoder = run.model is not None
        self.labels: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()
        self._tokens_read = self._tokens = self._content = self._words = self._documents = 0
        self._unusual: Counter[str] = Counter()
        self._names: defaultdict[str, list[str]] = defaultdict(list)  # of the first documents that are unusual

    def add(self, name: str, text: str, prediction: Prediction) -> None:
        """Count a document and its prediction."""
        self.labels.update((prediction.label,) if prediction.labels is None else prediction.labels)
        if prediction.decision is not None:
            self.decisions[prediction.decision] += 1
        self._tokens_read += prediction.tokens_read
        self._tokens += prediction.tokens
        self._documents += 1
        if self._documents <= _COUNTED_DOCUMENTS:
            self._content += prediction.tokens - self._special_tokens
            self._words += count_words(text)
        limit = f"longer than the limit of {self.max_length:,} tokens"
        for what, is_so in {
            f"{limit} and cut there": prediction.truncated,
            f"{limit} and read in chunks": prediction.chunks > 1,
            "empty": not text or text.isspace(),
        }.items():
            if is_so:
                self._unusual[what] += 1
                if len(self._names[what]) < _MAX_NAMES:
                    self._names[what].append(name)

    def warnings(self) -> list[str]:
        """What a user should look at, such as "2 documents are empty: 4, 17"."""
        found = []
        for what, count in self._unusual.items():
            subject = "1 document is" if count == 1 else f"{count:,} documents are"
            more = f" and {count - _MAX_NAMES:,} more" if count > _MAX_NAMES else ""
            found.append(f"{subject} {what}: {', '.join(self._names[what])}{more}")
        if self._tokens_read < self._tokens:
            unread = 1 - self._tokens_read / self._tokens
            found.append(f"{unread:.0%} of all tokens are not read; --long chunk-average reads the rest")
        if self._has_encoder and (told := shredded(self._content, self._words)):
            found.append(told)
        return found
