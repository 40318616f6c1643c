"""Training many readers at once against training each of them alone; how many there are; their AdamW."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prefixprop.backbones import find_backbone
from prefixprop.progress import Progress
from prefixprop.train import RunSettings, TrainingError, readers
from prefixprop.train.bank_trainer import BankTrainer, ReaderAdamW, ReaderPlan
from prefixprop.train.recovery import trusted_checkpoint
from prefixprop.train.text_states import TextStates
from prefixprop.train.trainer import share_of_peak
from prefixprop.tuners.reader_bank import ReaderBank, new_reader

from tiny import adapt, every_family, tiny_model
from tiny_training import Notes

CLASSES = (3, 2)  # of each column
DOCUMENTS = 13
PLANS = [
    ReaderPlan(column=0, learning_rate=5e-3, seed=1, fold=0),
    ReaderPlan(column=0, learning_rate=5e-3, seed=1, fold=1),
    ReaderPlan(column=0, learning_rate=2e-2, seed=2, fold=None),
    ReaderPlan(column=1, learning_rate=1e-2, seed=1, fold=0),
    ReaderPlan(column=1, learning_rate=1e-2, seed=1, fold=1),
]
SETTINGS = RunSettings(epochs=2, batch_size=4, warmup=0.1, weight_decay=0.1, max_grad_norm=0.5, seed=3)
_RANDOM = np.random.default_rng(0)
TEXTS = [_RANDOM.integers(4, 97, size) for size in _RANDOM.integers(3, 20, DOCUMENTS)]
LABELS = np.stack([_RANDOM.integers(0, classes, DOCUMENTS) for classes in CLASSES])
FOLDS = np.stack([np.arange(DOCUMENTS) % 2, np.arange(DOCUMENTS) // 7])


def trainer_of(
    plans: list[ReaderPlan] = PLANS,
    family: str = "roberta",
    labels: Any = LABELS,
    at_once: tuple[int, int] = (3, 9),
    progress: Progress | None = None,
    prefix_dropout: float = 0.0,
    **overrides: Any,
) -> BankTrainer:
    """A trainer of new readers in float64, on a model without dropout unless `overrides` say so."""
    backbone = find_backbone(tiny_model(family, **overrides).double())
    text = TextStates(backbone, TEXTS, backbone.config.pad_token_id, contextlib.nullcontext, batch_tokens=60)
    text.fill(Progress())
    bank = ReaderBank(backbone, [new_reader(backbone, 2, CLASSES[p.column], p.seed) for p in plans], prefix_dropout)
    progress = progress or Progress()
    bank.double()
    return BankTrainer(bank, list(plans), text, labels, FOLDS, SETTINGS, at_once, progress)


def train(trainer: BankTrainer, until: int | None = None) -> BankTrainer:
    until = trainer.steps if until is None else until
    first = trainer.step
    assert list(trainer.train(until)) == list(range(first + 1, until + 1))
    return trainer


def numbers(trainer: BankTrainer, index: int) -> Tensor:
    """All that a reader has learned, in one row."""
    weights = trainer.bank.weights(index)
    return torch.cat([weights.prefix.flatten(), *(value.flatten() for value in weights.head.values())])


def assert_close(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


# --- steps ----------------------------------------------------------------------------------------------------------


@every_family
def test_a_reader_learns_what_it_learns_alone(family: str) -> None:
    together, start = train(trainer_of(family=family)), trainer_of(family=family)
    for index, plan in enumerate(PLANS):
        alone = train(trainer_of([plan], family, at_once=(4, 1)))
        assert_close(numbers(together, index), numbers(alone, 0))
        assert (numbers(together, index) - numbers(start, index)).abs().max() > 1e-3
    assert together.steps == 8 and len(together.losses) == 4  # of the last epoch


def test_learns_what_its_adapter_learns_with_torch() -> None:
    """The same documents in the same order, with PyTorch's AdamW, clipped gradients and the linear schedule."""
    (plan,) = plans = PLANS[2:3]
    trainer = trainer_of(plans)
    adapted = adapt(tiny_model("roberta"), "reading", length=2, prefix_dropout=0.0).double()
    reader = trainer.bank.weights(0)
    adapted.set_prefix(reader.prefix)
    head = adapted.get_base_model().classifier.modules_to_save.default
    head.load_state_dict({name.removeprefix("classifier."): value for name, value in reader.head.items()})
    trained = [adapted.get_prefix(), *head.parameters()]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": SETTINGS.weight_decay},
        {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_peak(step, 1, trainer.steps))
    for epoch in range(SETTINGS.epochs or 0):
        trainer.order.set_epoch(epoch)
        documents = list(trainer.order)
        for first in range(0, DOCUMENTS, SETTINGS.documents_per_step):
            part = documents[first : first + SETTINGS.documents_per_step]
            losses = [
                F.cross_entropy(
                    adapted(torch.from_numpy(TEXTS[index])[None]).logits, torch.tensor([LABELS[0, index]])
                )
                for index in part
            ]
            torch.stack(losses).mean().backward()
            torch.nn.utils.clip_grad_norm_(trained, SETTINGS.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert_close(numbers(train(trainer), 0), torch.cat([p.detach().flatten() for p in trained]))


def test_a_reader_never_learns_from_its_fold() -> None:
    before = train(trainer_of())
    for column, fold in ((0, 0), (0, 1), (1, 1)):
        labels = LABELS.copy()
        of_fold = FOLDS[column] == fold
        labels[column, of_fold] = (labels[column, of_fold] + 1) % CLASSES[column]
        after = train(trainer_of(labels=labels))
        for index, plan in enumerate(PLANS):
            is_same = plan.column != column or plan.fold == fold
            assert numbers(before, index).equal(numbers(after, index)) == is_same


def test_a_reader_that_diverges_does_not_disturb_the_others() -> None:
    usual = train(trainer_of())
    for lost in (0, 3):
        plans = [
            ReaderPlan(p.column, 1e30 if i == lost else p.learning_rate, p.seed, p.fold) for i, p in enumerate(PLANS)
        ]
        trainer = train(trainer_of(plans))
        for index in range(len(PLANS)):
            assert numbers(trainer, index).equal(numbers(usual, index)) == (index != lost)
        assert torch.stack(trainer.losses).isnan().any(dim=0).tolist() == [index == lost for index in range(5)]


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [(3, 9), (1, 1)])
def test_documents_are_answered_by_who_left_them_out(at_once: tuple[int, int]) -> None:
    trainer = train(trainer_of(at_once=at_once, prefix_dropout=0.5, hidden_dropout_prob=0.5), until=3)
    for column, key in ((0, (5e-3, 1)), (1, (1e-2, 1))):
        found = trainer.held_out(column)
        assert found.keys() == {key}
        assert found[key].shape == (DOCUMENTS, CLASSES[column]) and np.isfinite(found[key]).all()
        for index, plan in enumerate(PLANS):
            if plan.column == column and plan.fold is not None:
                of_fold = np.flatnonzero(FOLDS[column] == plan.fold).tolist()
                for document in of_fold:
                    text = trainer.text.text(trainer.text.inputs([document]))
                    expected = trainer.bank.eval()(text)[index, 0, : CLASSES[column]].detach()
                    np.testing.assert_allclose(found[key][document], expected, atol=1e-5)
    assert trainer.answer(trainer.text, [], [0]).shape == (1, 0, 3)


