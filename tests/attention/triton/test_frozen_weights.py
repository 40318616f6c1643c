"""What a frozen backbone does not pay for: gradients of its weights, and activations that only those would need."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from prefixprop import attention

from tiny import tiny_model

pytest.importorskip("triton")

BATCH, LENGTH, HIDDEN, HEADS = 2, 23, 32, 2


def encoder(layers: int, frozen: bool = True) -> Any:
    model = tiny_model(
        task="FEATURE_EXTRACTION",
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        attention_window=[8] * layers,
    )
    attention.install(model, backend="triton")
    return model.requires_grad_(not frozen)


def embedded() -> dict[str, Tensor]:
    everywhere = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    everywhere[:, 0] = 1
    states = torch.randn(BATCH, LENGTH, HIDDEN, requires_grad=True)
    return {
        "inputs_embeds": states,
        "attention_mask": torch.ones_like(everywhere),
        "global_attention_mask": everywhere,
    }


def kept_elements(model: Any) -> int:
    """Elements of all activations that wait for backward, each storage once."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.numel() % (BATCH * LENGTH) == 0:  # not a weight: those have no such length
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(**embedded())
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in kept.values())


def test_activations_kept_for_a_layer() -> None:
    """Eleven times the hidden size for every row, and a few numbers.

    Those are the layer's input, its queries, keys and values, attention's rows, the two sums that are normalised, and
    the feed-forward's four before its activation; each head's total, and both sums' mean and deviation.
    """
    of_a_layer = kept_elements(encoder(layers=2)) - kept_elements(encoder(layers=1))
    assert 5 * HIDDEN < of_a_layer / (BATCH * LENGTH) <= 11 * HIDDEN + HEADS + 4


def test_activations_kept_for_lora() -> None:
    """Of every linear layer's side path, rows of its rank, padded to 16."""

    def adapted(layers: int) -> Any:
        config = LoraConfig(r=4, lora_dropout=0.1, target_modules=["query", "value", "intermediate.dense"])
        return inject_adapter_in_model(config, encoder(layers)).train()

    plain = kept_elements(encoder(layers=2)) - kept_elements(encoder(layers=1))
    of_a_layer = kept_elements(adapted(2)) - kept_elements(adapted(1))
    # Dropout has a word for each row of a path, and for each column of a piece.
    assert plain < of_a_layer <= plain + (3 * 16 + 2) * BATCH * LENGTH + 3 * HIDDEN + 4


def matrix_work(model: Any) -> tuple[int, int]:
    """Multiplications of the matrix products outside the kernels: forward, backward."""
    inputs = embedded()
    with FlopCounterMode(display=False) as forward:
        output = model(**inputs).last_hidden_state.sum()
    with FlopCounterMode(display=False) as backward:
        output.backward()
    assert inputs["inputs_embeds"].grad is not None
    return forward.get_total_flops(), backward.get_total_flops()


def test_gradients_of_frozen_weights_are_not_computed() -> None:
    frozen = encoder(layers=1)
    forward, backward = matrix_work(frozen)
    # Back to the states costs what forward does, and again two of its fourteen parts: global keys and values.
    assert backward <= 1.2 * forward
    assert all(parameter.grad is None for parameter in frozen.parameters())
    trained = matrix_work(encoder(layers=1, frozen=False))
    assert trained[0] == forward and trained[1] > 1.9 * forward
