"""AdamW for a bank of readers against PyTorch's for each of them, in PyTorch and as a kernel."""

from __future__ import annotations

import pytest
import torch

from prefixprop.train.bank_trainer import ReaderAdamW
from prefixprop.train.trainer import share_of_peak


@pytest.mark.parametrize(("decay", "max_norm"), [(0.1, 1.0), (0.0, 0.3), (0.2, 0.0)])
@pytest.mark.parametrize("fused", [False, True])
def test_it_is_adamw_for_each_reader(decay: float, max_norm: float, fused: bool) -> None:
    if fused:
        pytest.importorskip("triton")
    rates = [1e-3, 0.1, 3e-2]
    start = [torch.randn(3, 2, 4, dtype=torch.float64), torch.randn(3, 21, dtype=torch.float64)]
    own = [tensor.clone().requires_grad_() for tensor in start]
    together = ReaderAdamW(own, torch.tensor(rates, dtype=torch.float64), decay, max_norm)
    together.is_fused = fused
    alone = [[tensor[index].clone().requires_grad_() for tensor in start] for index in range(3)]
    optimizers = [
        torch.optim.AdamW(
            [{"params": [wide], "weight_decay": decay}, {"params": [bias], "weight_decay": 0.0}], lr=1.0
        )
        for wide, bias in alone
    ]
    for step in range(6):
        # Of all sizes: some are clipped and others are not.
        gradients = [torch.randn_like(tensor) * 10.0 ** (step % 3 - 1) for tensor in start]
        for held, gradient in zip(together.gradients, gradients, strict=True):
            held.copy_(gradient)
        share = share_of_peak(step, 2, 6)
        together.step(share)
        for index, (parameters, optimizer) in enumerate(zip(alone, optimizers, strict=True)):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient[index].clone()
            if max_norm:
                torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            for group in optimizer.param_groups:
                group["lr"] = rates[index] * share
            optimizer.step()
            for one, two in zip(own, parameters, strict=True):
                torch.testing.assert_close(one[index], two, atol=1e-6, rtol=0)
