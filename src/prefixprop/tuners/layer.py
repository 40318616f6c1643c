"""The module that holds every adapter's prefix and hooks the active one into the encoder."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from prefixprop.attention.batched_lora import Owners
from prefixprop.attention.patch import Undo
from prefixprop.attention.prefix import NO_PREFIX, LayerPrefix, PrefixedKeys
from prefixprop.backbones import Backbone
from prefixprop.config import PrefixConfig
from prefixprop.tuners.kernel import PrefixAttention

INIT_STD = 0.02


class PrefixNetwork(nn.Module):
    """MLP reparameterisation (Li & Liang, 2021): j embeddings go through two layers to every layer's prefix."""

    def __init__(self, layers: int, length: int, features: int, width: int, hidden: int) -> None:
        super().__init__()
        self.features = features
        self.embedding = nn.Parameter(torch.randn(length, width))
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, layers * features)
        # About INIT_STD for the prefix that comes out, as for a prefix trained directly.
        nn.init.normal_(self.outer.weight, std=2 * INIT_STD / math.sqrt(hidden))
        nn.init.zeros_(self.outer.bias)

    def forward(self, layer: int) -> Tensor:
        """[j, features] of one layer."""
        rows = slice(layer * self.features, (layer + 1) * self.features)
        return F.linear(torch.tanh(self.inner(self.embedding)), self.outer.weight[rows], self.outer.bias[rows])


