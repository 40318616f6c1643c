"""Loading the model of a run directory, whose parts must be undamaged and of one run."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import log_softmax

from prefixprop import load_run
from prefixprop.data.loaders import clean_text
from prefixprop.evaluate import read_predictions
from prefixprop.predict import PredictionOptions
from prefixprop.predict.run_data import predict_split
from prefixprop.settings.methods import METHODS
from prefixprop.train import RunDirectory

from tiny_questions import invented
from tiny_runs import LABEL_NAMES, finish_again, make_run, make_wikihop_run

OPTIONS = PredictionOptions()


@pytest.mark.parametrize("family", ["longformer", "roberta"])
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.is_mix])
def test_the_model_is_the_one_that_was_trained(method: str, family: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, method, family)
    trained = load_run(run)
    assert trained.label_names == LABEL_NAMES and trained.max_length == 32
    assert not getattr(trained.model, "model", trained.model).training  # readers stand beside their encoder
    for split in ("dev", "test"):
        stored = read_predictions(run / "predictions" / f"{split}.jsonl")
        found, calibrated = predict_split(trained, split, OPTIONS)
        assert found.ids == stored.ids and found.labels == stored.labels
        assert np.abs(found.logits - log_softmax(stored.logits, axis=1)).max() < 2e-5
        assert np.abs(stored.logits).max() > 0.1
    metrics = json.loads((run / "metrics.json").read_text())
    assert calibrated.evaluate() == pytest.approx(metrics["test_calibrated"], abs=1e-5)


def test_texts_are_prepared_as_those_of_the_task(tmp_path: Path) -> None:
    trained = load_run(make_run(tmp_path, task="hyperpartisan"))
    raw = "w5 https://example.org/a w6 !!!! w7"
    assert clean_text(raw) != raw
    (prediction,) = trained.predict([raw])
    assert prediction.tokens == len(trained.tokenizer(clean_text(raw))["input_ids"])


@pytest.mark.parametrize("method", ["prefix-propagation", "fine-tuning", "head-only"])
def test_a_run_on_wikihop(method: str, tmp_path: Path) -> None:
    questions = {split: invented(6, seed) for seed, split in enumerate(("train", "dev", "test"))}
    run = make_wikihop_run(tmp_path, questions, method)
    trained = load_run(run)
    stored = read_predictions(run / "predictions" / "test.jsonl")
    found, _ = predict_split(trained, "test", PredictionOptions(batch_tokens=300))
    assert found.ids == stored.ids and found.candidates == stored.candidates
    assert np.abs(found.probabilities - stored.probabilities).max() < 1e-5
    with pytest.raises(ValueError, match=r"trained on questions.*cannot label documents"):
        trained.predict(["w4"])


def test_a_base_model_that_is_gone_or_has_changed(tmp_path: Path) -> None:
    run = make_run(tmp_path, "prefix-propagation", "roberta")
    base = Path(RunDirectory(run).read_settings().model)
    with (base / "config.json").open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"run: the run's base model .* cannot be loaded \(the weights in .*have"):
        load_run(run)
    shutil.rmtree(base)
    with pytest.raises(ValueError, match=r"cannot be loaded \(there is no folder .*Put it back where it was"):
        load_run(run)


def test_an_adapter_is_never_unpickled(tmp_path: Path) -> None:
    run = make_run(tmp_path, "lora", "roberta")
    path = run / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(path), path.with_name("adapter_model.bin"))
    path.unlink()
    finish_again(run)
    with pytest.raises(ValueError, match="adapters are loaded from safetensors only"):
        load_run(run)


@pytest.mark.parametrize(("method", "part"), [("lora", "tokenizer"), ("fine-tuning", "model")])
def test_code_in_a_run_is_never_run(method: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, method, "roberta")
    (run / part / "code.py").write_text(f"open({str(tmp_path / 'code-ran')!r}, 'w').close()\n")
    file = run / part / ("config.json" if part == "model" else "tokenizer_config.json")
    own = {"auto_map": {"AutoConfig": "code.Own", "AutoTokenizer": [None, "code.Own"]}}
    own |= {"tokenizer_class": "Own", "model_type": "own"}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    finish_again(run)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ValueError, match="contains custom code"):
        load_run(run)
    assert not (tmp_path / "code-ran").exists()


def test_devices(tmp_path: Path) -> None:
    run = make_run(tmp_path, family="roberta")
    assert next(load_run(run, device="cpu").model.parameters()).device.type == "cpu"
    with pytest.raises(ValueError, match="device='moon' is unknown"):
        load_run(run, device="moon")