# --- fewer readers, checkpoints, memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [[0, 2, 4], [3], [4, 3], [1]])
def test_goes_on_as_if_the_others_had_never_been_there(kept: list[int]) -> None:
    """With fewer classes too, where those with the most are dropped."""
    trainer = train(trainer_of(), until=5)
    losses = trainer.losses
    trainer.keep(kept)
    assert trainer.plans == [PLANS[index] for index in kept]
    assert torch.stack(trainer.losses).equal(torch.stack(losses)[:, kept])
    train(trainer)
    alone = train(trainer_of([PLANS[index] for index in kept]))
    for index in range(len(kept)):
        assert_close(numbers(trainer, index), numbers(alone, index))


@pytest.mark.parametrize("kept", [None, [0, 3], [4, 3]])
@pytest.mark.parametrize("stop", [2, 4, 7])
@pytest.mark.parametrize("family", ["longformer", "modernbert"])
def test_stopped_and_resumed(family: str, stop: int, kept: list[int] | None, tmp_path: Path) -> None:
    """To the bit, with dropout of the prefix and of the layers, within an epoch and between two."""
    options: dict[str, Any] = {"family": family, "prefix_dropout": 0.2}
    options |= {"mlp_dropout": 0.2} if family == "modernbert" else {"hidden_dropout_prob": 0.2}
    torch.manual_seed(5)
    whole = trainer_of(**options)
    if kept is not None:
        train(whole, until=1).keep(kept)
    for step in whole.train(whole.steps):
        if step == stop:
            whole.save(tmp_path, {"history": [1, 2]})

    torch.manual_seed(6)
    resumed = trainer_of(**options)
    checkpoint = trusted_checkpoint(tmp_path)
    assert checkpoint is not None
    assert resumed.restore(checkpoint) == {"history": [1, 2]}
    assert resumed.step == stop and resumed.plans == whole.plans
    train(resumed)
    assert all(numbers(resumed, index).equal(numbers(whole, index)) for index in range(len(whole.plans)))
    assert torch.stack(resumed.losses).equal(torch.stack(whole.losses))


