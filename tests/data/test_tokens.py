"""Texts as token ids: those of the whole text, however little of it is encoded; the token cache; padded batches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from prefixprop.data import DocumentCollator, chunk_documents, encode_documents, pad_documents
from prefixprop.data import tokens as module
from prefixprop.data.cache import RaggedArray, entries
from prefixprop.data.tokens import Frame, batches_by_length, readable, stored_tokens
from prefixprop.models import load_default

from tiny_questions import tiny_tokenizer

TEXTS = ["", " ", "word", "one two three four five six seven eight", "naïve café\n" * 40, "the </s> sign", "x" * 300]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFIXPROP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
    assert list(encoded.tokens) == [len(ids) for ids in tokenizer(TEXTS)["input_ids"]]
    assert encoded.tokens_read == [len(ids) for ids in expected] and encoded.chunks == [1] * len(TEXTS)
    assert encoded.tokens_read != list(encoded.tokens) or max_length == 4096
    assert all(ids.dtype == np.int32 for ids in encoded.input_ids)


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


def words_of_bert() -> PreTrainedTokenizerFast:
    """WordPiece, which makes one unknown token of a word of more than a hundred letters."""
    pieces = ["[UNK]", "[PAD]", *"abcdeé. ", *(f"##{letter}" for letter in "abcdeé"), "ab", "##ab", "cde", "##cd"]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")


LONG_TEXTS = st.one_of(
    st.text("abcdeé", max_size=3000),  # no white space
    st.builds(str.__mul__, st.text("ab \n.", min_size=1, max_size=5), st.integers(1, 800)),
    st.lists(st.text("abcdeé.", min_size=1, max_size=12)).map(" ".join).map(lambda text: text * 5),
    st.lists(
        st.sampled_from(["word", "</s>", "<mask>", "  ", "\n", " ", "ab" * 70, "caf\u0301e", "\ud83d", "日本"])
    ).map(lambda words: "".join(words) * 9),
)


@pytest.mark.parametrize("kind", ["default", "bert"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=st.lists(LONG_TEXTS, max_size=3), room=st.integers(1, 60))
def test_the_first_tokens_are_those_of_the_whole_text(
    tokenizer: PreTrainedTokenizerFast, kind: str, texts: list[str], room: int
) -> None:
    tokenizer = tokenizer if kind == "default" else words_of_bert()
    whole = tokenizer([readable(text) for text in texts], add_special_tokens=False)["input_ids"] if texts else []
    frame = Frame.of(tokenizer, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHARACTERS_PER_TOKEN", 1)
        patch.setattr(module, "_MARGIN", 100)
        encoded = encode_documents(texts, tokenizer, room + frame.size)
        patch.setattr(module, "_PIECE", 5000)
        stored = list(module.contents(texts, tokenizer))
    expected = [frame.around(np.array(ids[:room], dtype=np.int32)).tolist() for ids in whole]
    assert [ids.tolist() for ids in encoded.input_ids] == expected
    is_cut = [read < total for read, total in zip(encoded.tokens_read, encoded.tokens, strict=True)]
    assert is_cut == [len(ids) > room for ids in whole]
    for text, (ids, total), expected_ids in zip(texts, stored, whole, strict=True):
        assert total == len(ids)
        # Longer words are divided where a piece ends.
        assert ids.tolist() == expected_ids or max(map(len, re.split(r"(?<=\w)\s", text))) > 4000


def test_a_huge_text_is_never_encoded_at_once(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Some words, and 12 more of them. " * 40_000
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    given_sizes: list[int] = []
    encode = module._encoded

    def counted(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
        given_sizes.extend(map(len, texts))
        return encode(texts, tokenizer)

    monkeypatch.setattr(module, "_encoded", counted)
    encoded = encode_documents([text], tokenizer, 4096)
    assert encoded.input_ids[0][1:-1].tolist() == whole[:4094] and encoded.tokens_read == [4096]
    assert encoded.tokens[0] == pytest.approx(len(whole), rel=0.01)  # by its characters
    assert max(given_sizes) < 50_000
    chunked = chunk_documents([text], tokenizer, 4096).input_ids
    assert [token for chunk in chunked for token in chunk[1:-1].tolist()] == whole and max(given_sizes) <= 2**19
    solid = "x" * 2**20
    assert len(chunk_documents([solid], tokenizer, 4096).input_ids) > 10 and max(given_sizes) <= 2**19


CHINESE = "政府周四宣布了一系列新措施以支持受能源价格上涨影响的小企业"


@pytest.mark.parametrize(
    ("text", "words", "is_told"),
    [
        (
            "The committee met on Thursday, and adjourned after an hour (no vote was taken): it meets again.",
            21,
            False,
        ),
        ("Der Bundestag hat beschlossen, die Förderung erneuerbarer Energien deutlich auszuweiten. " * 2, 24, True),
        (CHINESE, 15, False),  # too few words to judge by
        (CHINESE * 9, 131, True),
        ("", 0, False),
    ],
    ids=["English", "German", "few words", "Chinese", "empty"],
)
def test_texts_that_the_tokenizer_shreds(
    tokenizer: PreTrainedTokenizerFast, text: str, words: int, is_told: bool
) -> None:
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert module.count_words(text) == words
    told = module.shredded(tokens, words)
    assert (told is not None) == is_told
    assert told is None or f"{tokens / words:.1f} tokens per word" in told
    longer = "\n".join([text] * 100)  # whose words are counted in its beginning
    assert module.count_words(longer) == pytest.approx(100 * words, rel=0.1)


def test_texts_without_any_token_and_half_an_emoji(tokenizer: PreTrainedTokenizerFast) -> None:
    assert encode_documents([], tokenizer, 64).input_ids == () == chunk_documents([], tokenizer, 64).input_ids
    bare = letters("$A")
    encoded = encode_documents(["", "ab"], bare, 8)
    assert [ids.tolist() for ids in encoded.input_ids] == [[], [3, 4]]
    assert [ids.tolist() for ids in encode_documents([" \n" * 9000], words_of_bert(), 8).input_ids] == [[]]
    with pytest.raises(ValueError, match="max_length=2 leaves no room for a text: the tokenizer adds 2 special"):
        encode_documents(["text"], tokenizer, 2)
    assert readable("\ud83d\ude00 a\ude00") == "\U0001f600 a\ufffd"


def refused() -> Iterator[str]:
    raise AssertionError("the tokens were there")
    yield ""


@pytest.mark.parametrize("load", [lambda: load_default()[1], tiny_tokenizer])
def test_stored_tokens_are_those_of_the_tokenizer_without_special_tokens(folder: Path, load: Any) -> None:
    tokenizer, texts = load(), [*TEXTS, "half an emoji \ud83d"]
    expected = tokenizer([readable(text) for text in texts], add_special_tokens=False)["input_ids"]
    for limit in (None, 3):
        lists = stored_tokens(texts, tokenizer, "texts", limit)
        wanted = expected if limit is None else [ids[: limit + 1] for ids in expected]
        assert isinstance(lists, RaggedArray) and [ids.tolist() for ids in lists] == wanted
        assert isinstance(lists.values, np.memmap) and lists.values.dtype == np.uint16 and lists.note is None
        assert [ids.tolist() for ids in stored_tokens(refused(), tokenizer, "texts", limit)] == wanted
    assert len(entries()) == 2


def test_no_texts_and_more_texts_than_are_encoded_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer()
    assert len(stored_tokens([], tokenizer, "none")) == 0
    monkeypatch.setattr(module, "_CHARACTERS_AT_ONCE", 40)
    texts = [f"w{number % 5} " * (number % 9) for number in range(600)]
    found = stored_tokens((text for text in texts), tokenizer, "many")
    assert [ids.tolist() for ids in found] == tokenizer(texts, add_special_tokens=False)["input_ids"]


def test_large_vocabularies_take_four_bytes(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(2**16)])
    (ids,) = stored_tokens(["<65000>"], tokenizer, "one")
    assert ids.dtype == np.int32 and tokenizer.convert_ids_to_tokens(ids.tolist()) == ["<65000>"]


def test_texts_tokenizer_and_limit_decide_but_not_how_the_tokenizer_was_used_last(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    stored_tokens(["w1 w2"], tokenizer, "texts")
    tokenizer(["w1 w2", "w3"], truncation=True, max_length=1, padding=True)
    stored_tokens(refused(), tokenizer, "texts")
    for key, limit in (("other texts", None), ("texts", 1)):
        with pytest.raises(AssertionError, match="the tokens were there"):
            stored_tokens(refused(), tokenizer, key, limit)
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


def test_tokenizers_without_a_backend(folder: Path) -> None:
    first, second = SlowTokenizer("abc"), SlowTokenizer("cba")
    assert stored_tokens(["abc"], first, "texts")[0].tolist() == [0, 1, 2]  # type: ignore[arg-type]
    assert stored_tokens(["abc"], second, "texts")[0].tolist() == [2, 1, 0]  # type: ignore[arg-type]
    stored_tokens(refused(), SlowTokenizer("abc"), "texts")  # type: ignore[arg-type]


# --- batches ------------------------------------------------------------------------------------------------------

ROWS = [np.array(ids, dtype=np.int32) for ids in ([5, 6, 7], [8], [9, 9])]


@given(lengths=st.lists(st.integers(1, 50)), budget=st.integers(1, 200))
def test_batches_hold_every_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(batches_by_length(lengths, budget))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget
    ordered = [lengths[index] for batch in batches for index in batch]
    assert ordered == sorted(lengths, reverse=True)


NOTHING = np.zeros(0, dtype=np.int32)


@pytest.mark.parametrize(
    ("rows", "length", "ids", "mask"),
    [
        (ROWS, None, [[5, 6, 7], [8, 1, 1], [9, 9, 1]], [[1, 1, 1], [1, 0, 0], [1, 1, 0]]),
        (ROWS[:1], 4, [[5, 6, 7, 1]], [[1, 1, 1, 0]]),
        (ROWS[:1], None, [[5, 6, 7]], None),  # without padding, no mask
        ([ROWS[2]] * 2, None, [[9, 9]] * 2, None),
        ([NOTHING] * 2, None, [[1]] * 2, None),  # one padding token
        ([NOTHING, ROWS[2]], None, [[1, 1], [9, 9]], [[1, 0], [1, 1]]),
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_documents(rows: list[Any], length: int | None, ids: list[Any], mask: list[Any] | None, side: str) -> None:
    padded = {name: tensor.tolist() for name, tensor in pad_documents(rows, 1, side, length).items()}
    expected = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
    if side == "left":  # the padding is behind the tokens in the table
        ids, mask = (
            [sorted(row, key=lambda one: one != pad) for row in table] for table, pad in ((ids, 1), (mask or [], 0))
        )
        expected = {name: {"input_ids": ids, "attention_mask": mask}[name] for name in expected}
    assert padded == expected
    if side == "right":
        items = [{"input_ids": row, "labels": label} for label, row in enumerate(rows)]
        batch = DocumentCollator(1, lambda longest: length or longest)(items)
        assert batch.pop("labels").tolist() == list(range(len(rows)))
        assert {name: tensor.tolist() for name, tensor in batch.items()} == expected
