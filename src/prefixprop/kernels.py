"""Kernels of the decomposition (Eq. 3): how much a query attends to each prefix key.

To add one, write a `Kernel` with a `similarity`, and call `register_kernel` before a configuration uses it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from prefixprop.config import PrefixConfig


@dataclass(frozen=True)
class Kernel(ABC):
    """How similar a query and a prefix key are. The configuration's `kernel_x`, if it exists, sets the field `x`."""

    name: ClassVar[str]

    @abstractmethod
    def similarity(self, query: Tensor, key: Tensor) -> Tensor:
        """k(q, k), not negative: [..., rows, size] and [..., j, size] to [..., rows, j]."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Similarities normalised over the keys."""
        return normalised(self.similarity(query, key))


KERNELS: dict[str, type[Kernel]] = {}
KernelType = TypeVar("KernelType", bound=type[Kernel])


def register_kernel(name: str) -> Callable[[KernelType], KernelType]:
    """Make a `Kernel` available to configurations and the command line under `name`."""

    def register(kernel: KernelType) -> KernelType:
        if name in KERNELS and KERNELS[name].__qualname__ != kernel.__qualname__:
            raise ValueError(f"There is already a kernel {name!r}; choose another name.")
        kernel.name = name
        KERNELS[name] = kernel
        return kernel

    return register


class LogKernel(Kernel):
    """A kernel that is the exponential of something: normalised by softmax, which cannot overflow."""

    @abstractmethod
    def log_similarity(self, query: Tensor, key: Tensor) -> Tensor: ...

    def similarity(self, query: Tensor, key: Tensor) -> Tensor:
        return self.log_similarity(query, key).exp()

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return self.log_similarity(query, key).softmax(dim=-1)


@register_kernel("exp")
@dataclass(frozen=True)
class Exponential(LogKernel):
    """exp(⟨q, k⟩ / √d), the kernel of softmax attention."""

    def log_similarity(self, query: Tensor, key: Tensor) -> Tensor:
        return scaled_product(query, key)


@register_kernel("rbf")
@dataclass(frozen=True)
class RadialBasis(LogKernel):
    """exp(-‖q - k‖² / (2 length_scale²)), with length_scale² = √d unless set."""

    length_scale: float | None = None

    def __post_init__(self) -> None:
        if self.length_scale is not None and not 0 < self.length_scale < math.inf:
            raise ValueError(f"kernel_length_scale={self.length_scale!r} must be a positive number.")

    def log_similarity(self, query: Tensor, key: Tensor) -> Tensor:
        square = math.sqrt(query.shape[-1]) if self.length_scale is None else self.length_scale**2
        distance = (
            query.square().sum(dim=-1, keepdim=True)
            - 2 * query @ key.transpose(-1, -2)
            + key.square().sum(dim=-1)[..., None, :]
        )
        return -distance / (2 * square)


@register_kernel("poly")
@dataclass(frozen=True)
class Polynomial(Kernel):
    """(⟨q, k⟩ / √d + offset)^degree; an even degree, so that it is never negative."""

    degree: int = 2
    offset: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.degree, int) or not 2 <= self.degree <= 64 or self.degree % 2:
            raise ValueError(f"kernel_degree={self.degree!r} must be an even whole number from 2 to 64.")
        if not 0 <= self.offset < math.inf:
            raise ValueError(f"kernel_offset={self.offset!r} must be a number of at least 0.")

    def similarity(self, query: Tensor, key: Tensor) -> Tensor:
        return self._base(query, key).pow(self.degree)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        base = self._base(query, key)
        # With the largest as 1 no power overflows, nor do all of them vanish; the weights are the same.
        return normalised((base / at_least_tiny(base.detach().abs().amax(dim=-1, keepdim=True))).pow(self.degree))

    def _base(self, query: Tensor, key: Tensor) -> Tensor:
        return scaled_product(query, key) + self.offset


@register_kernel("linear")
@dataclass(frozen=True)
class Linear(Kernel):
    """φ(q) · φ(k) with φ(x) = elu(x / d^¼) + 1 (Katharopoulos et al., 2020)."""

    def similarity(self, query: Tensor, key: Tensor) -> Tensor:
        from torch.nn import functional as F

        root = query.shape[-1] ** 0.25
        return (F.elu(query / root) + 1) @ (F.elu(key / root) + 1).transpose(-1, -2)


def normalised(similarity: Tensor) -> Tensor:
    """Divided by their sum over the keys; zeros stay zeros."""
    return similarity / at_least_tiny(similarity.sum(dim=-1, keepdim=True))


def at_least_tiny(divisor: Tensor) -> Tensor:
    import torch  # not above: the command line lists kernels before it loads PyTorch

    return divisor.clamp(min=torch.finfo(divisor.dtype).tiny)


def scaled_product(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])


def build_kernel(config: PrefixConfig) -> Kernel:
    """The kernel that a configuration names, with the configuration's parameters."""
    if config.kernel not in KERNELS:
        raise ValueError(
            f"kernel={config.kernel!r} is unknown; choose one of {', '.join(sorted(KERNELS))}, or register it first "
            "with prefixprop.kernels.register_kernel (on the command line, in a module given to --import)."
        )
    kernel = KERNELS[config.kernel]
    own = {parameter.name for parameter in fields(kernel)}
    given = {
        option.name.removeprefix("kernel_"): getattr(config, option.name)
        for option in fields(config)
        if option.name.startswith("kernel_")
    }
    for name, value in given.items():
        default = type(config).__dataclass_fields__[f"kernel_{name}"].default
        if name not in own and value != default:
            raise ValueError(f"kernel_{name} is not a parameter of kernel {config.kernel!r}; leave it out.")
    return kernel(**{name: value for name, value in given.items() if name in own})
