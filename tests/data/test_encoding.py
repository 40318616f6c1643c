from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from prefixprop.data import chunk_documents, encode_documents
from prefixprop.data.encoding import readable
from prefixprop.models import load_default

TEXTS = ["", " ", "word", "one two three four five six seven eight", "naïve café\n" * 40, "the </s> sign", "x" * 300]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_default()[1]


def letters(special_tokens: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are letters, with the special tokens of a template."""
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", "<pad>", *"abcdefghij"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=special_tokens, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<pad>"
    )


@pytest.mark.parametrize("max_length", [3, 8, 10, 64, 4096])
def test_equals_the_tokenizer_with_truncation(tokenizer: PreTrainedTokenizerFast, max_length: int) -> None:
    encoded = encode_documents(TEXTS, tokenizer, max_length)
    expected = tokenizer(TEXTS, truncation=True, max_length=max_length)["input_ids"]
    assert [ids.tolist() for ids in encoded.input_ids] == expected
    uncut = [len(ids) for ids in tokenizer(TEXTS)["input_ids"]]
    assert list(encoded.lengths) == uncut
    assert encoded.over_limit() == [index for index, length in enumerate(uncut) if length > max_length]
    assert encoded.over_limit() or max_length == 4096
    assert all(ids.dtype == np.int32 for ids in encoded.input_ids)


def test_an_empty_document_is_its_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    expected = [tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert encode_documents([""], tokenizer, 16).input_ids[0].tolist() == expected
    chunked = chunk_documents(["", ""], tokenizer, 16)
    assert [ids.tolist() for ids in chunked.input_ids] == [expected, expected]
    assert chunked.documents == (0, 1)


def test_a_document_at_the_limit_is_not_over_it() -> None:
    tokenizer = letters("<s> $A </s>")
    texts = ["a" * length for length in (7, 8, 9)]
    encoded = encode_documents(texts, tokenizer, 10)
    assert encoded.lengths == (9, 10, 11)
    assert [len(ids) for ids in encoded.input_ids] == [9, 10, 10]
    assert encoded.over_limit() == [2]
    chunked = chunk_documents(texts, tokenizer, 10)
    assert [len(ids) for ids in chunked.input_ids] == [9, 10, 10, 3]
    assert chunked.documents == (0, 1, 2, 2)


@given(
    texts=st.lists(st.text("abcdefghij", max_size=40), max_size=5),
    max_length=st.integers(3, 20),
    template=st.sampled_from(["<s> $A </s>", "<s> $A", "$A </s> </s>", "$A"]),
)
def test_every_token_is_in_exactly_one_chunk(texts: list[str], max_length: int, template: str) -> None:
    tokenizer = letters(template)
    before, after = (part.split() for part in template.split("$A"))
    chunked = chunk_documents(texts, tokenizer, max_length)
    assert sorted(chunked.documents) == list(chunked.documents) and set(chunked.documents) == set(range(len(texts)))
    rebuilt = [""] * len(texts)
    for index, ids in zip(chunked.documents, chunked.input_ids, strict=True):
        tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
        assert len(tokens) <= max_length
        assert tokens[: len(before)] == before and tokens[len(tokens) - len(after) :] == after
        content = "".join(tokens[len(before) : len(tokens) - len(after)])
        assert not rebuilt[index] or content, "only an empty document has an empty chunk"
        rebuilt[index] += content
    assert rebuilt == texts
    encoded = encode_documents(texts, tokenizer, max_length)
    for index, ids in enumerate(encoded.input_ids):
        first = chunked.documents.index(index)
        assert ids.tolist() == chunked.input_ids[first].tolist()
        # One chunk more than needed, or one less, would show here.
        room = max_length - len(before) - len(after)
        assert chunked.documents.count(index) == max(1, -(-len(texts[index]) // room))


def test_more_documents_than_are_tokenized_at_once(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = [f"document {number}" for number in range(600)]
    encoded = encode_documents(texts, tokenizer, 64)
    assert [ids.tolist() for ids in encoded.input_ids] == tokenizer(texts)["input_ids"]


def test_nothing_to_encode(tokenizer: PreTrainedTokenizerFast) -> None:
    assert encode_documents([], tokenizer, 64).input_ids == ()
    assert chunk_documents([], tokenizer, 64).input_ids == ()


def test_long_documents_cause_no_warning(tokenizer: PreTrainedTokenizerFast, caplog: Any) -> None:
    transformers_logger = logging.getLogger("transformers")
    transformers_logger.addHandler(caplog.handler)
    try:
        assert encode_documents(["word " * 5000], tokenizer, 4096).lengths[0] > 5000
    finally:
        transformers_logger.removeHandler(caplog.handler)
    assert not caplog.records


@pytest.mark.parametrize("encode", [encode_documents, chunk_documents])
def test_a_limit_without_room_for_text(tokenizer: PreTrainedTokenizerFast, encode: Any) -> None:
    with pytest.raises(ValueError, match="max_length=2 leaves no room for a text: the tokenizer adds 2 special"):
        encode(["text"], tokenizer, 2)


def test_half_an_emoji_is_replaced(tokenizer: PreTrainedTokenizerFast) -> None:
    broken, whole = (encode_documents([text], tokenizer, 16) for text in ("w1 \ud83d w2", "w1 \ufffd w2"))
    assert list(broken.input_ids[0]) == list(whole.input_ids[0])
    assert readable("\ud83d\ude00 a\ude00") == "\U0001f600 a\ufffd"
