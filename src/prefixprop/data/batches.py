"""Batches of documents, and of questions that differ in their numbers of chunks, candidates and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prefixprop.data.tokens import TokenIds
from prefixprop.data.wikihop import QuestionInput

if TYPE_CHECKING:
    from torch import Tensor


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """The indices of all texts, longest first, in batches of at most `batch_tokens` tokens, padding included.

    A text longer than that is a batch of its own.
    """
    batch: list[int] = []
    longest = 0
    # Longest first: if the memory is too small, that shows at once.
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch = []
        if not batch:
            longest = lengths[index]
        batch.append(index)
    if batch:
        yield batch


def pad_documents(
    rows: Sequence[TokenIds], pad_token_id: int, padding_side: str = "right", length: int | None = None
) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask`, [documents, length]; the default length is that of the longest document.

    Without padding there is no mask, so that a model need not look at it. A document without tokens, because it is
    empty and the tokenizer has no special tokens, is read as one padding token.
    """
    import torch

    lengths = [max(1, len(row)) for row in rows]
    length = length or max(lengths)
    input_ids = torch.full((len(rows), length), pad_token_id)
    attention_mask = torch.zeros(len(rows), length, dtype=torch.long)
    for index, row in enumerate(rows):
        start = 0 if padding_side == "right" else length - lengths[index]
        input_ids[index, start : start + len(row)] = torch.from_numpy(row)
        attention_mask[index, start : start + lengths[index]] = 1
    padded = {"input_ids": input_ids, "attention_mask": attention_mask}
    return padded if min(lengths) < length else {"input_ids": input_ids}


@dataclass(frozen=True)
class DocumentCollator:
    """Batches of items with `input_ids`, as arrays, and `labels`.

    Hugging Face's collators use Python lists, which for thousands of tokens takes longer than a step on a GPU.
    """

    pad_token_id: int
    padding_side: str = "right"
    padded_length: Callable[[int], int] = int  # of the length of the longest document

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        import torch

        rows = [item["input_ids"] for item in items]
        length = self.padded_length(max(1, *map(len, rows)))
        padded = pad_documents(rows, self.pad_token_id, self.padding_side, length)
        return padded | {"labels": torch.tensor([item["labels"] for item in items])}


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
