"""Alpha in the training log, and what trackers get to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from prefixprop.train import log_alpha, trained_alpha

from tiny import adapt, tiny_model


class Tracker(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.seen.append(dict(logs))


def train(model: Any, folder: Path, steps: int = 4) -> tuple[Trainer, Tracker]:
    tracker = Tracker()
    data = [{"input_ids": torch.randint(4, 97, (9,)), "labels": index % 2} for index in range(8)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        learning_rate=0.05,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[tracker])
    log_alpha(trainer)
    trainer.train()
    return trainer, tracker


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("layer", [f"alpha/layer_{layer}" for layer in (1, 2, 3)]),
        ("head", [f"alpha/layer_{layer}/head_{head}" for layer in (1, 2, 3) for head in (1, 2, 3, 4)]),
        ("query", [f"alpha_query/layer_{layer}/head_{head}" for layer in (1, 2, 3) for head in (1, 2, 3, 4)]),
    ],
)
def test_every_entry_has_alpha(mode: str, names: list[str], tmp_path: Path) -> None:
    model = adapt(tiny_model("roberta", num_labels=2), "propagation", kernel="exp", alpha=0.5, alpha_mode=mode)
    trainer, tracker = train(model, tmp_path)
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == 4
    for entry in steps:
        assert [name for name in entry if name.startswith("alpha")] == names
    assert steps[0][names[0]] != steps[-1][names[0]]  # it is trained
    assert steps[-1] | tracker.seen[3] == steps[-1]  # a tracker behind it sees the same
    assert trained_alpha(model) == {name: trainer.state.log_history[-1][name] for name in names}


def test_values_are_those_of_the_parameter() -> None:
    model = adapt(tiny_model(), "tuning", kernel="poly", alpha_mode="head")
    with torch.no_grad():
        model.get_alpha().copy_(torch.arange(12.0).view(3, 4))
    assert list(trained_alpha(model).values()) == [float(value) for value in range(12)]
    assert trained_alpha(model)["alpha/layer_2/head_3"] == 6.0


def test_nothing_to_log() -> None:
    assert trained_alpha(adapt(tiny_model(), "propagation", kernel="exp")) == {}
    assert trained_alpha(adapt(tiny_model(), "propagation")) == {}
    assert trained_alpha(tiny_model()) == {}
