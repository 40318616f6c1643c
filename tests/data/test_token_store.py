from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from prefixprop.data.cache import entries
from prefixprop.data.token_store import TokenLists, stored_tokens
from prefixprop.models import load_default

from tiny_questions import tiny_tokenizer

TEXTS = ["", "word", "one two three four five six", "naïve café\n" * 40, "the </s> sign", "half an emoji \ud83d"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFIXPROP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refused() -> Iterator[str]:
    raise AssertionError("the tokens were there")
    yield ""


@pytest.mark.parametrize("load", [lambda: load_default()[1], tiny_tokenizer])
def test_lists_are_those_of_the_tokenizer_without_special_tokens(load: Any) -> None:
    tokenizer = load()
    lists = stored_tokens(TEXTS, tokenizer, "texts", total=len(TEXTS))
    texts = [text.replace("\ud83d", "\ufffd") for text in TEXTS]
    expected = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert isinstance(lists, TokenLists) and [ids.tolist() for ids in lists] == expected
    assert isinstance(lists.tokens, np.memmap) and isinstance(lists.offsets, np.memmap)
    assert (lists.tokens.dtype, lists.offsets.dtype) == (np.uint16, np.int64)
    assert lists.tokens.tolist() == [token for ids in expected for token in ids] and lists.offsets[-1] == len(
        lists.tokens
    )
    assert [ids.tolist() for ids in stored_tokens(refused(), tokenizer, "texts")] == expected


def test_no_texts_and_more_texts_than_are_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer()
    assert len(stored_tokens([], tokenizer, "none")) == 0
    monkeypatch.setattr("prefixprop.data.encoding._CHARACTERS_AT_ONCE", 40)
    texts = [f"w{number % 5} " * (number % 9) for number in range(600)]
    found = stored_tokens((text for text in texts), tokenizer, "many")
    assert [ids.tolist() for ids in found] == tokenizer(texts, add_special_tokens=False)["input_ids"]


def test_large_vocabularies_take_four_bytes() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(2**16)])
    (ids,) = stored_tokens(["<65000>"], tokenizer, "one")
    assert ids.dtype == np.int32 and tokenizer.convert_ids_to_tokens(ids.tolist()) == ["<65000>"]


def test_the_texts_and_the_tokenizer_decide_but_not_how_it_was_used_last() -> None:
    tokenizer = tiny_tokenizer()
    stored_tokens(["w1 w2"], tokenizer, "texts")
    tokenizer(["w1 w2", "w3"], truncation=True, max_length=1, padding=True)
    stored_tokens(refused(), tokenizer, "texts")
    with pytest.raises(AssertionError, match="the tokens were there"):
        stored_tokens(refused(), tokenizer, "other texts")
    tokenizer.add_tokens([AddedToken("w1 w2")])
    (ids,) = stored_tokens(["w1 w2"], tokenizer, "texts")
    assert tokenizer.convert_ids_to_tokens(ids.tolist()) == ["w1 w2"] and len(entries()) == 2


class SlowTokenizer:
    """One without a backend: characters."""

    def __init__(self, alphabet: str) -> None:
        self.init_kwargs = {"do_lower_case": False}
        self.vocabulary = {letter: number for number, letter in enumerate(alphabet)}

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[self.vocabulary[letter] for letter in text] for text in texts]}


def test_tokenizers_without_a_backend() -> None:
    first, second = SlowTokenizer("abc"), SlowTokenizer("cba")
    assert stored_tokens(["abc"], first, "texts")[0].tolist() == [0, 1, 2]  # type: ignore[arg-type]
    assert stored_tokens(["abc"], second, "texts")[0].tolist() == [2, 1, 0]  # type: ignore[arg-type]
    stored_tokens(refused(), SlowTokenizer("abc"), "texts")  # type: ignore[arg-type]


def test_without_a_folder_the_tokens_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PREFIXPROP_CACHE", str(tmp_path / "file" / "cache"))
    tokenizer: PreTrainedTokenizerFast = tiny_tokenizer()
    lists = stored_tokens(iter(["w1 w2", "", "w3"]), tokenizer, "texts")
    assert lists.lengths.tolist() == [2, 0, 1] and lists.note is not None
