"""Weights and settings that do not go together are refused, even where the manifest has them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from prefixprop import load_run

from tiny_runs import finish_again, make_run

METHODS = ("prefix-propagation", "fine-tuning", "head-only")


def change_settings(run: Path, **changes: object) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config.keys() >= changes.keys()
    (run / "config.yaml").write_text(yaml.safe_dump(config | changes))
    finish_again(run)


@pytest.mark.parametrize("method", ["prefix-tuning", "lora", "fine-tuning"])
def test_another_methods_weights(method: str, tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "a", "prefix-propagation"), make_run(tmp_path / "b", method)
    shutil.rmtree(run / "adapter")
    folder = "model" if method == "fine-tuning" else "adapter"
    shutil.copytree(other / folder, run / folder)
    finish_again(run)
    message = {
        "prefix-tuning": "of the type LONG_PREFIX_TUNING, but the method in config.yaml is prefix-propagation",
        "lora": "of the type LORA, but the method in config.yaml is prefix-propagation",
        "fine-tuning": "prefix-propagation keeps its weights in adapter alone, .* it has model",
    }
    with pytest.raises(ValueError, match=message[method]):
        load_run(run)


@pytest.mark.parametrize("method", METHODS)
def test_texts_longer_than_the_model_reads(method: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, method, "roberta")
    change_settings(run, max_length=128)
    load_run(run)
    change_settings(run, max_length=129)
    with pytest.raises(ValueError, match=r"config\.yaml: max_length is 129, but the model reads 128 tokens at most"):
        load_run(run)
