"""WikiHop (QAngaroo v1.1, Welbl et al., 2018): questions over several documents with given candidate answers.

A folder holds `train` and `dev` as QAngaroo publishes them (`.json`, one array) or as JSON lines (`.jsonl`). QAngaroo
keeps its test set secret, and the paper's table of data sets divides the 48,867 published questions 90/5/5: unless
there is a `test` file, `dev` is halved.

The encoder reads a question as follows (Appendix A of the paper, after Beltagy et al., 2020):

    <s> [question] q [/question] ([ent] c [/ent])*  </s> document </s> </s> document </s> ...

Everything in front of the first document is the candidate part. Supports that do not fit behind it are cut into
chunks, and the candidate part is repeated in front of each. `WikiHopDataset` has the questions for a DataLoader:
tokenized once, shuffled anew in every epoch of training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from prefixprop.data.documents import SPLIT_NAMES
from prefixprop.data.rows import Row, add_id, find_split_files, id_of, read_rows, text_of, value_of
from prefixprop.data.tokens import TokenIds, pad_documents, readable

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

HALVING_SEED = 10
SPECIAL_TOKENS = ("[question]", "[/question]", "[ent]", "[/ent]")

# With less room than this behind the candidate part a question would fall into hundreds of useless chunks.
MIN_SUPPORT_TOKENS = 32

_WIKIHOP_FOLDER_MUST_HOLD = (
    "train and dev, as .json or .jsonl; download QAngaroo v1.1 (http://qangaroo.cs.ucl.ac.uk), unpack it, and give "
    "its folder wikihop"
)

# QAngaroo's texts were split into words; the authors' code puts these back together before it tokenizes.
_SPACED_PUNCTUATION = (" .", " ,", " !", " ?", "( ", " )", " 's")


@dataclass(frozen=True)
class Question:
    """One question; `answer` is an index into `candidates`.

    `query` is a relation and its subject, as in "country_of_citizenship dan clark".
    """

    id: str
    query: str
    candidates: tuple[str, ...]
    supports: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class QuestionTask:
    """A data set of questions with candidates; a split may be empty."""

    name: str
    train: tuple[Question, ...]
    dev: tuple[Question, ...]
    test: tuple[Question, ...]

    def split(self, name: str) -> tuple[Question, ...]:
        """Return the split of that name: "train", "dev" or "test"."""
        questions: tuple[Question, ...] = getattr(self, name)
        return questions


def load_wikihop(folder: Path | None = None) -> QuestionTask:
    """Read the files `train` and `dev` of a folder, and `test` if there is one; otherwise halve `dev`."""
    task = load_questions("wikihop", folder, _WIKIHOP_FOLDER_MUST_HOLD)
    if task.test:
        return task
    # Two random halves, always the same ones, each in the order of the file.
    order = list(range(len(task.dev)))
    Random(HALVING_SEED).shuffle(order)
    middle = (len(order) + 1) // 2
    dev, test = (tuple(task.dev[index] for index in sorted(half)) for half in (order[:middle], order[middle:]))
    return replace(task, dev=dev, test=test)


def load_questions(name: str, folder: Path | None, must_hold: str) -> QuestionTask:
    """Read the files `train` and `dev` of a folder, and `test` if there is one."""
    files = [
        find_split_files(folder, split, must_hold=None if split == "test" else must_hold) for split in SPLIT_NAMES
    ]
    return QuestionTask(name, *(read_questions(*paths) for paths in files))


def read_questions(*paths: str | Path) -> tuple[Question, ...]:
    """Read files of questions; a bad record raises a `ValueError` that begins with its `file:line`."""
    questions: list[Question] = []
    ids: dict[str, str] = {}  # with their locations
    for row in read_rows(paths):
        add_id(ids, row, "id")
        questions.append(_question(row))
    return tuple(questions)


def _question(row: Row) -> Question:
    candidates, supports = (value_of(row, name) for name in ("candidates", "supports"))
    for name, value in {"candidates": candidates, "supports": supports}.items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{row.location}: the field {name!r} must be a list of strings.")
    answer = text_of(row, "answer")
    if answer not in candidates:
        raise ValueError(f"{row.location}: the answer {answer!r} is not among the candidates {candidates}.")
    return Question(
        id_of(row, "id"), text_of(row, "query"), tuple(candidates), tuple(supports), candidates.index(answer)
    )


@dataclass(frozen=True)
class TokenizedQuestion:
    """The pieces of a question's input, each with the special tokens around it; `query` starts with `<s>`."""

    id: str
    query: TokenIds
    candidates: tuple[TokenIds, ...]
    supports: tuple[TokenIds, ...]
    answer: int

    @property
    def candidate_part_length(self) -> int:
        return len(self.query) + sum(map(len, self.candidates))


