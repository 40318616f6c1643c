"""Plain PyTorch's attention as one operator of `torch.compile`.

How many global tokens there are is a value, and the shapes of `sliding_window` depend on it, which stops a compiler.
While one looks on, that computation is therefore an operator that it takes as it is, at any length. Its gradient is a
second one, which computes the first again and asks autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from prefixprop.attention import sliding_window
from prefixprop.attention.global_rows import Affine, is_plain, split_heads
from prefixprop.attention.pattern import AttentionPattern
from prefixprop.attention.prefix import PrefixedKeys, PrefixPart, add_prefix_part

PROJECTIONS = ("query", "key", "value", "query_global", "key_global", "value_global")
SEEDS = 2**62


def longformer_self_attention(
    module: Any,
    hidden_states: Tensor,
    pattern: AttentionPattern,
    prefix: PrefixedKeys | None = None,
    prefix_part: PrefixPart | None = None,
    output_attentions: bool = False,
) -> tuple[Tensor, ...]:
    """What the function of this name in `sliding_window` returns, without a graph break where it is compiled.

    Weights that are asked for have a column for each global token, so with `output_attentions` the graph breaks.
    """
    if output_attentions or not torch.compiler.is_compiling():
        return sliding_window.longformer_self_attention(
            module, hidden_states, pattern, prefix, prefix_part, output_attentions
        )
    query, key, value = (project(hidden_states) for project in (module.query, module.key, module.value))
    linears = [module.query_global, module.key_global, module.value_global]
    if prefix_part is None and all(is_plain(linear) for linear in linears):
        # In the type of a projection, under autocast too.
        tensors = [hidden_states, *(part for linear in linears for part in (linear.weight, linear.bias))]
        far = [tensor.to(query.dtype) for tensor in tensors]
    else:
        far = [linear(hidden_states) for linear in linears]
    dropout = float(module.dropout) if module.training else 0.0
    in_softmax = [] if prefix is None or prefix_part is not None else list(prefix)
    output = _attend(
        [query, key, value],
        far,
        in_softmax,
        pattern.is_masked,
        pattern.is_global,
        torch.randint(SEEDS, (1,)) if dropout else None,
        module.num_heads,
        module.one_sided_attn_window_size,
        pattern.rows_outside_softmax,
        dropout,
    )
    if prefix_part is not None:
        query = torch.where(pattern.is_global[..., None], far[0], query)
        by_head = [split_heads(rows, module.num_heads) for rows in (query, key, value, *far[1:])]
        output = add_prefix_part(output, prefix_part, by_head, prefix, pattern, dropout)
    return (output,)


def _attend_eagerly(
    near: list[Tensor],
    far: list[Tensor],
    prefix: list[Tensor],
    is_masked: Tensor,
    is_global: Tensor,
    seed: Tensor | None,
    heads: int,
    reach: int,
    rows_outside_softmax: int,
    dropout: float,
) -> Tensor:
    """Attention from `near`, the projected query, key and value of all rows.

    `far` is what global rows need: the states with weight and bias of query_global, key_global and value_global, or
    what these three made of all rows. `prefix` is empty, or keys and values (Eq. 2).
    """
    states, *rest = far
    linears: list[Any]
    if len(rest) == 6:
        linears = [Affine(*both) for both in zip(rest[::2], rest[1::2], strict=True)]
    else:  # rows of `states` are queries already
        linears = [nn.Identity(), *map(_already_made, rest)]
    module = SimpleNamespace(  # what attention asks of Hugging Face's
        num_heads=heads,
        one_sided_attn_window_size=reach,
        dropout=dropout,
        training=True,
        **dict(zip(PROJECTIONS, [*map(_already_made, near), *linears], strict=True)),
    )
    pattern = AttentionPattern(is_masked, is_global, rows_outside_softmax)
    with _drawing_from(seed, states.device):
        (output,) = sliding_window.longformer_self_attention(
            module, states, pattern, PrefixedKeys(*prefix) if prefix else None
        )
    return output.contiguous()


def _gradients(
    gradient: Tensor,
    near: list[Tensor],
    far: list[Tensor],
    prefix: list[Tensor],
    is_masked: Tensor,
    is_global: Tensor,
    seed: Tensor | None,
    heads: int,
    reach: int,
    rows_outside_softmax: int,
    dropout: float,
    needed: list[bool],
) -> list[Tensor]:
    """Gradients of those of near, far and prefix, one after the other, that are `needed`."""
    inputs = [tensor.detach() for tensor in (*near, *far, *prefix)]
    wanted = [tensor.requires_grad_() for tensor, need in zip(inputs, needed, strict=True) if need]
    near, far, prefix = _split(inputs, (len(near), len(far), len(prefix)))
    with _autograd():
        rest = (is_masked, is_global, seed, heads, reach, rows_outside_softmax, dropout)
        output = _attend_eagerly(near, far, prefix, *rest)
    # Without a global token nothing depends on what is there for global rows.
    found = torch.autograd.grad(output, wanted, gradient, materialize_grads=True)
    return [each.contiguous() for each in found]


def _already_made(projected: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: projected


@contextmanager
def _autograd() -> Iterator[None]:
    """Switch autograd on inside of an operator, where PyTorch has left it behind."""
    keys = torch._C.DispatchKey
    with (
        torch._C._SetExcludeDispatchKeyGuard(keys.AutogradFunctionality, False),
        torch._C._SetExcludeDispatchKeyGuard(keys.ADInplaceOrView, False),
        torch.enable_grad(),
    ):
        yield


@contextmanager
def _drawing_from(seed: Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw dropout's masks from `seed`, so that forward and backward draw the same; others' numbers stay theirs."""
    if seed is None:
        yield
    elif device.type == "cpu":
        with torch.random.fork_rng([]):
            # Not torch.manual_seed, which would seed all devices.
            torch.default_generator.manual_seed(int(seed))
            yield
    else:
        accelerator = torch.get_device_module(device)
        with torch.random.fork_rng([device], device_type=device.type), accelerator.device(device):
            accelerator.manual_seed(int(seed))
            yield


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    near, far, prefix, is_masked, is_global, seed, *ctx.numbers = inputs
    ctx.counts = len(near), len(far), len(prefix)
    ctx.save_for_backward(*near, *far, *prefix, is_masked, is_global, seed)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    *tensors, is_masked, is_global, seed = ctx.saved_tensors
    parts = _split(tensors, ctx.counts)
    needed = [need for group in ctx.needs_input_grad[:3] for need in group]
    found = iter(_find_gradients(gradient, *parts, is_masked, is_global, seed, *ctx.numbers, needed))
    gradients = [next(found) if need else None for need in needed]
    return (*_split(gradients, ctx.counts), *(None,) * 7)


def _split(items: list, counts: tuple[int, ...]) -> list[list]:
    remaining = iter(items)
    return [[next(remaining) for _ in range(count)] for count in counts]


def _output_shape(near: list[Tensor], *_: Any) -> Tensor:
    return near[0].new_empty(near[0].shape)


def _gradient_shapes(
    gradient: Tensor, near: list[Tensor], far: list[Tensor], prefix: list[Tensor], *rest: Any
) -> list[Tensor]:
    inputs = zip((*near, *far, *prefix), rest[-1], strict=True)
    return [tensor.new_empty(tensor.shape) for tensor, need in inputs if need]


_attend = torch.library.custom_op("prefixprop::plain_attention", _attend_eagerly, mutates_args=())
_attend.register_fake(_output_shape)
_attend.register_autograd(_backward, setup_context=_keep)
_find_gradients = torch.library.custom_op("prefixprop::plain_attention_gradients", _gradients, mutates_args=())
_find_gradients.register_fake(_gradient_shapes)
