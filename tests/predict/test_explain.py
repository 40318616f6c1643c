"""Which passages speak for a label: offsets, scores by both ways, every method, long documents, the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logit

from prefixprop import load_run
from prefixprop.backbones.base import Text
from prefixprop.evaluate import Mix, softmax
from prefixprop.evaluate.baseline import fit_tfidf
from prefixprop.evaluate.mixing import READERS, WORDS, mean_answer
from prefixprop.predict import TrainedModel
from prefixprop.predict import explain as module
from prefixprop.predict.explain import Explanation, Passage, explanations_page
from prefixprop.tuners.reading import text_to_read

from tiny_runs import LABEL_NAMES, make_run, texts

ROOM = 30  # words in a piece of 32 tokens


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainedModel]:
    found = {}
    for method in ("prefix-propagation", "prefix-tuning", "prefix-reading", "lora", "head-only", "fine-tuning"):
        found[method] = load_run(make_run(tmp_path_factory.mktemp("explain"), method, family="roberta"), "cpu")
    (words,) = fit_tfidf(texts(60, seed=9), np.arange(60) % 3, 3, [1.0])
    found["tfidf"] = replace(found["prefix-reading"], model=None, mix=Mix({WORDS: 0}, {WORDS: 0.7}), words=words)
    mix = Mix({READERS: 0, WORDS: 0}, {READERS: 0.5, WORDS: 0.8})
    found["readers"] = replace(found["prefix-reading"], mix=mix, words=words)
    return found


@pytest.fixture
def _short_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORDS", 6)


def document(words: int, seed: int = 3) -> str:
    return " ".join(" ".join(texts(20, seed=seed)).split()[:words])


def one(run: TrainedModel, text: str, **options: Any) -> Explanation:
    ((explanation,),) = run.explain([text], **options)
    return explanation


def odds(run: TrainedModel, text: str, label: str) -> float:
    return float(logit(next(run.predict_stream([text])).probabilities[label]))


def softmax_of(run: TrainedModel, text: str) -> list[float]:
    return list(next(run.predict_stream([text])).probabilities.values())


# --- passages -------------------------------------------------------------------------------------------------------

SENTENCE = "The court heard the case of the two brothers again."


@pytest.mark.parametrize(
    ("text", "count", "ends"),
    [
        (" ".join([SENTENCE] * 30), range(5, 8), "."),
        ("\n\n".join(["A heading"] + [SENTENCE.rstrip(".")] * 30), range(5, 8), "again"),
        ("word " * 300, range(4, 6), "word"),
        ("彼は裁判所で弁護士と話した。" * 40, range(4, 9), "。"),
        ("  " + SENTENCE + "\n", range(1, 2), "."),
        (" \n", range(1), ""),
        ("", range(1), ""),
    ],
    ids=["sentences", "blank lines", "windows", "no spaces", "short", "blank", "empty"],
)
def test_passages_are_all_of_the_text(runs: dict[str, TrainedModel], text: str, count: range, ends: str) -> None:
    passages = one(runs["tfidf"], text).passages
    assert len(passages) in count
    assert all(text[passage.start : passage.end] == passage.text for passage in passages)
    assert all(passage.text.endswith(ends) and passage.text == passage.text.strip() for passage in passages)
    assert "".join("".join(passage.text for passage in passages).split()) == "".join(text.split())


# --- scores ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_short_passages")
@pytest.mark.parametrize(
    "method",
    ["prefix-propagation", "prefix-tuning", "prefix-reading", "lora", "head-only", "fine-tuning", "tfidf", "readers"],
)
def test_a_score_is_what_the_label_loses_without_the_passage(runs: dict[str, TrainedModel], method: str) -> None:
    run, text = runs[method], document(ROOM - 2)
    found = one(run, text, way="occlusion")
    assert (found.label, found.confidence) == (
        run.predict([text])[0].label,
        pytest.approx(max(softmax_of(run, text))),
    )
    assert len(found.passages) > 2 and found.passages[-1].end == len(text)
    for passage in found.passages:
        without = (text[: passage.start].rstrip() + " " + text[passage.end :].lstrip()).strip()
        expected = odds(run, text, found.label) - odds(run, without, found.label)
        assert passage.score == pytest.approx(expected, abs=1e-5)
    assert max(abs(passage.score) for passage in found.passages) > 5e-5


@pytest.mark.usefixtures("_short_passages")
@pytest.mark.parametrize("family", ["roberta", "longformer", "modernbert"])
def test_hidden_tokens_are_as_if_the_readers_text_had_none(tmp_path: Path, family: str) -> None:
    run = load_run(make_run(tmp_path, "prefix-reading", family=family), "cpu")
    text = document(ROOM - 2)
    found = one(run, text)
    (_, (beside,)) = run.explain([document(9, seed=4), text], batch_tokens=70)  # padded, two passages at once
    scores = [passage.score for passage in found.passages]
    assert [passage.score for passage in beside.passages] == pytest.approx(scores, abs=1e-4)
    (_, bank), *_ = run.model._all_banks(torch.device("cpu")).values()
    ids = torch.tensor([run.tokenizer(text)["input_ids"]])
    label, answers = LABEL_NAMES.index(found.label), []
    with torch.inference_mode():
        read = text_to_read(run.model.backbone, {"input_ids": ids})
        for start, end in [(0, 0), *((passage.start, passage.end) for passage in found.passages)]:
            before, inside = len(text[:start].split()), len(text[start:end].split())
            kept = torch.tensor([n for n in range(ids.shape[1]) if not 1 + before <= n < 1 + before + inside])
            states = [state[:, kept] for state in read.states]
            pattern = type(read.pattern)(read.pattern.is_masked[:, kept], read.pattern.is_global[:, kept])
            logits = bank(Text(tuple(states), pattern, kept[None])).double().numpy()
            answers.append(softmax(mean_answer(logits) / run.temperature.value)[0, label])
    expected = logit(answers[0]) - logit(answers[1:])
    assert scores == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("method", ["tfidf", "readers"])
def test_the_passage_that_decides_has_the_highest_score(runs: dict[str, TrainedModel], method: str) -> None:
    learned = [f"{'goal' if number % 2 else 'verdict'} {text}" for number, text in enumerate(texts(60, seed=1))]
    (words,) = fit_tfidf(learned, np.arange(60) % 2, 3, [1.0])
    weights = {part: 1.0 if part == WORDS else 0.01 for part in runs[method].mix.used}  # type: ignore[union-attr]
    run = replace(runs[method], words=words, mix=Mix(dict.fromkeys(weights, 0), weights))
    parts = ["nothing new " * 35] * 4
    parts[2] += "but a goal . "
    found = one(run, "".join(parts))  # TF-IDF reads on where readers do not
    assert found.label == LABEL_NAMES[1]
    assert "goal" in found.strongest[0].text
    assert found.strongest[0].score > 2 * abs(found.strongest[1].score)


# --- long documents, several labels ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("_short_passages")
@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-reading"])
def test_a_long_document_in_chunks(runs: dict[str, TrainedModel], method: str) -> None:
    run, text = runs[method], document(100)
    words = text.split()
    found = one(run, text, long="chunk-average", way="occlusion")
    assert found.passages[-1].end == len(text)
    label = LABEL_NAMES.index(found.label)

    def probability(first: int, last: int) -> float:
        """Without the words [first, last), each of which leaves the chunk that it stood in."""
        chunks = [
            " ".join(words[n] for n in range(start, min(start + ROOM, len(words))) if not first <= n < last)
            for start in range(0, len(words), ROOM)
        ]
        answers = [softmax_of(run, chunk)[label] for chunk in chunks if chunk]
        return float(np.average(answers, weights=[len(chunk.split()) + 2 for chunk in chunks if chunk]))

    assert found.confidence == pytest.approx(probability(0, 0), abs=1e-6)
    for passage in found.passages:
        first = len(text[: passage.start].split())
        expected = logit(probability(0, 0)) - logit(probability(first, first + len(passage.text.split())))
        assert passage.score == pytest.approx(expected, abs=1e-4)


@pytest.mark.usefixtures("_short_passages")
def test_a_document_that_is_cut_is_explained_as_far_as_it_is_read(runs: dict[str, TrainedModel]) -> None:
    text = document(100)
    for method, reads_all in (("prefix-propagation", False), ("prefix-reading", False), ("readers", True)):
        found = one(runs[method], text)
        last = found.passages[-1]
        assert (last.end == len(text)) == reads_all
        assert len(text[: last.start].split()) < ROOM or reads_all
        assert found.confidence == pytest.approx(max(softmax_of(runs[method], text)))


def test_each_of_several_labels(runs: dict[str, TrainedModel]) -> None:
    text = document(20)
    some = replace(runs["prefix-propagation"], thresholds=(0.0, 2.0, 0.0))
    (found,) = some.explain([text])
    assert {explanation.label for explanation in found} == {LABEL_NAMES[0], LABEL_NAMES[2]}
    assert [explanation.confidence for explanation in found] == sorted((e.confidence for e in found), reverse=True)
    none = replace(some, thresholds=(2.0,) * 3)
    ((only,),) = none.explain([text])
    assert only.label == some.predict([text])[0].label
    assert runs["tfidf"].explain([]) == []


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("attention", "way='attention' is unknown; choose one of occlusion, reading"),
        ("reading", "is for runs of readers .* this is a run of prefix-propagation: choose 'occlusion'"),
    ],
)
def test_wrong_ways(runs: dict[str, TrainedModel], way: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runs["prefix-propagation"].explain(["w4"], way=way)


def test_text_never_becomes_markup() -> None:
    hostile = '<script>alert("1")</script> {{ 7 * 7 }} </div>'
    explanation = Explanation("<b>art</b>", 0.9, (Passage(0, 10, hostile[:10], -1.5),), hostile)
    page = explanations_page("<i>", [('"><img src=x>', explanation)])
    assert not any(part in page for part in ("<script>", "<img", "<b>art", "<i>", "49"))
    assert "&lt;script&gt;" in page and 'class="against"' in page and "-1.50" in page
    assert f"The rest, {len(hostile) - 10} characters, was not read." in page