@dataclass(frozen=True)
class QuestionInput:
    """What goes into the encoder for one question: the candidate part in front of each of the chunks.

    `candidate_positions` are those of the `[ent]` tokens in the candidate part, which score the candidates.
    """

    id: str
    candidate_part: TokenIds
    candidate_positions: TokenIds
    chunks: tuple[TokenIds, ...]
    answer: int


def add_special_tokens(tokenizer: PreTrainedTokenizerBase) -> int:
    """Add the four special tokens to a tokenizer, unless it has them; returns the first of their consecutive ids."""
    from transformers import AddedToken

    for role in ("cls_token", "sep_token", "pad_token"):
        if getattr(tokenizer, role) is None:
            raise ValueError(f"The tokenizer has no {role}, which WikiHop's input needs; use one of an encoder.")
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS], special_tokens=True)
    first, *_ = ids = _ids_of_special_tokens(tokenizer)
    if ids != list(range(first, first + len(ids))):
        raise ValueError(
            f"The ids of {', '.join(SPECIAL_TOKENS)} must be consecutive, but this tokenizer has {ids}; use one "
            "without tokens of these names."
        )
    return first


def tokenize_question(question: Question, tokenizer: PreTrainedTokenizerBase) -> TokenizedQuestion:
    """Tokenize the pieces of a question with a tokenizer that has the special tokens."""
    begin_query, end_query, begin_candidate, end_candidate = _ids_of_special_tokens(tokenizer)
    separator: Any = tokenizer.sep_token_id
    texts = [_join_punctuation(readable(text)) for text in (question.query, *question.candidates, *question.supports)]
    query, *others = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    count = len(question.candidates)
    return TokenizedQuestion(
        id=question.id,
        query=_ids([tokenizer.cls_token_id, begin_query, *query, end_query]),
        candidates=tuple(_ids([begin_candidate, *ids, end_candidate]) for ids in others[:count]),
        supports=tuple(_ids([separator, *ids, separator]) for ids in others[count:]),
        answer=question.answer,
    )


def shuffled(question: TokenizedQuestion, generator: Random) -> TokenizedQuestion:
    """The question with its candidates and its supports in another order, and `answer` adjusted to it."""
    order, supports = list(range(len(question.candidates))), list(question.supports)
    generator.shuffle(order)
    generator.shuffle(supports)
    return replace(
        question,
        candidates=tuple(question.candidates[index] for index in order),
        supports=tuple(supports),
        answer=order.index(question.answer),
    )


def has_room(question: TokenizedQuestion, max_length: int) -> bool:
    """Whether supports fit behind the candidate part.

    Candidates are never dropped or cut: that could remove the right one, or make the question easier.
    """
    room = max_length - question.candidate_part_length
    return room >= min(MIN_SUPPORT_TOKENS, sum(map(len, question.supports)))


def split_into_chunks(question: TokenizedQuestion, max_length: int, max_chunks: int | None = None) -> QuestionInput:
    """Cut the supports into chunks that fit behind the candidate part; only the first `max_chunks` are kept."""
    supports = _joined(question.supports)
    room = max(1, max_length - question.candidate_part_length)
    chunks = [supports[start : start + room] for start in range(0, len(supports), room)]
    lengths = [len(question.query), *map(len, question.candidates)]
    return QuestionInput(
        id=question.id,
        candidate_part=_joined((question.query, *question.candidates)),
        candidate_positions=np.cumsum(lengths, dtype=np.int32)[:-1],
        # A question without supports still has its candidate part.
        chunks=tuple(chunks[:max_chunks]) or (supports,),
        answer=question.answer,
    )


def _ids_of_special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    vocabulary = tokenizer.get_added_vocab()
    return [vocabulary[token] for token in SPECIAL_TOKENS]


def _join_punctuation(text: str) -> str:
    for spaced in _SPACED_PUNCTUATION:
        text = text.replace(spaced, spaced.strip())
    return " ".join(text.split())


def _ids(values: Iterable[Any]) -> TokenIds:
    return np.fromiter(values, dtype=np.int32)


