"""From an original and text to a folder with a long encoder."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from launching import launch_two
from prefixprop.lengthen import LengthenSettings, lengthen_and_train
from prefixprop.models import lengthen
from prefixprop.train import RunSettings, SettingsError, TrainingError, train
from tiny_pretraining import MAX_LENGTH, ORIGINAL_LENGTH, tiny_settings, write_original, write_text

from killed_runs import killed
from tiny_training import Notes


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_original(tmp_path / "original")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.jsonl")


def run(settings: Any, output: Path, **options: Any) -> dict[str, Any]:
    return lengthen_and_train(settings, output, **{"progress": Notes()} | options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_training_lowers_the_held_out_loss_and_saves_a_longformer(tmp_path: Path, original: Path, text: Path) -> None:
    long = tmp_path / "long"
    record = run(tiny_settings(original, text, steps=60), long)
    before, after = record["history"][0]["held_out_bits"], record["history"][-1]["held_out_bits"]
    assert before.keys() == after.keys() == {str(ORIGINAL_LENGTH), str(MAX_LENGTH)}
    assert all(after[length] < before[length] - 0.5 for length in before)
    assert json.loads((long / "lengthen.json").read_text()) == record and not (long / "checkpoints").exists()
    model = AutoModelForMaskedLM.from_pretrained(long)
    assert type(model).__name__ == "LongformerForMaskedLM"
    assert model.config.hidden_dropout_prob == 0.1, "as the original's, for tuning"
    assert AutoTokenizer.from_pretrained(long).model_max_length == MAX_LENGTH
    state = model.state_dict()
    for name in state:
        if "_global." in name:
            assert torch.equal(state[name], state[name.replace("_global.", ".")]), name
    card = (long / "README.md").read_text()
    assert f"{after[str(MAX_LENGTH)]:.3f}" in card and "text.jsonl" in card

    with pytest.raises(ValueError, match="LongformerForMaskedLM cannot be lengthened"):
        run(tiny_settings(long, text), tmp_path / "longer")
    lines = [json.dumps({"text": f"w{number % 40 + 4} w9", "label": number % 2}) for number in range(20)]
    (tmp_path / "labelled.jsonl").write_text("\n".join(lines))
    settings = RunSettings(model=str(long), train_files=(str(tmp_path / "labelled.jsonl"),), epochs=1, batch_size=8)
    assert train(settings, tmp_path / "run", progress=Notes()).metrics["status"] == "finished"


def test_a_killed_training_ends_as_if_it_had_not_been(tmp_path: Path, original: Path, text: Path) -> None:
    settings = tiny_settings(original, text, teach_cls=True)

    class Kill(Notes):
        def advance(self, what: str, done: int, total: int, detail: str = "") -> None:
            if done == 4:
                os.kill(os.getpid(), signal.SIGKILL)

    killed(lambda: run(settings, tmp_path / "killed", progress=Kill()))
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    with pytest.raises(ValueError, match="--resume"):
        run(settings, tmp_path / "killed")
    with pytest.raises(ValueError, match="--learning-rate"):
        run(replace(settings, learning_rate=1.0), tmp_path / "killed", resume=True)
    documents = text.read_text()
    text.write_text(documents.replace("w4", "w5"))
    with pytest.raises(ValueError, match="other documents"):
        run(settings, tmp_path / "killed", resume=True)
    text.write_text(documents)
    # How many rows are computed at once may differ, but changes the order of sums; so it stays here.
    resumed = run(settings, tmp_path / "killed", resume=True)
    whole = run(settings, tmp_path / "whole")
    for record in (resumed, whole):
        assert record.pop("seconds") >= 0
        assert all(line.pop("seconds") >= 0 for line in record["history"])
    assert resumed["history"] == whole["history"]
    ends = [weights(tmp_path / name) for name in ("killed", "whole")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])
    assert run(settings, tmp_path / "whole", resume=True)["steps"] == whole["steps"], "nothing is left to do"


def test_a_step_does_not_depend_on_how_it_is_computed(tmp_path: Path, original: Path, text: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "whole": {"device_batch_size": 32},
        "uneven": {"device_batch_size": 3},
        "checkpointing": {"device_batch_size": 4, "gradient_checkpointing": True},
    }
    for name, change in changes.items():
        run(tiny_settings(original, text, steps=2, **change), tmp_path / name)
    whole = weights(tmp_path / "whole")
    for name in changes:
        for key, tensor in weights(tmp_path / name).items():
            torch.testing.assert_close(tensor, whole[key], atol=2e-5, rtol=1e-4, msg=f"{name}: {key}")


def test_an_overwritten_encoder_stays_until_the_new_one_is_trained(
    tmp_path: Path, original: Path, text: Path
) -> None:
    settings = tiny_settings(original, text, steps=2, checkpoint_seconds=1e9)
    run(settings, tmp_path / "long")
    before = weights(tmp_path / "long")
    other = replace(settings, seed=2)
    with pytest.raises(KeyboardInterrupt):
        run(other, tmp_path / "long", overwrite=True, should_stop=lambda: True)
    assert [path.name for path in (tmp_path / "long" / "checkpoints").iterdir()] == ["step-00000001"]
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(tmp_path / "long").items())
    run(other, tmp_path / "long", resume=True)
    assert not all(torch.equal(before[name], tensor) for name, tensor in weights(tmp_path / "long").items())


def test_taught_cls_comes_close_to_the_originals(tmp_path: Path, original: Path, text: Path) -> None:
    record = run(tiny_settings(original, text, steps=40, teach_cls=True), tmp_path / "long")
    cosines = [line["cls_cosine"] for line in record["history"][1:]]
    assert cosines[-1] > cosines[0] and cosines[-1] > 0.8


def test_frozen_embeddings_stay_also_in_bf16(tmp_path: Path, original: Path, text: Path) -> None:
    before = weights(original)
    run(tiny_settings(original, text, freeze_embeddings=True, precision="bf16", steps=2), tmp_path / "long")
    after = weights(tmp_path / "long")
    embeddings, dense = "embeddings.word_embeddings.weight", "encoder.layer.0.output.dense.weight"
    assert torch.equal(after[f"longformer.{embeddings}"], before[f"roberta.{embeddings}"])
    assert not torch.equal(after[f"longformer.{dense}"], before[f"roberta.{dense}"])


def test_minutes_end_training(tmp_path: Path, original: Path, text: Path) -> None:
    record = run(tiny_settings(original, text, steps=None, minutes=0.01), tmp_path / "long")
    assert 0.6 <= record["seconds"] < 10 and record["steps"] > 1


@pytest.mark.parametrize("model_type", ["roberta", "bert"])
def test_a_model_without_a_head_gets_one(tmp_path: Path, text: Path, model_type: str) -> None:
    bare = write_original(tmp_path / "bare", model_type, head=False)
    notes: list[str] = []
    record = lengthen_and_train(tiny_settings(bare, text, steps=1), tmp_path / "long", progress=Notes(notes))
    assert record["new_head"] and "new one" in notes[0]
    assert record["history"][0]["held_out_bits"][str(MAX_LENGTH)] < 5, "it knows the eight words of the text"
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "long")


def test_before_training_the_encoder_is_the_lengthened_original(tmp_path: Path, original: Path, text: Path) -> None:
    """A learning rate near 0 leaves what `lengthen` gives."""
    run(tiny_settings(original, text, steps=1, learning_rate=1e-12, weight_decay=0.0), tmp_path / "long")
    ids = torch.randint(4, 90, (2, MAX_LENGTH), generator=torch.Generator().manual_seed(0))
    expected = lengthen(AutoModelForMaskedLM.from_pretrained(original), MAX_LENGTH, 16).eval()(ids).logits
    actual = AutoModelForMaskedLM.from_pretrained(tmp_path / "long").eval()(ids).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_out_of_memory_says_what_to_change(
    tmp_path: Path, original: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("prefixprop.lengthen.encoder.Objective.forward", fail)
    with pytest.raises(TrainingError, match=r"--device-batch-size below 2.*--gradient-checkpointing"):
        run(tiny_settings(original, text), tmp_path / "long")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "--steps: must be greater than or equal to 1, got 0"),
        ({"attention_window": 7}, "--attention-window: 7 cannot be halved"),
        ({"minutes": 1.0}, "--steps and --minutes"),
        ({"text": ()}, "--text"),
        ({"learning_rate": float("nan")}, "--learning-rate: must be"),
    ],
)
def test_settings_that_cannot_work(
    tmp_path: Path, original: Path, text: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        run(replace(tiny_settings(original, text), **changes), tmp_path / "long")
    assert not (tmp_path / "long").exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"text": "w4 w5"}\n{"text": 3}\n', r"text.jsonl:2: the column 'text' must hold text"),
        ('{"text": "w4 w5"}\n', "only one document"),
        ('{"text": "w4 w5"}\n' * 2, "do not fill a row"),
    ],
)
def test_text_that_cannot_be_used(tmp_path: Path, original: Path, lines: str, message: str) -> None:
    (tmp_path / "text.jsonl").write_text(lines)
    with pytest.raises(ValueError, match=message):
        run(tiny_settings(original, tmp_path / "text.jsonl"), tmp_path / "long")


def test_two_processes_end_like_one(tmp_path: Path, original: Path, text: Path) -> None:
    settings, usual = tiny_settings(original, text, steps=3), LengthenSettings()
    changed = {name: value for name, value in asdict(settings).items() if value != getattr(usual, name)}
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in changed.items() if name not in ("model", "text")
    ]
    given = settings.model, "--text", settings.text[0], "--output", str(tmp_path / "two")
    printed = launch_two(tmp_path, "lengthen", *given, *flags)
    assert printed.count("Encoder:") == 1, "only the main process speaks"
    one = run(settings, tmp_path / "one")
    two = json.loads((tmp_path / "two" / "lengthen.json").read_text())
    assert two["environment"]["processes"] == 2 and two["tokens_seen"] == one["tokens_seen"]
    for line, other in zip(one["history"], two["history"], strict=True):
        assert line["held_out_bits"] == pytest.approx(other["held_out_bits"], abs=1e-3)
    ends = [weights(tmp_path / name) for name in ("one", "two")]
    # Sums are formed in another order, and AdamW's first steps divide by gradients that are nearly zero.
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=1e-3) for name in ends[0])