def fail_above(monkeypatch: pytest.MonkeyPatch, most: int, error: type[RuntimeError], first: int = 0) -> None:
    """Have a bank fail where documents times readers are more than so many, from a number of calls on."""
    original, calls = ReaderBank.forward, []

    def forward(bank: ReaderBank, text: Any, readers: Any = None) -> Tensor:
        calls.append(1)
        if len(calls) > first and len(text.states[0]) * len(bank.prefix[readers]) > most:
            raise error("DefaultCPUAllocator: can't allocate memory\nmore lines")
        return original(bank, text, readers)

    monkeypatch.setattr(ReaderBank, "forward", forward)


@pytest.mark.parametrize(
    ("most", "first", "tried"),
    [
        (20, 0, [(4, 5)]),
        (12, 0, [(4, 5), (2, 5)]),
        (5, 1, [(2, 5), (1, 5)]),  # in the middle of a step
        (2, 0, [(4, 5), (2, 5), (1, 5), (1, 3), (1, 2)]),
    ],
)
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_goes_on_with_less_at_a_time(
    monkeypatch: pytest.MonkeyPatch, most: int, first: int, tried: list[tuple[int, int]], error: type[RuntimeError]
) -> None:
    usual, notes = train(trainer_of(), until=2), Notes()
    fail_above(monkeypatch, most, error, first)
    trainer = train(trainer_of(at_once=tried[0], progress=notes), until=2)
    expected = [f"{documents} documents and {readers} readers at a time" for documents, readers in tried[1:]]
    assert [note.partition("continues with ")[2] for note in notes.notes] == expected
    assert trainer.at_once == tried[-1]
    for index in range(len(PLANS)):
        assert_close(numbers(trainer, index), numbers(usual, index))
    assert_close(torch.stack(trainer.losses), torch.stack(usual.losses))


def test_memory_for_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_above(monkeypatch, 0, torch.OutOfMemoryError)
    trainer = trainer_of(progress=Notes())
    before = numbers(trainer, 0)
    with pytest.raises(TrainingError, match=r"^The device is out of memory \(.*memory\): choose .* --max-length\.$"):
        train(trainer)
    assert trainer.at_once == (1, 1) and trainer.step == 0 and numbers(trainer, 0).equal(before)


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*_: Any) -> Tensor:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(ReaderBank, "forward", forward)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(trainer_of())


