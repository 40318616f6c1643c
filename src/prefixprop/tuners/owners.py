"""Which adapter each document of a batch has."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Owners:
    """The adapters of a batch on a device. What modules ask is made once, in front of the pass: later, a list that
    goes to a GPU would wait for all that is under way there."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.adapters = list(dict.fromkeys(names))
        self.places = {name: [place for place, own in enumerate(names) if own == name] for name in self.adapters}
        owner = [self.adapters.index(name) for name in names]
        in_turn = [place for own in self.places.values() for place in own]
        back = sorted(range(len(names)), key=in_turn.__getitem__)
        self.owner, self.by_adapter, self.back = torch.tensor([owner, in_turn, back], device=device)
