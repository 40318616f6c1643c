"""Weights in float32 that an optimizer changes, for a model that computes in bfloat16.

In bfloat16 a weight has 8 bits: most steps are smaller than the last of them and would be lost.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BETAS, _EPSILON = (0.9, 0.98), 1e-6  # RoBERTa's


class MasterWeights:
    """What is trained of a model, by name, with its optimizer; converts the model to `dtype`."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, weight_decay: float) -> None:
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.by_name: dict[str, Tensor] = {
            name: parameter if dtype == torch.float32 else parameter.detach().float().clone()
            for name, parameter in trained.items()
        }
        self.frozen = {
            name: parameter.detach().to("cpu", copy=True)
            for name, parameter in model.named_parameters()
            if not parameter.requires_grad
        }
        self.model = model.to(dtype)
        self.computed: list[Tensor] = list(trained.values())
        self.masters = list(self.by_name.values())
        groups = [
            {"params": [tensor for tensor in self.masters if tensor.ndim > 1], "weight_decay": weight_decay},
            {"params": [tensor for tensor in self.masters if tensor.ndim <= 1], "weight_decay": 0.0},
        ]
        on_gpu = self.masters[0].is_cuda
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=_BETAS, eps=_EPSILON, fused=on_gpu)

    def collect_gradients(self) -> None:
        """Add the gradients of the model to those of the masters, in float32."""
        if self.masters[0] is self.computed[0]:
            return
        made = [parameter.grad for parameter in self.computed if parameter.grad is not None]
        assert len(made) == len(self.computed), "every trained weight takes part in every step"
        is_first = self.masters[0].grad is None
        if is_first:
            for master in self.masters:
                master.grad = torch.empty_like(master)
        sums = [master.grad for master in self.masters if master.grad is not None]
        (torch._foreach_copy_ if is_first else torch._foreach_add_)(sums, made)
        for parameter in self.computed:
            parameter.grad = None

    def step(self, rate: float, max_grad_norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.masters, max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Give the model the masters' values."""
        if self.masters[0] is not self.computed[0]:
            torch._foreach_copy_(self.computed, self.masters)

    @torch.no_grad()
    def end(self) -> None:
        """Turn the model into one of float32, with the masters' values and what was not trained as it was."""
        self.model.float()
        for name, tensor in (self.by_name | self.frozen).items():
            self.model.get_parameter(name).copy_(tensor)

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], optimizer: dict) -> None:
        for name, master in self.by_name.items():
            master.copy_(tensors[name])
        self.optimizer.load_state_dict(optimizer)
        self.publish()
