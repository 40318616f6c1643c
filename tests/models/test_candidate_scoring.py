"""Candidate scoring: scores of real batches, methods, saving, bad input, training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig, count_parameters
from prefixprop.data import CandidateCollator, Question, WikiHopDataset, add_special_tokens
from prefixprop.models import CandidateScorer, adapt_candidate_scorer, candidate_scorer, load_default
from prefixprop.models.candidate_scoring import SpecialTokenEmbedding

from tiny import every_family, randomised, tiny_model, trained_names
from tiny_questions import FIRST_SPECIAL_TOKEN, invented, questions, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
QUESTIONS = invented(5)
ADAPTERS: dict[str, Any] = {
    "propagation": lambda: PrefixPropagationConfig(num_virtual_tokens=4),
    "tuning": lambda: PrefixTuningConfig(num_virtual_tokens=4),
    "lora": lambda: LoraConfig(target_modules=["query", "value", "Wqkv"], r=2, init_lora_weights=False),
}
METHODS = (*ADAPTERS, "fine-tuning", "head-only")


def scorer(family: str = "longformer", chunk_reduction: str = "mean") -> CandidateScorer:
    model = candidate_scorer(tiny_model(family, "FEATURE_EXTRACTION"), FIRST_SPECIAL_TOKEN, chunk_reduction)
    with torch.no_grad():
        model.answer_score.weight.normal_()
    return model


def tuned(method: str, family: str = "longformer") -> Any:
    model = scorer(family)
    if method == "head-only":
        model.freeze_encoder()
    return adapt_candidate_scorer(model, ADAPTERS[method]()) if method in ADAPTERS else model


def make_batch(asked: list[Question] = QUESTIONS, side: str = "right", max_length: int = 80) -> dict[str, Tensor]:
    dataset = WikiHopDataset(asked, TOKENIZER, max_length)
    return CandidateCollator(1, side)([dataset[index] for index in range(len(dataset))])


def scores(model: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """The logits of each question, absent candidates left out."""
    model.eval()
    with torch.no_grad():
        logits = model(**batch).logits
    return [row[mask] for row, mask in zip(logits, batch["candidate_mask"], strict=True)]


@settings(max_examples=8)
@given(asked=st.lists(questions(), min_size=2, max_size=4), side=st.sampled_from(["right", "left"]))
@pytest.mark.parametrize("family", ["longformer", "roberta"])
def test_neighbours_and_padding_change_nothing(family: str, asked: list[Question], side: str) -> None:
    model = adapt_candidate_scorer(scorer(family), ADAPTERS["propagation"]())
    together = scores(model, make_batch(asked, side, 120))
    for question, found in zip(asked, together, strict=True):
        (alone,) = scores(model, make_batch([question], max_length=120))
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)


@every_family
@pytest.mark.parametrize("method", METHODS)
def test_padding_side_with_every_method(method: str, family: str) -> None:
    model = tuned(method, family)
    right, left = (scores(model, make_batch(side=side)) for side in ("right", "left"))
    torch.testing.assert_close(right, left, atol=1e-5, rtol=2e-5)
    assert any(len(one) != len(right[0]) for one in right)
    assert all(one.std() > 1e-3 for one in right)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_scores_are_taken_at_the_markers_and_reduced_over_chunks(reduction: str) -> None:
    model, batch = scorer(chunk_reduction=reduction), make_batch()
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states[-1]
    weights, expected = model.answer_score.weight[0].detach(), []
    for place, question in enumerate(QUESTIONS):
        rows = [row for row, owner in enumerate(batch["question_of_chunk"]) if owner == place]
        per_chunk = [
            [float(weights @ states[row, position]) for position in positions]
            for row in rows
            for positions in [batch["candidate_positions"][row, : len(question.candidates)].tolist()]
        ]
        total = torch.tensor(per_chunk).sum(dim=0)
        expected.append(total / len(rows) if reduction == "mean" else total)
    assert batch["question_of_chunk"].bincount().unique().numel() > 1
    torch.testing.assert_close(scores(model, batch), expected, atol=1e-5, rtol=1e-5)


def test_loss_is_cross_entropy_over_the_candidates_that_are_there() -> None:
    model, batch = scorer(), make_batch()
    output = model(**batch)
    absent = ~batch["candidate_mask"]
    assert absent.any() and output.logits[absent].eq(torch.finfo(torch.float32).min).all()
    assert output.logits.softmax(dim=-1)[absent].eq(0).all()
    rows = [
        row.log_softmax(dim=0)[question.answer] for row, question in zip(scores(model, batch), QUESTIONS, strict=True)
    ]
    torch.testing.assert_close(output.loss, -torch.stack(rows).mean())
    spread = model(**batch, num_items_in_batch=torch.tensor(20)).loss
    torch.testing.assert_close(spread, output.loss * len(QUESTIONS) / 20)
    loss, logits = model(**batch, return_dict=False)
    assert torch.equal(loss, output.loss) and torch.equal(logits, output.logits)


@pytest.mark.parametrize("family", ["longformer", "roberta"])
@pytest.mark.parametrize("method", METHODS)
def test_what_each_method_trains(method: str, family: str) -> None:
    model = tuned(method, family)
    model.train()
    model(**make_batch()).loss.backward()
    trained = trained_names(model)
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if name in trained)
    for module in ("answer_score", "special_tokens"):
        gradients = [p.grad for name, p in model.named_parameters() if module in name and name in trained]
        assert len(gradients) == 1 and gradients[0].abs().sum() > 0
    own = {"propagation": "propagation_prefix", "tuning": "tuning_prefix", "lora": "lora_"}.get(method)
    others = {name for name in trained if "answer_score" not in name and "special_tokens" not in name}
    if method == "fine-tuning":
        assert trained == {name for name, _ in model.named_parameters()}
    else:
        assert all(own is not None and own in name for name in others) and bool(others) == (own is not None)
    hidden = 32
    assert count_parameters(model).head == 4 * hidden + hidden


@pytest.mark.parametrize("family", ["longformer", "roberta"])
@pytest.mark.parametrize("method", ADAPTERS)
def test_an_adapter_comes_back_with_its_scores(method: str, family: str, tmp_path: Path) -> None:
    model = tuned(method, family)
    randomised(model, 0.3).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    saved = load_file(tmp_path / "adapter_model.safetensors")
    (special,) = [weight for name, weight in saved.items() if "special_tokens" in name]
    assert special.shape == (4, 32)
    assert not any("embeddings" in name for name in saved)

    torch.manual_seed(99)
    again = PeftModel.from_pretrained(scorer(family), tmp_path)
    found, expected = scores(again, make_batch()), scores(model, make_batch())
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    with again.disable_adapter():
        assert not torch.equal(scores(again, make_batch())[0], expected[0])


@pytest.mark.parametrize("family", ["longformer", "roberta"])
def test_a_fine_tuned_model_comes_back(family: str, tmp_path: Path) -> None:
    model = scorer(family, "sum")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = CandidateScorer.from_pretrained(tmp_path)
    assert (again.config.chunk_reduction, again.config.first_special_token) == ("sum", FIRST_SPECIAL_TOKEN)
    for one, two in zip(scores(again, make_batch()), scores(model, make_batch()), strict=True):
        assert torch.equal(one, two)


def test_ids_inside_the_table_are_overruled() -> None:
    """A model may have more rows than its tokenizer has tokens."""
    table, special = nn.Embedding(10, 6), SpecialTokenEmbedding(5, 4, 6)
    special.start_like(table.weight)
    embedded = special(torch.tensor([4, 5, 8, 9]), table)
    assert torch.equal(embedded, torch.stack([table.weight[4], *special.weight[[0, 3]], table.weight[9]]))
    embedded.sum().backward()
    assert table.weight.grad is not None and table.weight.grad[5:9].eq(0).all()


def test_on_the_embedded_model() -> None:
    factory, tokenizer = load_default()
    model = candidate_scorer(factory("FEATURE_EXTRACTION"), add_special_tokens(tokenizer))
    words = model.get_input_embeddings().weight
    assert words.shape[0] == 50265 and not model.training
    assert abs(model.special_tokens.weight.std() - words.std()) < 0.2 * words.std()
    dataset = WikiHopDataset(
        [Question("q", "country oslo", ("norway", "chile"), ("Oslo is in Norway .",), 0)], tokenizer, 64
    )
    with torch.no_grad():
        output = model(**CandidateCollator(tokenizer.pad_token_id)([dataset[0]]))
    assert output.logits.shape == (1, 2) and torch.isfinite(output.loss)


def test_bad_encoders() -> None:
    with pytest.raises(ValueError, match="LongformerForSequenceClassification has a head; give the encoder alone"):
        candidate_scorer(tiny_model(), FIRST_SPECIAL_TOKEN)
    with pytest.raises(ValueError, match="chunk_reduction='max' is unknown; choose one of mean, sum"):
        scorer(chunk_reduction="max")


def test_incomplete_batches() -> None:
    batch = make_batch()
    with pytest.raises(TypeError, match=r"missing .* 'attention_mask', .* and 'candidate_mask'"):
        scorer()(batch["input_ids"])
    del batch["global_attention_mask"]
    with pytest.raises(ValueError, match="A longformer encoder needs global_attention_mask"):
        scorer("longformer")(**batch)
    assert scorer("roberta")(**batch).logits.shape[0] == len(QUESTIONS)


def test_candidate_scoring_is_no_task_type_of_peft() -> None:
    with pytest.raises(ValueError, match="task_type='QUESTION_ANS': peft has no task type for candidate scoring"):
        adapt_candidate_scorer(scorer(), PrefixPropagationConfig(task_type="QUESTION_ANS"))


def test_an_adapter_that_leaves_the_scores_frozen_is_refused() -> None:
    plain = get_peft_model(scorer(), ADAPTERS["propagation"]())
    batch = make_batch()
    assert len(scores(plain, batch)) == len(QUESTIONS)
    with pytest.raises(
        ValueError, match=r"answer_score is frozen.*modules_to_save=\['answer_score', 'special_tokens'\]"
    ):
        plain.train()(**batch)
    config = PrefixPropagationConfig(task_type="SEQ_CLS", modules_to_save=["answer_score", "special_tokens"])
    get_peft_model(scorer(), config).train()(**batch).loss.backward()


def test_a_trainer_has_the_mean_over_questions(tmp_path: Path) -> None:
    """Not over chunks or over the batches of a step, whose learning rate is too small to change the loss."""
    dataset = WikiHopDataset(QUESTIONS, TOKENIZER, 80)
    arguments = TrainingArguments(
        tmp_path, num_train_epochs=1, per_device_train_batch_size=2, gradient_accumulation_steps=3, learning_rate=0.0,
        use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, gradient_checkpointing=True,
    )  # fmt: skip
    model = adapt_candidate_scorer(scorer(), PrefixPropagationConfig(num_virtual_tokens=4, prefix_dropout=0.0))
    result = Trainer(model, arguments, data_collator=CandidateCollator(1), train_dataset=dataset).train()
    assert result.training_loss == pytest.approx(model.eval()(**make_batch()).loss.item(), abs=1e-4)
