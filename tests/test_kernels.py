"""Kernels: their values by hand, their parameters, and kernels of one's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from prefixprop import PrefixPropagationConfig
from prefixprop.kernels import KERNELS, Kernel, Linear, Polynomial, RadialBasis, build_kernel, register_kernel

from tiny import adapt, batch, tiny_model

QUERY = torch.tensor([[1.0, 0.0, 2.0, -1.0]])
KEYS = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])  # products with the query: 1 and 1


def test_values_by_hand() -> None:
    product, root = 1.0 / 2, math.sqrt(2.0)  # d = 4: √d = 2, d^¼ = √2
    exponential = KERNELS["exp"]().similarity(QUERY, KEYS)
    torch.testing.assert_close(exponential, torch.tensor([[math.exp(product), math.exp(product)]]))
    distances = torch.tensor([[0.0 + 1 + 4 + 1, 1 + 0 + 1 + 4.0]])
    torch.testing.assert_close(RadialBasis().similarity(QUERY, KEYS), (-distances / 4).exp())
    torch.testing.assert_close(RadialBasis(length_scale=3.0).similarity(QUERY, KEYS), (-distances / 18).exp())
    torch.testing.assert_close(Polynomial().similarity(QUERY, KEYS), torch.full((1, 2), 1.5**2))
    fourth = Polynomial(degree=4, offset=0.0).similarity(QUERY, KEYS)
    torch.testing.assert_close(fourth, torch.full((1, 2), 0.5**4))

    def phi(x: float) -> float:
        return x / root + 1 if x > 0 else math.exp(x / root)

    expected = [sum(phi(q) * phi(k) for q, k in zip(QUERY[0].tolist(), key, strict=True)) for key in KEYS.tolist()]
    torch.testing.assert_close(Linear().similarity(QUERY, KEYS), torch.tensor([expected]))


@pytest.mark.parametrize("name", ["exp", "rbf", "poly", "linear"])
def test_weights_are_normalised_and_never_negative(name: str) -> None:
    query, keys = 30 * torch.randn(2, 3, 7, 8), 30 * torch.randn(2, 3, 5, 8)
    weights = KERNELS[name]().weights(query, keys)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 7))


def test_polynomial_that_is_zero_everywhere_gives_no_nan() -> None:
    weights = Polynomial(offset=0.0).weights(torch.zeros(1, 4), KEYS)
    assert torch.equal(weights, torch.zeros(1, 2))


@pytest.fixture
def cosine() -> Iterator[str]:
    @register_kernel("cosine")
    @dataclass(frozen=True)
    class Cosine(Kernel):
        """1 + cos of the angle."""

        offset: float = 1.0

        def similarity(self, query: Tensor, key: Tensor) -> Tensor:
            return normalize(query, dim=-1) @ normalize(key, dim=-1).mT + self.offset

    yield "cosine"
    del KERNELS["cosine"]


@pytest.mark.parametrize("family", ["longformer", "roberta"])
def test_a_kernel_of_ones_own(cosine: str, family: str) -> None:
    config = PrefixPropagationConfig(kernel=cosine, kernel_offset=2.0)
    assert build_kernel(config).offset == 2.0
    model = adapt(tiny_model(family), "propagation", kernel=cosine, alpha=0.7, alpha_mode="layer")
    output = model(**batch(model, [14, 9]), labels=torch.tensor([0, 1]))
    output.loss.backward()
    assert model.get_alpha().grad.abs().sum() > 0
    other = adapt(tiny_model(family), "propagation", kernel="exp", alpha=0.7)
    other.set_prefix(model.get_prefix().detach())
    assert not torch.allclose(other(**batch(model, [14, 9])).logits, output.logits, atol=1e-4)


def test_names_are_not_taken_twice() -> None:
    with pytest.raises(ValueError, match="already a kernel 'exp'; choose another name"):

        @register_kernel("exp")
        class Impostor(Kernel):
            def similarity(self, query: Tensor, key: Tensor) -> Tensor:
                return query @ key

    assert KERNELS["exp"].__name__ == "Exponential"
