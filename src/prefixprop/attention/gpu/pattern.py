"""Who sees whom, as the kernels read it: made on the device, so that nobody waits for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from prefixprop.attention.gpu.tiles import GLOBAL, LOCAL, MASKED
from prefixprop.attention.pattern import AttentionPattern

SHARES = 16  # programs that share the global rows, or the listed keys, of an example's head


class DevicePattern(NamedTuple):
    """`tokens` [batch, length + 1] lists each example's global tokens at its front.

    `listed` are the keys that every local row sees, as rows of all examples' tokens one after the other: first the
    prefix keys, which are further rows at the end (Eq. 2), then the global tokens. `facts` [batch, 4] are counts and
    bounds, in the order that tiles.py names.
    """

    kind: Tensor  # [batch, length]: LOCAL, GLOBAL or MASKED
    tokens: Tensor
    listed: Tensor
    facts: Tensor
    arrivals: Tensor  # [lanes, shares], zeros, as kernels leave it: where programs that share work count who is done

    @classmethod
    def of(cls, pattern: AttentionPattern, prefix_keys: int, heads: int) -> DevicePattern:
        masked, everywhere = pattern.is_masked, pattern.is_global
        batch, length = masked.shape
        kind = torch.where(masked, MASKED.value, torch.where(everywhere, GLOBAL.value, LOCAL.value)).to(torch.int8)
        tokens, token_count = _listed(everywhere)
        row = torch.arange(batch, dtype=torch.int32, device=masked.device)[:, None]
        keys, key_count = _listed(everywhere & ~pattern.is_prefix) if pattern.hidden_rows else (tokens, token_count)
        keys = keys + row * length
        if prefix_keys:
            place = torch.arange(prefix_keys, dtype=torch.int32, device=masked.device)
            keys = torch.cat([batch * length + row * prefix_keys + place, keys], dim=1)
            key_count = key_count + prefix_keys
        shown = (~masked).to(torch.int8)
        first = shown.argmax(dim=1)
        last = torch.where(shown.any(dim=1), length - shown.flip(1).argmax(dim=1), 0)
        facts = torch.stack([first.int(), last.int(), token_count, key_count], dim=1)
        shares = SHARES if masked.is_cuda else 3  # the interpreter runs one after the other
        arrivals = torch.zeros(batch * heads, shares, dtype=torch.int32, device=masked.device)
        return cls(kind, tokens, keys, facts, arrivals)


def _listed(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The places of what is wanted in each row, at the front of [batch, length + 1], and their number."""
    batch, length = wanted.shape
    count = wanted.cumsum(dim=1, dtype=torch.int32)
    places = torch.arange(length, dtype=torch.int32, device=wanted.device).expand(batch, -1)
    front = torch.zeros(batch, length + 1, dtype=torch.int32, device=wanted.device)
    # What is not wanted goes to the last place, which is never read.
    return front.scatter_(1, torch.where(wanted, count - 1, length).long(), places), count[:, -1]
