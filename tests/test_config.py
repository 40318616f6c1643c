"""Bad settings end in one sentence that says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig

both = pytest.mark.parametrize("config", [PrefixPropagationConfig, PrefixTuningConfig])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_virtual_tokens": 0}, "num_virtual_tokens=0 must be a whole number from 1 to"),
        ({"reparameterize": True, "reparameterize_hidden": 10**20}, "must be a whole number from 1 to 65,536"),
        ({"kernel": "poly", "kernel_degree": 10**20}, "must be an even whole number from 2 to 64"),
        ({"num_virtual_tokens": True}, "num_virtual_tokens=True must be"),
        ({"layout": "papers"}, "layout='papers' is unknown; choose one of paper, reference"),
        ({"pooling": "mean"}, "pooling='mean' is unknown; choose one of cls, prefix"),
        ({"init": "zeros"}, "init='zeros' is unknown; choose one of normal, vocab"),
        ({"prefix_dropout": 1.0}, "prefix_dropout=1.0 must be at least 0 and less than 1"),
        ({"prefix_dropout": "0.1"}, "prefix_dropout='0.1' must be"),
        ({"reparameterize_hidden": 8}, "reparameterize_hidden needs reparameterize=True"),
        ({"kernel": "sigmoid"}, "kernel='sigmoid' is unknown; choose one of exp, linear, poly, rbf, or register it"),
        ({"kernel": "exp", "alpha": float("nan")}, "alpha=nan must be a number from"),
        ({"kernel": "exp", "alpha_mode": "token"}, "alpha_mode='token' is unknown; choose one of fixed, layer, head"),
        ({"alpha_mode": "head"}, "alpha_mode='head' needs a kernel; set kernel='exp'"),
        ({"kernel": "poly", "kernel_degree": 3}, "kernel_degree=3 must be an even whole number from 2 to 64"),
        ({"kernel": "poly", "kernel_offset": -1.0}, "kernel_offset=-1.0 must be a number of at least 0"),
        ({"kernel": "rbf", "kernel_length_scale": 0.0}, "kernel_length_scale=0.0 must be a positive number"),
        ({"kernel": "rbf", "kernel_degree": 4}, "kernel_degree is not a parameter of kernel 'rbf'; leave it out"),
        ({"task_type": "CAUSAL_LM"}, "task_type='CAUSAL_LM' is not supported; choose one of SEQ_CLS, TOKEN_CLS"),
        ({"lora": 8}, "lora=8 must be a peft LoraConfig"),
        ({"task_type": "SEQCLS"}, "Invalid task type: 'SEQCLS'"),
    ],
)
@both
def test_bad_values(config: Any, options: dict, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        config(**options)
    assert message in str(raised.value)


def test_prefix_tuning_has_no_row_to_pool() -> None:
    with pytest.raises(ValueError, match="prefix-tuning adds no tokens that could be pooled, so use pooling='cls'"):
        PrefixTuningConfig(pooling="prefix")


@both
def test_round_trip_through_peft(config: Any, tmp_path: Path) -> None:
    made = config(task_type="SEQ_CLS", num_virtual_tokens=5, layout="reference", prefix_dropout=0.0)
    made.save_pretrained(tmp_path)
    loaded = peft.PeftConfig.from_pretrained(tmp_path)
    assert type(loaded) is config
    assert loaded == made
    assert loaded.peft_type == made.peft_type
    assert loaded.peft_type.value == json.loads((tmp_path / "adapter_config.json").read_text())["peft_type"]


def test_pefts_own_prefix_tuning_is_left_alone() -> None:
    assert peft.PEFT_TYPE_TO_CONFIG_MAPPING["PREFIX_TUNING"] is peft.PrefixTuningConfig
    assert PrefixTuningConfig().peft_type != "PREFIX_TUNING"
