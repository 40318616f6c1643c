"""The encoder a run starts from: its dropout, how much it reads, what is refused, and that its code never runs."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from prefixprop.backbones import find_backbone
from prefixprop.models.base_model import BaseModel, load_base_model

from tiny import batch, every_family
from tiny_runs import framing_tokenizer
from tiny_training import LABELS, save_tiny_model


@every_family
def test_dropout_and_limit(family: str, tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path / family, family))
    base = load_base_model(folder, dropout=0.25, attention_dropout=0.4)
    model = base.classifier(LABELS).train()
    rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    rates |= {getattr(module, "attention_dropout", 0.4) for module in model.modules()}  # ModernBERT's is no module
    assert rates <= {0.25, 0.4} and 0.25 in rates
    assert base.limit == find_backbone(model).max_tokens
    inputs = batch(model, [12])
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)
    still = load_base_model(folder, dropout=0.0).classifier(LABELS).train()
    assert torch.equal(still(**inputs).logits, still(**inputs).logits)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("megatron-bert", {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.4}),
        ("distilbert", {"dropout": 0.1, "attention_dropout": 0.1}),  # names that nobody here knows of
        ("modernbert", {"attention_dropout": 0.4, "embedding_dropout": 0.25, "mlp_dropout": 0.25}),
    ],
)
def test_dropout_of_other_families(family: str, expected: dict[str, float], tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path / family, family))
    config = load_base_model(folder, dropout=0.25, attention_dropout=0.4).classifier(LABELS).config
    assert {name: getattr(config, name) for name in expected} == expected


def test_a_folder_is_known_by_its_path_and_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_model(tmp_path / "model", "roberta")
    monkeypatch.chdir(tmp_path)
    base = load_base_model("model")
    assert base.name == str(folder) and base.revision is not None
    assert load_base_model(base.name, base.revision).revision == base.revision
    save_tiny_model(folder, "bert")
    with pytest.raises(ValueError, match=r"--model: the weights in .*model have changed since the run was trained"):
        load_base_model(base.name, base.revision)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"--model: there is no folder .*model; restore it"):  # and no hub is asked
        load_base_model(base.name, base.revision)


def huge_header(weights: Path) -> None:
    weights.write_bytes((2**62).to_bytes(8, "little") + b"{}")


def without_tokenizer(weights: Path) -> None:
    for file in weights.parent.glob("*token*"):
        file.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        lambda weights: os.truncate(weights, weights.stat().st_size // 2),
        lambda weights: weights.write_bytes(b""),
        huge_header,
        lambda weights: weights.unlink(),
        without_tokenizer,
        lambda weights: (weights.parent / "config.json").write_text("{"),
        lambda weights: (weights.parent / "tokenizer.json").write_text("{}"),
    ],
    ids=["truncated", "empty", "huge header", "no weights", "no tokenizer", "broken config", "broken tokenizer"],
)
def test_a_damaged_folder_is_named(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model", "roberta")
    damage(folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"--model: .*model' cannot be loaded as a folder"):
        load_base_model(str(folder)).classifier(LABELS)


@pytest.mark.parametrize(
    ("model_type", "auto_class", "build"),
    [
        ("own", "AutoConfig", lambda base: base.classifier(("a", "b"))),
        # Encoders of pictures, for which transformers has no classes of these kinds.
        ("vitdet", "AutoModelForSequenceClassification", lambda base: base.classifier(("a", "b"))),
        ("blip_vision_model", "AutoModel", lambda base: base.candidate_scorer(0, "mean")),
    ],
)
def test_code_beside_a_model_is_never_run(
    model_type: str, auto_class: str, build: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model(tmp_path / "model", "roberta")
    (folder / "code.py").write_text(f"open({str(tmp_path / 'code-ran')!r}, 'w').close()\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": model_type, "auto_map": {auto_class: "code.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 10))  # a user, or a pipe, that says yes to everything
    with pytest.raises(ValueError, match="contains custom code"):
        build(load_base_model(str(folder)))
    assert not (tmp_path / "code-ran").exists()


def test_a_model_of_the_hub_is_read_at_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def ask(name: str, revision: str, **_: object) -> None:
        asked.append((name, revision))
        raise OSError("there is no network")

    base = BaseModel("someone/encoder", "0123abc", framing_tokenizer(), 512, "someone/encoder")
    for auto_class, build in (
        ("AutoModelForSequenceClassification", lambda: base.classifier(("no", "yes"))),
        ("AutoModel", lambda: base.candidate_scorer(90, "mean")),
    ):
        monkeypatch.setattr(f"transformers.{auto_class}.from_pretrained", ask)
        with pytest.raises(ValueError, match="there is no network"):
            build()
    assert asked == [("someone/encoder", "0123abc")] * 2
