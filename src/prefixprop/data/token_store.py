"""Texts as token ids on the disk: encoded once, found again by every run that reads them with the same tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prefixprop.data.cache import Writer, stored
from prefixprop.data.encoding import contents
from prefixprop.data.ragged import RaggedArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LAYOUT = 1  # of an entry; another number makes all entries anew
_SILENT_SECONDS = 5


class TokenLists(RaggedArray):
    """The token ids of texts, without special tokens and uncut: `lists[i]` are those of text `i`.

    `tokens` has all of them, one text after the other, and `offsets` where each text begins; both are memory maps.
    `note` says why they are in memory, if they are.
    """

    def __init__(self, tokens: NDArray[Any], offsets: NDArray[np.int64], note: str | None = None) -> None:
        super().__init__(tokens, offsets)
        self.tokens, self.note = tokens, note


def stored_tokens(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, key: str, total: int | None = None
) -> TokenLists:
    """The token ids of texts, which are encoded now unless the cache has them; `key` identifies the texts.

    A progress bar is shown if it takes long; `total` is how many texts there are.
    """
    from tqdm import tqdm  # type: ignore[import-untyped]

    largest = max(tokenizer.get_vocab().values(), default=0)
    id_type = np.dtype(np.uint16 if largest < 2**16 else np.int32)

    def fill(writer: Writer) -> None:
        end = 0
        writer.append("tokens", np.zeros(0, id_type))
        writer.append("offsets", np.array([end]))
        # No bar where standard error is a file.
        bar = tqdm(texts, "Encoding", total, leave=False, unit=" texts", delay=_SILENT_SECONDS, disable=None)
        for ids in contents(bar, tokenizer):
            end += len(ids)
            writer.append("tokens", ids.astype(id_type))
            writer.append("offsets", np.array([end]))

    can_refill = iter(texts) is not texts
    entry = stored("tokens", f"{_LAYOUT}/{_identity(tokenizer)}/{key}", fill, can_refill)
    return TokenLists(entry.arrays["tokens"], entry.arrays["offsets"], entry.note)


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