class Prefix(nn.Module):
    """The prefix of one adapter, [layers, *shape of one layer], with dropout per example.

    With a network the prefix is `weight + network`, and only the network is trained: `weight` then holds what was
    loaded or set, so that a saved prefix can be restored without the network that made it.
    """

    weight: Tensor

    def __init__(
        self, start: Tensor, dropout: float, network: PrefixNetwork | None = None, gated: bool = False
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.network = network
        self.gate = nn.Parameter(start.new_ones(len(start))) if gated else None
        if network is None:
            self.weight = nn.Parameter(start)
        else:
            self.register_buffer("weight", start)

    def layer(self, index: int, batch: int) -> Tensor:
        """One layer's prefix times its gate, [batch, ...], or [1, ...] if it is the same for all examples."""
        value = self._of_layer(index)[None]
        if self.gate is not None:
            value = value * self._scale(self.gate[index])
        if self.training and self.dropout:
            value = F.dropout(value.expand(batch, *value.shape[1:]), self.dropout)
        return value

    def gated(self) -> Tensor:
        """The whole prefix times its gates, as layers see it without dropout."""
        return self.value() if self.gate is None else self.value() * self._scale(self.gate)

    def _scale(self, gate: Tensor) -> Tensor:
        """The factor for virtual tokens (Eq. 1), or for keys and values (Eq. 2): keys are not scaled."""
        if self.weight.dim() == 3:
            return gate[..., None, None]
        return F.pad(gate[..., None], (1, 0), value=1.0)[..., None, None, None]

    def value(self) -> Tensor:
        """The whole prefix without its gates: the parameter itself, or what the network computes."""
        return self.weight if self.network is None else self.weight + self.from_network()

    @torch.no_grad()
    def assign(self, value: Tensor) -> None:
        """Make `value` the prefix."""
        self.weight.copy_(value if self.network is None else value - self.from_network())

    def from_network(self) -> Tensor:
        return torch.stack([self._network_of_layer(index) for index in range(len(self.weight))])

    def _of_layer(self, index: int) -> Tensor:
        return self.weight[index] if self.network is None else self.weight[index] + self._network_of_layer(index)

    def _network_of_layer(self, index: int) -> Tensor:
        assert self.network is not None
        rows = self.network(index)
        if self.weight.dim() == 3:
            return rows
        _, two, heads, length, size = self.weight.shape  # prefix-tuning: keys and values, split into heads
        return rows.view(length, two, heads, size).permute(1, 2, 0, 3)


class MixedPrefix:
    """The prefixes of a batch whose document i has `prefixes[owner[i]]`; for inference, so without dropout."""

    def __init__(self, prefixes: list[Prefix], owner: Tensor) -> None:
        self.values = torch.stack([prefix.gated() for prefix in prefixes], dim=1)[:, owner]

    def layer(self, index: int, batch: int) -> Tensor:
        return self.values[index]


def is_read_only(config: Any) -> bool:
    """Whether the prefix reads the text and is not read by it."""
    return getattr(config, "read_only", False)  # only prefix-propagation has it


class PrefixAdapter(NamedTuple):
    """What a forward pass needs of an adapter, or of several that a batch mixes."""

    prefix: Prefix | MixedPrefix
    config: PrefixConfig
    kernel: PrefixAttention | None


class PrefixLayer(nn.Module, BaseTunerLayer):
    """A module beside the encoder's layers, which stay where they are.

    It changes the encoder by hooks that look up the active adapter when they are called. No state is kept between
    hooks, so gradient checkpointing and `disable_adapter` need nothing special. The exception is a batch that mixes
    adapters: `mix` keeps what its documents need until the pass is over.
    """

    # Where the prefixes are, and the kernel parts of Eq. 3; both names start with the method's peft prefix.
    adapter_layer_names: ClassVar[tuple[str, str]]
    if TYPE_CHECKING:  # of BaseTunerLayer
        active_adapters: list[str]
        disable_adapters: bool

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        # Backbone is not a module, so the encoder does not become a child of its own child.
        self.backbone = backbone
        self.adapters: dict[str, PrefixAdapter] = {}
        for name in self.adapter_layer_names:
            setattr(self, name, nn.ModuleDict())
        self._undo: list[Undo] = []
        self._mixed: PrefixAdapter | None = None

    @property
    def prefixes(self) -> Any:
        """Prefix of each adapter, a ModuleDict."""
        return getattr(self, self.adapter_layer_names[0])

    @property
    def kernels(self) -> Any:
        """Kernel part of each adapter that has one (Eq. 3), a ModuleDict."""
        return getattr(self, self.adapter_layer_names[1])

    # --- adapters -------------------------------------------------------------------------------------------------

    def add_prefix(self, adapter: str, config: PrefixConfig) -> None:
        start = self._start(config)
        network = None
        # The network is for training only; an adapter loaded for inference is the plain prefix.
        if config.reparameterize and not config.inference_mode:
            layers, features = start.shape[0], start[0].numel() // config.num_virtual_tokens
            width = self.backbone.config.hidden_size
            hidden = config.reparameterize_hidden or width
            network = PrefixNetwork(layers, config.num_virtual_tokens, features, width, hidden)
            network = network.to(start.device, start.dtype)
        prefix, kernel = Prefix(start, config.prefix_dropout, network, config.gate), None
        self.prefixes[adapter] = prefix
        if config.kernel is not None:
            model = self.backbone.config
            size = self.backbone.head_size
            kernel = PrefixAttention.new(config, model.num_hidden_layers, model.num_attention_heads, size)
            self.kernels[adapter] = kernel.to(start.device)
        self.adapters[adapter] = PrefixAdapter(prefix, config, kernel)

    def _start(self, config: PrefixConfig) -> Tensor:
        reference = self.backbone.word_embeddings.weight
        shape = self.shape(config.num_virtual_tokens)
        start = torch.zeros(shape, dtype=torch.float32, device=reference.device)
        if config.inference_mode or start.is_meta or reference.is_meta:
            return start  # to be overwritten by a saved prefix
        if config.init == "vocab":
            return start + self._vocabulary_start(config)
        return start if config.reparameterize else start.normal_(std=INIT_STD)

    @torch.no_grad()
    def _vocabulary_start(self, config: PrefixConfig) -> Tensor:
        ids = _sample_words(self.backbone.config, config.num_virtual_tokens)
        ids = ids.to(self.backbone.word_embeddings.weight.device)
        module = self.backbone.module
        was_training, was_disabled = module.training, self.disable_adapters
        module.eval()
        self._disable_adapters = True  # the model itself, without an adapter that may be active already
        try:
            return self.words_as_prefix(ids, config).float()
        finally:
            module.train(was_training)
            self._disable_adapters = was_disabled

    @abstractmethod
    def shape(self, length: int) -> tuple[int, ...]:
        """Shape of a prefix of `length` virtual tokens."""

    @abstractmethod
    def words_as_prefix(self, input_ids: Tensor, config: PrefixConfig) -> Tensor:
        """The prefix that has the effect of the real tokens `input_ids` [1, j]."""

    def delete_adapter(self, adapter_name: str) -> None:
        self.adapters.pop(adapter_name, None)
        super().delete_adapter(adapter_name)

    def merge(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: only the LoRA part of an adapter is merged."""

    def unmerge(self) -> None:
        """As in `merge`."""

    @property
    def weight(self) -> Tensor:
        raise AttributeError("a prefix layer wraps no other layer")

    @property
    def bias(self) -> Tensor:
        raise AttributeError("a prefix layer wraps no other layer")

    def _move_adapter_to_device_of_base_layer(self, adapter_name: str, device: Any = None) -> None:
        target = device or self.backbone.word_embeddings.weight.device
        for modules in (self.prefixes, self.kernels):
            if adapter_name in modules:
                modules[adapter_name].to(target)

    # --- the active adapter ---------------------------------------------------------------------------------------

    def active_name(self) -> str | None:
        if self.disable_adapters:
            return None
        return next((name for name in self.active_adapters if name in self.adapters), None)

    def active_prefix(self) -> PrefixAdapter | None:
        if self._mixed is not None:
            return self._mixed
        name = self.active_name()
        return None if name is None else self.adapters[name]

    def mix(self, owners: Owners) -> Undo:
        """Give each document its own adapter until this is undone; the adapters have the same structure."""
        prefixes = [self.prefixes[name] for name in owners.adapters]
        kernels = [self.kernels[name] for name in owners.adapters if name in self.kernels]
        kernel = PrefixAttention.mixed(kernels, owners.owner) if kernels else None
        config = self.adapters[owners.adapters[0]].config
        self._mixed = PrefixAdapter(MixedPrefix(prefixes, owners.owner), config, kernel)
        return self._unmix

    def _unmix(self) -> None:
        self._mixed = None

    def active_alpha(self) -> list[nn.Parameter]:
        """The trained alpha of the active adapter, if it has one."""
        active = self.active_prefix()
        return [] if active is None or active.kernel is None else list(active.kernel.parameters())

    def active_gates(self) -> list[nn.Parameter]:
        """The gates of the active adapter, if it has some."""
        name = self.active_name()
        return [] if name is None or self.prefixes[name].gate is None else [self.prefixes[name].gate]

    def is_active(self) -> bool:
        return self.active_name() is not None

    def virtual_tokens(self) -> int:
        return 0

    def first_rows(self, states: Tensor) -> Tensor | None:
        return None

    def pools_prefix(self) -> bool:
        active = self.active_prefix()
        return active is not None and active.config.pooling == "prefix"

    def rows_outside_softmax(self) -> int:
        active = self.active_prefix()
        return 0 if active is None or active.kernel is None else self.virtual_tokens()

    def at(self, layer: int, batch: int) -> LayerPrefix:
        active = self.active_prefix()
        if active is None:
            return NO_PREFIX
        trained, kernel = self.key_values(layer, batch), active.kernel
        in_front = None if trained is None else PrefixedKeys(*trained)
        if kernel is None:
            return LayerPrefix(in_front, None, None)
        return LayerPrefix(in_front, partial(kernel, layer), kernel.fused(layer))

    def key_values(self, layer: int, batch: int) -> tuple[Tensor, Tensor] | None:
        """Trained keys and values in front of a layer's own, [batch or 1, heads, j, head size] each (Eq. 2)."""
        return None

    # --- hooks ----------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        self._undo += self.backbone.attach(self)

    def detach(self) -> None:
        """Take every hook off again."""
        while self._undo:
            self._undo.pop()()

    def reserved_positions(self) -> int:
        active = self.active_prefix()
        return 0 if active is None or active.config.layout != "reference" else active.config.num_virtual_tokens


def _sample_words(config: Any, count: int) -> Tensor:
    """Random ids [1, count] of the vocabulary, special tokens left out."""
    special = {
        getattr(config, f"{kind}_token_id", None) for kind in ("pad", "bos", "eos", "sep", "cls", "mask", "unk")
    }
    words = [index for index in range(config.vocab_size) if index not in special]
    return torch.tensor(words)[torch.randint(len(words), (1, count))]