# --- how many readers documents allow -------------------------------------------------------------------------------


TOKENS = st.floats(0, 20_000)
GROUPS = st.integers(1, 6)
LENGTHS = st.none() | st.integers(1, 16)
RATES = st.none() | st.floats(1e-5, 1.0)


@given(TOKENS, GROUPS, LENGTHS, RATES)
def test_rows_are_few_beside_the_text(mean: float, groups: int, length: int | None, rate: float | None) -> None:
    plan = readers.plan_bank(mean, groups, length, rate)
    smallest = readers.plan_bank(0, groups, length, rate)
    assert plan == smallest or plan.rows(groups) <= mean * readers.ROWS_PER_TOKEN
    assert smallest.rows(groups) == groups * (length or 1)
    assert plan.length == length or length is None
    assert plan.learning_rates == (rate,) or rate is None
    assert len(set(plan.learning_rates)) == len(plan.learning_rates) and plan.seeds >= 1


@given(TOKENS, TOKENS, GROUPS, LENGTHS, RATES)
def test_more_tokens_never_mean_fewer_rows(
    mean: float, more: float, groups: int, length: int | None, rate: float | None
) -> None:
    fewer, larger = (readers.plan_bank(count, groups, length, rate) for count in (mean, mean + more))
    assert fewer.rows(groups) <= larger.rows(groups)
    assert fewer.seeds <= larger.seeds and len(fewer.learning_rates) <= len(larger.learning_rates)


@pytest.mark.parametrize(
    ("mean", "groups", "expected"),
    [
        (30, 6, 0),
        (16 * 6 * 2 - 1, 6, 0),
        (16 * 6 * 2, 6, 1),
        # Two virtual tokens, three seeds, and a third learning rate that is trained for half of the time.
        (16 * 2 * 3 * 6 * 2.5 - 1, 6, -2),
        (16 * 2 * 3 * 6 * 2.5, 6, -1),
    ],
)
def test_the_largest_plan_that_fits(mean: float, groups: int, expected: int) -> None:
    assert readers.plan_bank(mean, groups) == readers.PLANS[expected]


# --- AdamW ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decay", "max_norm"), [(0.1, 1.0), (0.0, 0.3), (0.2, 0.0)])
@pytest.mark.parametrize("fused", [False, True])
def test_it_is_adamw_for_each_reader(decay: float, max_norm: float, fused: bool) -> None:
    if fused:
        pytest.importorskip("triton")
    rates = [1e-3, 0.1, 3e-2]
    start = [torch.randn(3, 2, 4, dtype=torch.float64), torch.randn(3, 21, dtype=torch.float64)]
    own = [tensor.clone().requires_grad_() for tensor in start]
    together = ReaderAdamW(own, torch.tensor(rates, dtype=torch.float64), decay, max_norm)
    together.is_fused = fused
    alone = [[tensor[index].clone().requires_grad_() for tensor in start] for index in range(3)]
    optimizers = [
        torch.optim.AdamW(
            [{"params": [wide], "weight_decay": decay}, {"params": [bias], "weight_decay": 0.0}], lr=1.0
        )
        for wide, bias in alone
    ]
    for step in range(6):
        # Of all sizes: some are clipped and others are not.
        gradients = [torch.randn_like(tensor) * 10.0 ** (step % 3 - 1) for tensor in start]
        for held, gradient in zip(together.gradients, gradients, strict=True):
            held.copy_(gradient)
        share = share_of_peak(step, 2, 6)
        together.step(share)
        for index, (parameters, optimizer) in enumerate(zip(alone, optimizers, strict=True)):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient[index].clone()
            if max_norm:
                torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            for group in optimizer.param_groups:
                group["lr"] = rates[index] * share
            optimizer.step()
            for one, two in zip(own, parameters, strict=True):
                torch.testing.assert_close(one[index], two, atol=1e-6, rtol=0)
