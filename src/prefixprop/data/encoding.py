"""From texts to token ids: cut at the model's limit, or in chunks that together hold the whole document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TokenIds = NDArray[np.int32]  # 4 bytes per token; Python's lists would take 36

# Bounds the memory of long documents, at no cost in speed: while it encodes, the tokenizer takes some fifty bytes for
# each character.
_TEXTS_AT_ONCE = 256
_CHARACTERS_AT_ONCE = 2**21


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents as token ids, special tokens included, cut at `max_length` and without padding.

    `lengths` counts the tokens before cutting, special tokens included.
    """

    input_ids: tuple[TokenIds, ...]
    lengths: tuple[int, ...]
    max_length: int

    def over_limit(self) -> list[int]:
        """The indices of the documents that were cut."""
        return [index for index, length in enumerate(self.lengths) if length > self.max_length]


@dataclass(frozen=True)
class ChunkedDocuments:
    """Documents in chunks of at most `max_length` token ids, the chunks of a document one after the other.

    `documents[i]` is the index of the document that chunk `i` is part of.
    """

    input_ids: tuple[TokenIds, ...]
    documents: tuple[int, ...]
    max_length: int


def encode_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> EncodedDocuments:
    """Encode every text as the tokenizer does with `truncation=True`; an empty text is its special tokens only."""
    frame = Frame.of(tokenizer, max_length)
    input_ids, lengths = [], []
    for content in contents(texts, tokenizer):
        input_ids.append(frame.around(content[: frame.room]))
        lengths.append(len(content) + frame.size)
    return EncodedDocuments(tuple(input_ids), tuple(lengths), max_length)


def chunk_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> ChunkedDocuments:
    """Encode every text in as many chunks as it needs, each with the special tokens of a whole document.

    Every token of a text is in exactly one chunk, all chunks but the last are full, and an empty text is one chunk.
    """
    frame = Frame.of(tokenizer, max_length)
    input_ids, documents = [], []
    for index, content in enumerate(contents(texts, tokenizer)):
        for start in range(0, max(len(content), 1), frame.room):
            input_ids.append(frame.around(content[start : start + frame.room]))
            documents.append(index)
    return ChunkedDocuments(tuple(input_ids), tuple(documents), max_length)


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer puts around a text, and the room they leave."""

    before: TokenIds
    after: TokenIds
    room: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Frame:
        # Seen on an example, because only some tokenizers have a method that adds the special tokens to ids.
        example = tokenizer("a", return_special_tokens_mask=True)
        content = [index for index, special in enumerate(example["special_tokens_mask"]) if not special]
        before = np.array(example["input_ids"][: content[0]], dtype=np.int32)
        after = np.array(example["input_ids"][content[-1] + 1 :], dtype=np.int32)
        room = max_length - len(before) - len(after)
        if room < 1:
            raise ValueError(
                f"max_length={max_length} leaves no room for a text: the tokenizer adds {len(before) + len(after)} "
                "special tokens; choose a larger max_length."
            )
        return cls(before, after, room)

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, content: TokenIds) -> TokenIds:
        return np.concatenate([self.before, content, self.after])


def readable(text: str) -> str:
    """The text with a replacement character for half a surrogate pair, such as an emoji that was cut in two."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def contents(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[TokenIds]:
    """The token ids of every text, uncut and without special tokens."""
    for batch in _batches(texts):
        for ids in _encoded([readable(text) for text in batch], tokenizer):
            yield np.array(ids, dtype=np.int32)


def _encoded(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        # Quiet, because it warns of long texts, which are cut or chunked here.
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        return encoded["input_ids"]
    # As the tokenizer itself calls it, but without the place of every token in its text: half as fast again.
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == _TEXTS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
