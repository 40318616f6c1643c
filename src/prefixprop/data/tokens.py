"""From texts to token ids, cut at the model's limit or in chunks that hold the whole document, and to padded batches.

While it encodes, a tokenizer takes some fifty bytes for each character, so a very long text is never given to it as a
whole: of a text that will be cut, only the beginning is encoded; one that is read whole is encoded piece by piece.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.cache import RaggedArray, Stored, Writer, stored

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

TokenIds = NDArray[np.int32]  # 4 bytes per token; Python's lists would take 36

# Bound the memory, at no cost in speed.
_TEXTS_AT_ONCE = 256
_CHARACTERS_AT_ONCE = 2**21
_PIECE = 2**19  # characters; a longer text that is read whole is encoded in several pieces

# How much of a text is encoded at first if it will be cut. The tokens at the end of what is encoded may differ from
# those of the whole text, so more of them are encoded than are needed.
_CHARACTERS_PER_TOKEN = 8
_MARGIN = 512  # tokens

# Where a text may be cut. Rather in front of a space: some tokenizers put one in front of other text.
_WORD_ENDS = (re.compile(r"\w(?= )"), re.compile(r"\w(?=\s)"))
_FARTHEST_WORD_END = 4096  # characters

# Words, in order to see how many tokens one takes: scripts without spaces have about two characters a word, and signs
# are words of their own.
_WITHOUT_SPACES, _SIGNS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff", r"!-/:-@\[-`{-~"
WORD = re.compile(rf"[{_WITHOUT_SPACES}]{{1,2}}|[{_SIGNS}]+|[^\s{_WITHOUT_SPACES}{_SIGNS}]+")
_COUNTED_CHARACTERS = 1024
# Texts of the data sets here take 1.1 to 1.4 tokens a word, other languages with the same tokenizer 1.9 to 8.5.
_MOST_TOKENS_PER_WORD, _FEWEST_WORDS = 1.8, 20

_ONE_AT_A_TIME = threading.Lock()  # a tokenizer that is set up and one that encodes must not be in two threads

_LAYOUT = 3  # of stored tokens; another number makes all entries anew
_SILENT_SECONDS = 5


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents as pieces of token ids, each with the tokenizer's special tokens and without padding.

    `documents[i]` is the index of the document that piece `i` is part of; the pieces of a document follow each other.
    `tokens` says how many tokens each whole document has, special ones included; see `contents`.
    """

    input_ids: tuple[TokenIds, ...]
    documents: tuple[int, ...]
    tokens: tuple[int, ...]
    special_tokens: int  # in every piece

    @cached_property
    def chunks(self) -> list[int]:
        """In how many pieces each document is."""
        return np.bincount(self.documents).tolist()

    @cached_property
    def tokens_read(self) -> list[int]:
        """How many tokens of each document are in its pieces; special ones are counted once."""
        lengths = np.bincount(self.documents, [len(ids) for ids in self.input_ids]).astype(int)
        return (lengths - (np.array(self.chunks) - 1) * self.special_tokens).tolist()

    def mean_answers(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """The log of the mean probability [documents, ...] of every document's pieces, weighted by their tokens."""
        if len(self.tokens) == len(self.input_ids):  # each is one piece
            return answers
        documents = np.array(self.documents)
        lengths = np.array([max(1, len(ids)) for ids in self.input_ids], dtype=np.float64)
        shares = lengths / np.bincount(documents, weights=lengths)[documents]
        weighted = answers + np.log(shares).reshape(-1, *[1] * (answers.ndim - 1))
        return np.logaddexp.reduceat(weighted, np.unique(documents, return_index=True)[1])


def encode_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> EncodedDocuments:
    """Encode every text as the tokenizer does with `truncation=True`; an empty text is its special tokens only."""
    return _in_pieces(texts, tokenizer, max_length, most=1)


def chunk_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> EncodedDocuments:
    """Encode every text in as many chunks as it needs, each with the special tokens of a whole document.

    Every token of a text is in exactly one chunk, all chunks but the last are full, and an empty text is one chunk.
    """
    return _in_pieces(texts, tokenizer, max_length)


def _in_pieces(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int, most: int | None = None
) -> EncodedDocuments:
    frame = Frame.of(tokenizer, max_length)
    input_ids, documents, tokens = [], [], []
    for index, (content, total) in enumerate(contents(texts, tokenizer, most and frame.room)):
        tokens.append(total + frame.size)
        for start in range(0, max(len(content), 1), frame.room)[:most]:
            input_ids.append(frame.around(content[start : start + frame.room]))
            documents.append(index)
    return EncodedDocuments(tuple(input_ids), tuple(documents), tuple(tokens), frame.size)


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer puts around a text, and the room that they leave for it."""

    before: TokenIds
    after: TokenIds
    room: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Frame:
        # Seen on an example, because only some tokenizers have a method that adds the special tokens to ids.
        with _ONE_AT_A_TIME:
            example = tokenizer("a", return_special_tokens_mask=True)
        content = [index for index, special in enumerate(example["special_tokens_mask"]) if not special]
        if not content:
            raise ValueError(f"The tokenizer {tokenizer.name_or_path!r} makes no tokens of 'a'; use another.")
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


def contents(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, limit: int | None = None
) -> Iterator[tuple[TokenIds, int]]:
    """The token ids of every text without special tokens, and how many the whole text has.

    The ids are all of them, or the first `limit`, and one if there are more. With a limit, they are those of the
    whole text, and the number is an estimate by characters where only the beginning of a very long text was encoded.
    Without one, a "word" of thousands of characters may be divided where a piece of the text ends.
    """
    size = _PIECE if limit is None else _CHARACTERS_PER_TOKEN * (limit + _MARGIN)
    for batch in _batches(texts):
        for text, ids in zip(batch, _encoded([_beginning(text, size) for text in batch], tokenizer), strict=True):
            if limit is not None:
                found, total = _first(limit + 1, ids, text, size, tokenizer)
                yield np.array(found, dtype=np.int32), total
            elif len(text) <= size:
                yield np.array(ids, dtype=np.int32), len(ids)
            else:
                pieces = chain.from_iterable(_encoded(some, tokenizer) for some in _batches(_pieces(text)))
                whole = np.fromiter(chain.from_iterable(pieces), dtype=np.int32)
                yield whole, len(whole)


def _first(
    count: int, ids: list[int], text: str, size: int, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], int]:
    """The first tokens of a text, and about how many it has; `ids` are those of its first `size` characters.

    More of the text is encoded if more are needed.
    """
    while size < len(text) and len(ids) < count + _MARGIN:
        size *= 2
        (ids,) = _encoded([_beginning(text, size)], tokenizer)
    encoded = _word_end(text, size)
    return ids[:count], len(ids) if encoded == len(text) else round(len(ids) * len(text) / max(1, encoded))


def count_words(text: str) -> int:
    """About how many words a text has, by its beginning."""
    beginning = text[:_COUNTED_CHARACTERS]
    return round(len(WORD.findall(beginning)) * len(text) / max(1, len(beginning)))


def shredded(tokens: int, words: int) -> str | None:
    """What to tell of texts whose words the tokenizer splits into many tokens; None if it does not."""
    if words < _FEWEST_WORDS or tokens <= _MOST_TOKENS_PER_WORD * words:
        return None
    return (
        f"the texts take {tokens / words:.1f} tokens per word, where English takes about 1.2: the encoder's "
        "tokenizer splits their language or script into small pieces; expect worse answers, or choose another --model"
    )


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = _word_end(text, start + _PIECE)
        yield text[start:end]
        start = end


def _beginning(text: str, size: int) -> str:
    return text[: _word_end(text, size)]


def _word_end(text: str, limit: int) -> int:
    """Where to cut a text: at the last end of a word before `limit`, if there is one near."""
    if limit >= len(text):
        return len(text)
    for pattern in _WORD_ENDS:
        if found := list(pattern.finditer(text, max(0, limit - _FARTHEST_WORD_END), limit)):
            return found[-1].end()
    return limit


def _encoded(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    texts = list(map(readable, texts))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    with _ONE_AT_A_TIME:
        if backend is None:
            # Quiet, because it warns of long texts, which are cut or chunked here.
            encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
            return encoded["input_ids"]
        # As the tokenizer itself calls it, but without the place of every token in its text: half as fast again.
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


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


class StoredTokens(RaggedArray):
    """The tokens of texts; `totals` says how many each whole text has."""

    def __init__(self, entry: Stored) -> None:
        super().__init__(entry.arrays["tokens"], entry.arrays["offsets"], entry.note)
        self.totals: NDArray[np.int64] = entry.arrays["totals"]


def stored_tokens(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    key: str,
    limit: int | None = None,
) -> StoredTokens:
    """The `contents` of texts, which are encoded now unless the cache has them; `key` identifies the texts.

    They are iterated a second time if the disk fails meanwhile. A progress bar is shown if it takes long.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    largest = max(tokenizer.get_vocab().values(), default=0)
    id_type = np.dtype(np.uint16 if largest < 2**16 else np.int32)

    def fill(writer: Writer) -> None:
        end = 0
        writer.append("tokens", np.zeros(0, id_type))
        writer.append("totals", np.zeros(0, np.int64))
        writer.append("offsets", np.array([end]))
        # No bar where standard error is a file.
        bar = tqdm(texts, "Encoding", leave=False, unit=" texts", delay=_SILENT_SECONDS, disable=None)
        for ids, of_text in contents(bar, tokenizer, limit):
            end += len(ids)
            writer.append("totals", np.array([of_text], np.int64))
            writer.append("tokens", ids.astype(id_type))
            writer.append("offsets", np.array([end]))

    return StoredTokens(stored("tokens", f"{_LAYOUT}/{_identity(tokenizer)}/{limit}/{key}", fill))


def _identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """The same for tokenizers that encode alike."""
    import tokenizers
    import transformers

    facts: list[Any] = [type(tokenizer).__qualname__, getattr(tokenizer, "split_special_tokens", None)]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        # How the last call cut and padded; texts are encoded without either.
        facts += [tokenizers.__version__, content | {"truncation": None, "padding": None}]
    else:
        facts += [transformers.__version__, tokenizer.get_vocab(), repr(sorted(tokenizer.init_kwargs.items()))]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# --- batches ------------------------------------------------------------------------------------------------------


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
    """Batches of items with `input_ids`, as arrays, and `labels`, padded on the right as for predictions.

    Hugging Face's collators use Python lists, which for thousands of tokens takes longer than a step on a GPU.
    """

    pad_token_id: int
    padded_length: Callable[[int], int] = int  # of the length of the longest document

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        import torch

        rows = [item["input_ids"] for item in items]
        length = self.padded_length(max(1, *map(len, rows)))
        padded = pad_documents(rows, self.pad_token_id, length=length)
        return padded | {"labels": torch.tensor([item["labels"] for item in items])}
