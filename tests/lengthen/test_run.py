"""From an original and text to a folder with a long encoder."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from prefixprop.lengthen import lengthen_and_train
from prefixprop.lengthen.trainer import Progress
from prefixprop.models import lengthen
from prefixprop.train import RunSettings, SettingsError, TrainingError, train
from tiny_pretraining import MAX_LENGTH, ORIGINAL_LENGTH, tiny_settings, write_original, write_text

from killed_runs import killed


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_original(tmp_path / "original")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.jsonl")


def silent(note: str) -> None:
    pass


def run(settings: Any, output: Path, **options: Any) -> dict[str, Any]:
    return lengthen_and_train(settings, output, tell=silent, **options)


def test_training_lowers_the_held_out_loss_and_saves_a_longformer(tmp_path: Path, original: Path, text: Path) -> None:
    record = run(tiny_settings(original, text, steps=60), tmp_path / "long")
    before, after = record["history"][0]["held_out_bits"], record["history"][-1]["held_out_bits"]
    assert before.keys() == after.keys() == {str(ORIGINAL_LENGTH), str(MAX_LENGTH)}
    assert all(after[length] < before[length] - 0.5 for length in before)
    assert json.loads((tmp_path / "long" / "lengthen.json").read_text()) == record
    assert not (tmp_path / "long" / "checkpoints").exists()
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "long")
    assert type(model).__name__ == "LongformerForMaskedLM"
    assert model.config.hidden_dropout_prob == 0.1, "as the original's, for tuning"
    assert AutoTokenizer.from_pretrained(tmp_path / "long").model_max_length == MAX_LENGTH
    weights = model.state_dict()
    for name in weights:
        if "_global." in name:
            assert torch.equal(weights[name], weights[name.replace("_global.", ".")]), name
    card = (tmp_path / "long" / "README.md").read_text()
    assert f"{after[str(MAX_LENGTH)]:.3f}" in card and "text.jsonl" in card


def test_the_result_can_be_trained_on_a_task(tmp_path: Path, original: Path, text: Path) -> None:
    run(tiny_settings(original, text, steps=1), tmp_path / "long")
    documents = "".join(
        json.dumps({"text": f"w{number % 40 + 4} w9", "label": number % 2}) + "\n" for number in range(20)
    )
    (tmp_path / "labelled.jsonl").write_text(documents)
    settings = RunSettings(
        model=str(tmp_path / "long"), train_files=(str(tmp_path / "labelled.jsonl"),), epochs=1, batch_size=8
    )
    assert train(settings, tmp_path / "run", tell=silent).metrics["status"] == "finished"


def test_a_killed_training_ends_as_if_it_had_not_been(tmp_path: Path, original: Path, text: Path) -> None:
    settings = tiny_settings(original, text, teach_cls=True)

    def kill(progress: Progress) -> None:
        if progress.step == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    killed(lambda: run(settings, tmp_path / "killed", show=kill))
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
    ends = [load_file(tmp_path / name / "model.safetensors") for name in ("killed", "whole")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])
    assert run(settings, tmp_path / "whole", resume=True)["steps"] == whole["steps"], "nothing is left to do"


def test_a_step_does_not_depend_on_how_many_rows_are_computed_at_once(
    tmp_path: Path, original: Path, text: Path
) -> None:
    ends = []
    for at_once in (1, 4):
        run(tiny_settings(original, text, steps=2, device_batch_size=at_once), tmp_path / f"long-{at_once}")
        ends.append(load_file(tmp_path / f"long-{at_once}" / "model.safetensors"))
    for name in ends[0]:
        torch.testing.assert_close(ends[0][name], ends[1][name], atol=2e-5, rtol=1e-4, msg=name)


def test_stopping_leaves_a_checkpoint(tmp_path: Path, original: Path, text: Path) -> None:
    settings = tiny_settings(original, text, checkpoint_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "long", should_stop=lambda: True)
    assert [path.name for path in (tmp_path / "long" / "checkpoints").iterdir()] == ["step-00000001"]


def test_taught_cls_comes_close_to_the_originals(tmp_path: Path, original: Path, text: Path) -> None:
    record = run(tiny_settings(original, text, steps=40, teach_cls=True), tmp_path / "long")
    cosines = [line["cls_cosine"] for line in record["history"][1:]]
    assert cosines[-1] > cosines[0] and cosines[-1] > 0.8


def test_frozen_embeddings_stay(tmp_path: Path, original: Path, text: Path) -> None:
    before = load_file(original / "model.safetensors")["roberta.embeddings.word_embeddings.weight"]
    for precision in ("fp32", "bf16"):
        settings = tiny_settings(original, text, freeze_embeddings=True, precision=precision, steps=2)
        run(settings, tmp_path / precision)
        after = load_file(tmp_path / precision / "model.safetensors")
        assert torch.equal(after["longformer.embeddings.word_embeddings.weight"], before)
        dense = "encoder.layer.0.output.dense.weight"
        assert not torch.equal(
            after[f"longformer.{dense}"], load_file(original / "model.safetensors")[f"roberta.{dense}"]
        )


def test_minutes_end_training(tmp_path: Path, original: Path, text: Path) -> None:
    record = run(tiny_settings(original, text, steps=None, minutes=0.01), tmp_path / "long")
    assert 0.6 <= record["seconds"] < 10 and record["steps"] > 1


@pytest.mark.parametrize("model_type", ["roberta", "bert"])
def test_a_model_without_a_head_gets_one(tmp_path: Path, text: Path, model_type: str) -> None:
    bare = write_original(tmp_path / "bare", model_type, head=False)
    notes: list[str] = []
    record = lengthen_and_train(tiny_settings(bare, text, steps=1), tmp_path / "long", tell=notes.append)
    assert record["new_head"] and "new one" in notes[0]
    assert record["history"][0]["held_out_bits"][str(MAX_LENGTH)] < 5, "it knows the eight words of the text"
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "long")


def test_gradient_checkpointing_changes_nothing(tmp_path: Path, original: Path, text: Path) -> None:
    for name, flag in (("with", True), ("without", False)):
        run(tiny_settings(original, text, steps=2, gradient_checkpointing=flag), tmp_path / name)
    ends = [load_file(tmp_path / name / "model.safetensors") for name in ("with", "without")]
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=1e-6) for name in ends[0])


def test_before_training_the_encoder_is_the_lengthened_original(tmp_path: Path, original: Path, text: Path) -> None:
    """A rate near 0 leaves what `lengthen` gives."""
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

    monkeypatch.setattr("prefixprop.lengthen.objective.Objective.forward", fail)
    with pytest.raises(TrainingError, match=r"--device-batch-size below 2.*--gradient-checkpointing"):
        run(tiny_settings(original, text), tmp_path / "long")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "--steps"),
        ({"minutes": 1.0}, "--steps and --minutes"),
        ({"batch_size": 3}, "--batch-size"),
        ({"precision": "fp8"}, "--precision"),
        ({"text": ()}, "--text"),
        ({"learning_rate": 0.0}, "--learning-rate"),
    ],
)
def test_settings_that_cannot_work(
    tmp_path: Path, original: Path, text: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        run(replace(tiny_settings(original, text), **changes), tmp_path / "long")
    assert not (tmp_path / "long").exists()


def test_broken_text_is_named_by_its_line(tmp_path: Path, original: Path, text: Path) -> None:
    text.write_text(text.read_text() + '{"text": 3}\n')
    with pytest.raises(ValueError, match=r"text.jsonl:13: the column 'text' must hold text"):
        run(tiny_settings(original, text), tmp_path / "long")


def test_too_little_text(tmp_path: Path, original: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "w4 w5"}\n')
    with pytest.raises(ValueError, match="one document only"):
        run(tiny_settings(original, text), tmp_path / "long")
    text.write_text('{"text": "w4 w5"}\n{"text": "w4 w5"}\n')
    with pytest.raises(ValueError, match="do not fill a row"):
        run(tiny_settings(original, text), tmp_path / "long")


def test_a_longformer_is_not_lengthened(tmp_path: Path, original: Path, text: Path) -> None:
    run(tiny_settings(original, text, steps=1), tmp_path / "long")
    with pytest.raises(ValueError, match="Longformer already"):
        run(tiny_settings(tmp_path / "long", text), tmp_path / "longer")
