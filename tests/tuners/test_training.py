"""Prefix methods under the ways people train: Trainer, checkpointing, autocast, compilation, several processes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from prefixprop.backbones import find_backbone

import tiny
from one_layer import assert_same_gradients, outcome, trained_gradients
from tiny import CONFIGS, batch, every_family, every_method, tiny_model


def adapt(model: Any, method: str, **options: Any) -> Any:
    return tiny.adapt(model, method, **({"prefix_dropout": 0.0} | options))


@pytest.mark.parametrize(("reentrant", "dropout"), [(False, 0.0), (True, 0.0), (False, 0.3)])
@every_method
@every_family
def test_gradient_checkpointing_changes_no_gradient(
    family: str, method: str, reentrant: bool, dropout: float
) -> None:
    model = adapt(tiny_model(family), method, prefix_dropout=dropout).train()
    inputs = batch(model, [18, 11])
    plain = trained_gradients(model, inputs)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    calls: list[int] = []
    layer = find_backbone(model).layers[1]
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    checkpointed = trained_gradients(model, inputs)
    assert len(calls) == (1 if method == "reading" else 2)  # forward, and again for backward
    assert_same_gradients(checkpointed, plain, 1e-6)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {}) for method in CONFIGS),
        ("propagation", {"kernel": "rbf", "alpha_mode": "layer", "alpha": 0.5}),
        ("tuning", {"kernel": "linear", "alpha_mode": "query", "alpha": 0.5}),
    ],
)
@every_family
def test_bf16_autocast_trains(family: str, method: str, options: dict[str, Any]) -> None:
    own = {"bert": ["pooler"], "modernbert": ["head"]}.get(family)  # the others' whole head is trained anyway
    model = adapt(tiny_model(family), method, modules_to_save=own, **options)
    inputs = batch(model, [18, 11])
    exact = outcome(model, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = outcome(model, inputs)
    prefix = model.get_prefix()
    assert prefix.dtype == prefix.grad.dtype == torch.float32 and rough["logits"].dtype == torch.bfloat16
    torch.testing.assert_close(rough.pop("logits").float(), exact.pop("logits"), atol=0.15, rtol=0.05)
    for name in (name for name, gradient in exact.items() if gradient.dim() > 1):
        assert torch.cosine_similarity(rough[name].flatten(), exact[name].flatten(), dim=0) > 0.98, name


@pytest.mark.parametrize(
    ("method", "kernel", "mode"),
    [
        *((method, None, "fixed") for method in CONFIGS),
        ("propagation", "exp", "fixed"),
        ("tuning", "rbf", "layer"),
        ("propagation", "poly", "head"),
        ("tuning", "linear", "query"),
    ],
)
@every_family
def test_models_in_half_precision(family: str, method: str, kernel: str | None, mode: str) -> None:
    """The prefix stays in float32, as peft keeps adapters, and is cast where it meets the model."""
    dtype = torch.float16 if (method, kernel) == ("tuning", None) else torch.bfloat16
    options = {} if kernel is None else {"kernel": kernel, "alpha_mode": mode, "alpha": 0.5}
    model = adapt(tiny_model(family).to(dtype), method, **options)
    model.set_prefix((5 if options else 1) * torch.randn(model.get_prefix().shape))
    output = model(**batch(model, [18, 11]), labels=torch.tensor([0, 1]))
    output.loss.backward()
    assert model.get_prefix().dtype == torch.float32 and torch.isfinite(output.logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)


def trainer(model: Any, folder: Path, epochs: int) -> Trainer:
    """Is word 5 among the tokens? Small enough to be learnt in seconds."""
    tokens = torch.randint(6, 97, (32, 12), generator=torch.Generator().manual_seed(1))
    tokens[1::2, 3] = 5
    data: Any = [
        {"input_ids": own, "attention_mask": torch.ones(12, dtype=torch.long), "labels": place % 2}
        for place, own in enumerate(tokens)
    ]
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=2e-2,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        report_to="none",
        use_cpu=True,
        seed=3,
        disable_tqdm=True,
    )
    return Trainer(model, arguments, train_dataset=data, eval_dataset=data)


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("longformer", "propagation"),
        ("roberta", "tuning"),
        ("bert", "propagation"),
        ("modernbert", "tuning"),
        ("longformer", "reading"),
    ],
)
def test_trainer_learns_and_loads_the_best(family: str, method: str, tmp_path: Path) -> None:
    model = adapt(tiny_model(family, num_labels=2), method)
    before = model.get_prefix().detach().clone()
    run = trainer(model, tmp_path, epochs=3)
    first = run.evaluate()["eval_loss"]
    run.train()
    losses = {entry["epoch"]: entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry}
    assert not torch.equal(model.get_prefix(), before)
    assert run.evaluate()["eval_loss"] == pytest.approx(min(losses.values()), abs=1e-5)
    assert min(losses.values()) < first


def agree(rank: int, family: str, method: str, folder: Path) -> None:
    """Gradients of two halves of a batch, one of them here, are those of the batch."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(5)
    model = adapt(tiny_model(family), method)
    inputs, labels = batch(model, [18, 11, 15, 9]), torch.tensor([0, 2, 1, 1])
    mine = slice(2 * rank, 2 * rank + 2)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel(**{name: value[mine] for name, value in inputs.items()}, labels=labels[mine]).loss.backward()
    together = model.get_prefix().grad.clone()
    model.zero_grad()
    model(**inputs, labels=labels).loss.backward()
    torch.testing.assert_close(together, model.get_prefix().grad, atol=1e-6, rtol=1e-4)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("family", "method"), [("longformer", "propagation"), ("roberta", "tuning"), ("bert", "reading")]
)
def test_two_processes_agree_with_one(family: str, method: str, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=agree, args=(rank, family, method, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(180)
    assert [process.exitcode for process in processes] == [0, 0]
