"""Invented questions over the words of the tiny models, and a tokenizer for them."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from prefixprop.data import Question, add_special_tokens

from tiny import VOCABULARY

FIRST_SPECIAL_TOKEN = VOCABULARY
QUESTION, END_QUESTION, ENTITY, END_ENTITY = range(VOCABULARY, VOCABULARY + 4)
WORDS = [f"w{number}" for number in range(4, VOCABULARY)]


def tiny_tokenizer(special_tokens: bool = True) -> PreTrainedTokenizerFast:
    """One token per word: `w17` is token 17; `<s>`, `<pad>`, `</s>` and `<unk>` come first."""
    vocabulary = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    if special_tokens:
        add_special_tokens(fast)
    return fast


def sentence(generator: random.Random, length: int) -> str:
    return " ".join(generator.choices(WORDS, k=length))


def invented(count: int, seed: int = 0, supports: int = 6) -> list[Question]:
    """Questions with 2 to 5 candidates of 1 to 3 words, and up to `supports` documents of up to 40 words."""
    generator = random.Random(seed)
    questions = []
    for number in range(count):
        candidates = tuple(sentence(generator, generator.randint(1, 3)) for _ in range(generator.randint(2, 5)))
        questions.append(
            Question(
                id=f"q{number}",
                query=sentence(generator, 3),
                candidates=candidates,
                supports=tuple(
                    sentence(generator, generator.randint(1, 40)) for _ in range(generator.randint(1, supports))
                ),
                answer=generator.randrange(len(candidates)),
            )
        )
    return questions


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Any question whose candidate part is at most 64 tokens."""
    texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
    candidates = draw(st.lists(texts, min_size=1, max_size=5))
    return Question(
        id=draw(st.text(max_size=5)),
        query=draw(texts),
        candidates=tuple(candidates),
        supports=tuple(draw(st.lists(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join), max_size=8))),
        answer=draw(st.integers(0, len(candidates) - 1)),
    )