def _joined(pieces: Iterable[TokenIds]) -> TokenIds:
    return np.concatenate([_ids(()), *pieces])


class WikiHopDataset:
    """Questions as the encoder reads them, in the order given; those whose candidates leave no room are skipped.

    Args:
        questions: A split of a `QuestionTask`.
        tokenizer: One that `add_special_tokens` was called on.
        max_length: The longest sequence in tokens, the candidate part included.
        shuffle: Put candidates and supports in another order, as in training: one that depends on `seed`, on the
            epoch (`set_epoch`) and on the question's id alone.
        seed: The seed of the shuffling.
        max_chunks: The most chunks of a question to read, to save memory; None reads all of them.

    Attributes:
        questions: The questions in the data set, in its order.
        skipped: Ids of the questions that were left out. Count these as wrong in an accuracy.
        cut: Ids of the questions that lose supports to `max_chunks`.
        lengths: How many tokens the encoder reads for each question, over all its chunks.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        max_chunks: int | None = None,
    ) -> None:
        self.max_length, self.max_chunks = max_length, max_chunks
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self._tokenized: list[TokenizedQuestion] = []
        kept, skipped = [], []
        for question in questions:
            tokenized = tokenize_question(question, tokenizer)
            if has_room(tokenized, max_length):
                kept.append(question)
                self._tokenized.append(tokenized)
            else:
                skipped.append(question.id)
        self.questions, self.skipped = tuple(kept), tuple(skipped)
        if skipped and not kept:
            raise ValueError(f"No question's candidates fit into max_length={max_length} tokens; raise it.")
        lengths, cut = [], []
        for tokenized in self._tokenized:
            chunks = split_into_chunks(tokenized, max_length).chunks
            read = chunks[:max_chunks]
            lengths.append(len(read) * tokenized.candidate_part_length + sum(map(len, read)))
            cut += [tokenized.id] if len(read) < len(chunks) else []
        self.lengths, self.cut = tuple(lengths), tuple(cut)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as in this epoch from now on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._tokenized)

    def __getitem__(self, index: int) -> QuestionInput:
        question = self._tokenized[index]
        if self.shuffle:
            question = shuffled(question, Random(f"{self.seed}/{self.epoch}/{question.id}"))
        return split_into_chunks(question, self.max_length, self.max_chunks)


@dataclass(frozen=True)
class CandidateCollator:
    """Stacks the chunks of all questions of a batch, padded to the longest chunk.

    | tensor | shape |
    | --- | --- |
    | `input_ids`, `attention_mask`, `global_attention_mask` (1 on the candidate part) | chunks, length |
    | `question_of_chunk` | chunks |
    | `candidate_positions` (where the `[ent]` tokens are; 0 for absent candidates) | chunks, candidates |
    | `candidate_mask` (true for candidates that exist) | questions, candidates |
    | `labels` | questions |
    """

    pad_token_id: int
    padding_side: str = "right"

    def __call__(self, questions: Sequence[QuestionInput]) -> dict[str, Tensor]:
        import torch

        question_of_chunk = [index for index, question in enumerate(questions) for _ in question.chunks]
        rows = [np.concatenate([one.candidate_part, chunk]) for one in questions for chunk in one.chunks]
        padded = pad_documents(rows, self.pad_token_id, self.padding_side)
        input_ids = padded["input_ids"]
        global_mask = torch.zeros_like(input_ids)
        width = max(len(question.candidate_positions) for question in questions)
        positions = torch.zeros(len(rows), width, dtype=torch.long)
        candidate_mask = torch.zeros(len(questions), width, dtype=torch.bool)
        for row, index in enumerate(question_of_chunk):
            part, candidates = questions[index].candidate_part, questions[index].candidate_positions
            start = 0 if self.padding_side == "right" else input_ids.shape[1] - len(rows[row])
            global_mask[row, start : start + len(part)] = 1
            positions[row, : len(candidates)] = torch.from_numpy(candidates) + start
            candidate_mask[index, : len(candidates)] = True
        return {
            # First, because Trainer and accelerate take the first tensor's length for the size of the batch.
            "labels": torch.tensor([question.answer for question in questions]),
            "input_ids": input_ids,
            "attention_mask": padded.get("attention_mask", torch.ones_like(input_ids)),
            "global_attention_mask": global_mask,
            "question_of_chunk": torch.tensor(question_of_chunk),
            "candidate_positions": positions,
            "candidate_mask": candidate_mask,
        }
