"""WikiHop questions for a torch DataLoader: tokenized once, shuffled anew in every epoch of training."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random
from typing import TYPE_CHECKING

from prefixprop.tasks.candidate_input import (
    CandidatePartTooLong,
    QuestionInput,
    TokenizedQuestion,
    check_room,
    shuffled,
    split_into_chunks,
    tokenize_question,
)
from prefixprop.tasks.wikihop import Question

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OVERSIZED = ("raise", "skip")


class WikiHopDataset:
    """Questions as the encoder reads them, in the order given.

    Args:
        questions: A split of a `QuestionTask`.
        tokenizer: One that `add_special_tokens` was called on.
        max_length: The longest sequence in tokens, the candidate part included.
        shuffle: Put candidates and supports in another order, as in training: one that depends on `seed`, on the
            epoch (`set_epoch`) and on the question's id alone.
        seed: Of the shuffling.
        max_chunks: Read only so many chunks of a question, where memory is short; all of them if not set.
        oversized: What to do with a question whose candidate part leaves no room for supports: "raise", or "skip" it.

    Attributes:
        questions: What is in the data set, in its order.
        skipped: Ids of the questions that are not. An honest accuracy counts these as wrong.
        cut: Ids of the questions that `max_chunks` takes supports from.
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
        oversized: str = "raise",
    ) -> None:
        import torch

        if oversized not in OVERSIZED:
            raise ValueError(f"oversized={oversized!r} is unknown; choose one of {', '.join(OVERSIZED)}.")
        if max_chunks is not None and max_chunks < 1:
            raise ValueError(f"max_chunks={max_chunks} must be at least 1; leave it out to read all chunks.")
        self.max_length, self.max_chunks = max_length, max_chunks
        self.shuffle, self.seed = shuffle, seed
        # Shared memory, so that loader workers which outlive an epoch see the next one.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._tokenized: list[TokenizedQuestion] = []
        kept, skipped = [], []
        for question in questions:
            tokenized = tokenize_question(question, tokenizer)
            try:
                check_room(tokenized, max_length)
            except CandidatePartTooLong:
                if oversized == "raise":
                    raise
                skipped.append(question.id)
                continue
            kept.append(question)
            self._tokenized.append(tokenized)
        self.questions, self.skipped = tuple(kept), tuple(skipped)
        if skipped and not kept:
            raise ValueError(f"No question's candidates fit into max_length={max_length} tokens; raise it.")
        chunks = [self._count_chunks(question) for question in self._tokenized]
        limit = max_chunks or max(chunks, default=1)
        self.cut = tuple(question.id for question, count in zip(kept, chunks, strict=True) if count > limit)
        self.lengths = tuple(
            self._count_tokens(question, min(count, limit))
            for question, count in zip(self._tokenized, chunks, strict=True)
        )

    def set_epoch(self, epoch: int) -> None:
        """Let the shuffling be that of `epoch`."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self._tokenized)

    def __getitem__(self, index: int) -> QuestionInput:
        question = self._tokenized[index]
        if self.shuffle:
            question = shuffled(question, Random(f"{self.seed}/{int(self._epoch)}/{question.id}"))
        return split_into_chunks(question, self.max_length, self.max_chunks)

    def _room(self, question: TokenizedQuestion) -> int:
        return self.max_length - question.candidate_part_length

    def _count_chunks(self, question: TokenizedQuestion) -> int:
        return max(1, ceil(question.supports_length / max(1, self._room(question))))

    def _count_tokens(self, question: TokenizedQuestion, chunks: int) -> int:
        supports = min(question.supports_length, chunks * self._room(question))
        return chunks * question.candidate_part_length + supports
