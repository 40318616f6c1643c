"""Loading the model of a run directory, whose parts must be undamaged and of one run."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from scipy.special import log_softmax

from prefixprop import load_run
from prefixprop.data.hyperpartisan import clean_text
from prefixprop.evaluate import read_predictions
from prefixprop.models import load_embedded
from prefixprop.predict import PredictionOptions
from prefixprop.predict.run_data import predict_split
from prefixprop.settings.methods import METHODS

from tiny_questions import invented
from tiny_runs import LABEL_NAMES, make_run, make_wikihop_run

OPTIONS = PredictionOptions()


@pytest.mark.parametrize("family", ["longformer", "roberta"])
@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_the_one_that_was_trained(method: str, family: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, method, family)
    trained = load_run(run)
    assert trained.label_names == LABEL_NAMES and trained.max_length == 32
    assert not trained.model.training
    for split in ("dev", "test"):
        stored = read_predictions(run / "predictions" / f"{split}.jsonl")
        found, calibrated = predict_split(trained, split, OPTIONS)
        assert found.ids == stored.ids and found.labels == stored.labels
        assert np.abs(found.logits - log_softmax(stored.logits, axis=1)).max() < 2e-5
        assert np.abs(stored.logits).max() > 0.1
    metrics = json.loads((run / "metrics.json").read_text())
    assert calibrated.evaluate() == pytest.approx(metrics["test_calibrated"], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "kind"), [("longformer-mini-4096-mlm", "longformer"), ("roberta-mini-512", "roberta")]
)
def test_the_embedded_model_is_found_by_its_name(name: str, kind: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, "head-only", model=name)
    factory, tokenizer = load_embedded(name)
    shutil.rmtree(run / "tokenizer")
    tokenizer.save_pretrained(run / "tokenizer")
    model = factory("SEQ_CLS", num_labels=3)
    head = {f"classifier.{key}": value for key, value in model.classifier.state_dict().items()}
    save_file(head, run / "head" / "head.safetensors")
    trained = load_run(run)
    assert trained.model.config.model_type == kind
    ids = tokenizer("A letter about taxes.", return_tensors="pt")
    with torch.no_grad():
        expected = model(**ids).logits.numpy()
    assert trained.logits(["A letter about taxes."]) == pytest.approx(expected, abs=1e-4)


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
    with pytest.raises(ValueError, match=r"trained on WikiHop.*cannot label documents"):
        trained.predict(["w4"])


def test_questions_that_do_not_fit_count_as_wrong(tmp_path: Path) -> None:
    run = make_wikihop_run(
        tmp_path, {split: invented(6, seed) for seed, split in enumerate(("train", "dev", "test"))}
    )
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"max_length": 50}))
    predicted, _ = predict_split(load_run(run), "test", OPTIONS)
    flat = [row for row in range(6) if np.ptp(predicted.logits[row, : len(predicted.class_names(row))]) < 1e-5]
    assert 0 < len(flat) < 6
    for row in flat:
        assert predicted.probabilities[row].argmax() != predicted.labels[row]


def _remove(name: str) -> Callable[[Path], None]:
    def remove(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def _write(name: str, text: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(text, encoding="utf-8") and None


def _change_metrics(**changes: object) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        metrics = json.loads((run / "metrics.json").read_text())
        (run / "metrics.json").write_text(json.dumps(metrics | changes))

    return change


def _truncate(name: str) -> Callable[[Path], None]:
    return lambda run: os.truncate(run / name, (run / name).stat().st_size - 100)


def _forget(part: str) -> Callable[[Path], None]:
    def forget(run: Path) -> None:
        path = run / "adapter" / "adapter_model.safetensors"
        kept = {name: tensor for name, tensor in load_file(path).items() if part not in name}
        assert kept and len(kept) < len(load_file(path))
        save_file(kept, path)

    return forget


def _weights_of(method: str, folder: str = "adapter") -> Callable[[Path], None]:
    def exchange(run: Path) -> None:
        shutil.rmtree(run / "adapter")
        shutil.copytree(make_run(run.parent / "other", method, "roberta") / folder, run / folder)

    return exchange


def _too_long(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"max_length": 128}))
    load_run(run)
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"max_length": 129}))


def _write_head(tensors: dict[str, torch.Tensor]) -> Callable[[Path], None]:
    return lambda run: save_file(tensors, run / "head" / "head.safetensors")


def _pickle_weights(run: Path) -> None:
    path = run / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(path), path.with_name("adapter_model.bin"))
    path.unlink()


FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (_remove("config.yaml"), "not a run directory, it has no config.yaml"),
    (_remove("metrics.json"), "not finished, it has no metrics.json; finish it with `prefixprop train … --resume`"),
    (_change_metrics(status="running"), "metrics.json:1: the status must be 'finished', got 'running'.*--overwrite"),
    (_write("metrics.json", '{"status": "fin'), r"metrics.json:1: broken JSON .*; train it again .*--overwrite"),
    (_write("metrics.json", "[]"), r"metrics.json:1: the metrics must be an object.*--overwrite"),
    (_change_metrics(temperature=0), "temperature must be a number above 0, got 0; .*--overwrite"),
    (_change_metrics(temperature="hot"), "temperature must be a number above 0, got 'hot'"),
    (_write("config.yaml", "model: tiny\nmethod: [a\n"), r"config.yaml:3: broken YAML"),
    (_write("config.yaml", "- model"), r"config.yaml:1: expected lines such as 'epochs: 10'"),
    (_write("config.yaml", "method: lora\nmodel: 3\n"), r"config.yaml:2: model: must be text, got 3"),
    (_write("config.yaml", "model: base\n"), "config.yaml: max_length is missing"),
    (_remove("labels.json"), "labels.json: the file is missing"),
    (_write("labels.json", '["art"]'), "labels.json:1: the labels must be a list of at least two"),
    (_write("labels.json", '["art", "art", "law"]'), "labels.json:1: the names of the labels must differ"),
    (_write("labels.json", '["art", "law"]'), "adapter: the weights cannot be read .*size mismatch"),
    (_remove("adapter"), "it has none"),
    (lambda run: (run / "model").mkdir(), "it has adapter and model"),
    (_remove("adapter/adapter_config.json"), "adapter_config.json: the file is missing"),
    (_truncate("adapter/adapter_model.safetensors"), "adapter: the weights cannot be read"),
    (_forget("classifier"), "adapter: the weights cannot be read .*classifier.* is missing"),
    (_forget("prefixes"), "adapter: the weights cannot be read .*prefixes"),
    (_pickle_weights, "adapter_model.safetensors: the file is missing"),
    (_remove("tokenizer"), "tokenizer is missing"),
    (_write("tokenizer/tokenizer.json", "{"), "tokenizer cannot be read"),
    (_weights_of("lora"), "of the type LORA, but the method in config.yaml is prefix-propagation"),
    (_weights_of("prefix-tuning"), "of the type LONG_PREFIX_TUNING, but the method in config.yaml is"),
    (_weights_of("fine-tuning", "model"), "prefix-propagation keeps its weights in adapter alone, .* it has model"),
    (_too_long, r"config\.yaml: max_length is 129, but the model reads 128 tokens at most"),
    (_remove("../base"), r"base model .*base' cannot be loaded \((?!--model).*Put it back where it was"),
]


OF_OTHER_METHODS: list[tuple[str, Callable[[Path], None], str]] = [
    ("lora", _forget("layer.1.attention.self.query.lora_B"), "weights of .*query.lora_B.* are missing"),
    ("fine-tuning", _too_long, "max_length is 129, but the model reads 128 tokens at most"),
    ("head-only", _too_long, "max_length is 129, but the model reads 128 tokens at most"),
    ("head-only", _remove("head/head.safetensors"), "head.safetensors: the file is missing"),
    ("head-only", _write_head({}), "head.safetensors: the weights do not fit"),
    ("head-only", _write_head({"other.weight": torch.zeros(2)}), "head.safetensors: the weights do not fit"),
    ("head-only", _truncate("head/head.safetensors"), "head.safetensors: the weights cannot be read"),
]


@pytest.mark.parametrize(
    ("method", "damage", "message"), [*(("prefix-propagation", *fault) for fault in FAULTS), *OF_OTHER_METHODS]
)
def test_unfinished_and_damaged_runs(
    method: str, damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path, method, "roberta")
    damage(run)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_run(run)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("method", "part"), [("lora", "tokenizer"), ("fine-tuning", "model")])
def test_code_in_a_run_is_never_run(method: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, method, "roberta")
    (run / part / "code.py").write_text(f"open({str(tmp_path / 'code-ran')!r}, 'w').close()\n")
    file = run / part / ("config.json" if part == "model" else "tokenizer_config.json")
    own = {"auto_map": {"AutoConfig": "code.Own", "AutoTokenizer": [None, "code.Own"]}}
    own |= {"tokenizer_class": "Own", "model_type": "own"}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ValueError, match=r"cannot be read \(.*contains custom code"):
        load_run(run)
    assert not (tmp_path / "code-ran").exists()


def test_devices(tmp_path: Path) -> None:
    run = make_run(tmp_path, family="roberta")
    assert next(load_run(run, device="cpu").model.parameters()).device.type == "cpu"
    with pytest.raises(ValueError, match="device='moon' is unknown"):
        load_run(run, device="moon")
