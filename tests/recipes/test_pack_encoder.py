"""Packing: what is read back is near what was packed, and exact where four bits suffice."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import pack_encoder
from prefixprop.choices import DEFAULT_MODEL
from prefixprop.models.embedded import DIFFERENCES, EMBEDDED, GROUP, add_difference, lengthened_original

from tiny import tiny_model

QUERY = "encoder.layer.0.attention.self.query"


def test_a_packed_difference_is_added_to_local_and_global_weights(tmp_path: Path) -> None:
    encoder = tiny_model("longformer", "FEATURE_EXTRACTION")
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    exact = torch.arange(-7, 8).repeat(100)[: 32 * GROUP].view(32, GROUP) * 0.5
    bias = torch.arange(32.0)
    packed, scale = pack_encoder.pack(exact)
    assert packed.shape == (32, GROUP // 2) and packed.dtype == torch.uint8
    save_file(
        {f"{QUERY}.weight": packed, f"{QUERY}.weight_scale": scale, f"{QUERY}.bias": bias}, tmp_path / DIFFERENCES
    )
    after = add_difference(encoder, tmp_path / DIFFERENCES).state_dict()
    for name in (QUERY, f"{QUERY}_global"):
        torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + exact)
        assert torch.equal(after[f"{name}.bias"], bias)
    untouched = "encoder.layer.1.output.dense.weight"
    assert torch.equal(after[untouched], before[untouched])


def test_the_error_is_a_tenth_of_a_normal_difference() -> None:
    difference = torch.randn(64, 4 * GROUP)
    packed, scale = pack_encoder.pack(difference)
    nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).float() - 8
    restored = (nibbles.unflatten(-1, (-1, GROUP)) * scale.float()[..., None]).flatten(-2)
    assert (restored - difference).norm() < 0.11 * difference.norm()


def test_a_share_of_the_change_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dataclasses.replace(EMBEDDED[DEFAULT_MODEL], trained=False)("MASKED_LM")
    query = model.longformer.encoder.layer[3].attention.self.query
    original = lengthened_original().state_dict()
    with torch.no_grad():
        query.weight += 0.02
        query.bias += 1.0
    model.save_pretrained(tmp_path / "trained")
    monkeypatch.setattr(sys, "argv", ["pack", str(tmp_path / "trained"), str(tmp_path / "packed"), "--keep", "0.25"])
    pack_encoder.main()
    restored = add_difference(lengthened_original(), tmp_path / "packed" / DIFFERENCES).state_dict()
    name = "encoder.layer.3.attention.self.query"
    for key in (name, f"{name}_global"):
        difference = restored[f"{key}.weight"] - original[f"{key}.weight"]
        torch.testing.assert_close(difference, torch.full_like(difference, 0.005), rtol=0.01, atol=0)
        torch.testing.assert_close(restored[f"{key}.bias"], original[f"{key}.bias"] + 0.25)
    assert {key for key in restored if not torch.equal(restored[key], original[key])} == {
        f"{name}{kind}.{part}" for kind in ("", "_global") for part in ("weight", "bias")
    }
