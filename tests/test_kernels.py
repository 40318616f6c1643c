"""Kernels: their values by hand and their parameters. The docs add one of one's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from prefixprop import PrefixPropagationConfig
from prefixprop.kernels import KERNELS, Kernel, Linear, Polynomial, RadialBasis, build_kernel, register_kernel

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


@pytest.mark.parametrize("size", [0.1, 10.0])
def test_a_high_power_neither_overflows_nor_vanishes(size: float) -> None:
    query, keys = size * torch.randn(2, 7, 8), size * torch.randn(2, 5, 8)
    powers = 64 * (query @ keys.transpose(-1, -2) / math.sqrt(8)).double().abs().log()
    weights = Polynomial(degree=64, offset=0.0).weights(query, keys)
    torch.testing.assert_close(weights.double(), powers.softmax(dim=-1), atol=1e-4, rtol=0)


def test_parameters_of_the_configuration() -> None:
    config = PrefixPropagationConfig(kernel="poly", kernel_degree=4, kernel_offset=2.0)
    assert build_kernel(config) == Polynomial(degree=4, offset=2.0)


def test_names_are_not_taken_twice() -> None:
    with pytest.raises(ValueError, match="already a kernel 'exp'; choose another name"):

        @register_kernel("exp")
        class Impostor(Kernel):
            def similarity(self, query: Tensor, key: Tensor) -> Tensor:
                return query @ key

    assert KERNELS["exp"].__name__ == "Exponential"
