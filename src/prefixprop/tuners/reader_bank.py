"""A bank of readers: many prefixes that read the same text in one pass (see `reading`), each with its own head.

Readers do not see each other, so each of them computes what it would compute alone, and learns what it would learn
alone. Every trained tensor has the readers as its first dimension.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call, vmap

from prefixprop.backbones import Backbone, find_backbone
from prefixprop.backbones.base import Text
from prefixprop.tuners.base import LAYER_NAME
from prefixprop.tuners.layer import INIT_STD
from prefixprop.tuners.reading import read


class ReaderWeights(NamedTuple):
    """What one reader trains: its prefix [layers, j, hidden], and its head by the names of the model's parameters."""

    prefix: Tensor
    head: Mapping[str, Tensor]

    @property
    def classes(self) -> int:
        return len(self.head["classifier.bias" if "classifier.bias" in self.head else "classifier.out_proj.bias"])


def new_reader(backbone: Backbone, length: int, classes: int, seed: int, cls: Tensor | None = None) -> ReaderWeights:
    """A reader at its start, as the seed draws it.

    With `cls`, the embedded [CLS] token (see `embedded_cls`), its first virtual token starts as a second [CLS]: it
    says of a text what the pretrained encoder's [CLS] says, and the head learns from that from the first step on.
    """
    generator = torch.Generator().manual_seed(seed)
    config = backbone.config
    head = {}
    for part, module in backbone.head_modules.items():
        for name, parameter in module.named_parameters(prefix=part):
            outputs = classes if len(parameter) == backbone.model.num_labels and _is_last(name) else len(parameter)
            value = torch.zeros(outputs, *parameter.shape[1:])
            if parameter.dim() > 1:
                value.normal_(std=config.initializer_range, generator=generator)
            elif name.endswith("weight"):  # of a norm
                value.fill_(1.0)
            head[name] = value
    prefix = torch.empty(config.num_hidden_layers, length, config.hidden_size)
    prefix.normal_(std=INIT_STD, generator=generator)
    if cls is not None:
        prefix[0, 0] += cls
    return ReaderWeights(prefix, head)


@torch.no_grad()
def embedded_cls(backbone: Backbone, token_id: int) -> Tensor:
    """What the first layer sees of a text's [CLS] token, [hidden]."""
    embeddings = backbone.embeddings
    was_training = embeddings.training
    embeddings.eval()
    try:
        token = torch.tensor([[token_id]], device=backbone.word_embeddings.weight.device)
        return backbone.embed(token)[0, 0].float().cpu()
    finally:
        embeddings.train(was_training)


def _is_last(name: str) -> bool:
    """Whether a parameter belongs to the layer that makes the logits."""
    return name.rpartition(".")[0] in ("classifier", "classifier.out_proj")


def read_adapter(folder: Path) -> ReaderWeights:
    """The reader that an adapter's folder holds, one that peft saved."""
    stored = load_file(folder / SAFETENSORS_WEIGHTS_NAME)
    tensors = {key: tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for key, tensor in stored.items()}
    of_prefix = {key: tensors.pop(key) for key in list(tensors) if f"{LAYER_NAME}." in key}
    (prefix,) = (tensor for key, tensor in of_prefix.items() if key.endswith(".weight"))
    for key, gate in of_prefix.items():
        if key.endswith(".gate"):
            prefix = prefix * gate[:, None, None]
    return ReaderWeights(prefix, {key.removeprefix("base_model.model."): tensor for key, tensor in tensors.items()})


def save_adapters(model: Any, readers: Mapping[Path, ReaderWeights]) -> None:
    """Save readers as ordinary peft adapters, each in its folder; `model` has an adapter of their form."""
    for folder, reader in readers.items():
        model.set_prefix(reader.prefix)
        for name, module in find_backbone(model.get_base_model()).head_modules.items():
            head = module.modules_to_save[model.active_adapter]
            head.load_state_dict(
                {
                    key.removeprefix(f"{name}."): value
                    for key, value in reader.head.items()
                    if key.startswith(f"{name}.")
                }
            )
        # Prefixes never change the embeddings, and looking for a change would ask the hub.
        model.save_pretrained(str(folder), save_embedding_layers=False)


class ReaderBank(nn.Module):
    """Readers of one length on one encoder, which it does not own."""

    is_absent: Tensor  # [readers, classes]

    def __init__(self, backbone: Backbone, readers: Sequence[ReaderWeights], prefix_dropout: float = 0.0) -> None:
        super().__init__()
        self._outside = (backbone, _Head(backbone))  # in a tuple, so that neither becomes a part of this module
        self.prefix_dropout = prefix_dropout
        self.names = tuple(readers[0].head)
        self.classes = tuple(reader.classes for reader in readers)
        self.prefix = nn.Parameter(torch.stack([reader.prefix for reader in readers]))
        self.heads = nn.ParameterList(
            _stacked([reader.head[name] for reader in readers], max(self.classes)) for name in self.names
        )
        widest = torch.arange(max(self.classes))
        self.register_buffer("is_absent", widest >= torch.tensor(self.classes)[:, None])

    def __len__(self) -> int:
        return len(self.prefix)

    @property
    def backbone(self) -> Backbone:
        return self._outside[0]

    def weights(self, index: int) -> ReaderWeights:
        """A copy of one reader's weights."""
        classes = self.classes[index]
        head = {}
        for name, parameter in zip(self.names, self.heads, strict=True):
            value = parameter[index].detach()
            head[name] = (value[:classes] if _is_last(name) else value).clone()
        return ReaderWeights(self.prefix[index].detach().clone(), head)

    def select(self, indices: Sequence[int]) -> ReaderBank:
        """A bank of some of these readers."""
        return ReaderBank(self.backbone, [self.weights(index) for index in indices], self.prefix_dropout)

    def forward(self, text: Text, readers: slice | Tensor | None = None) -> Tensor:
        """Logits [readers, batch, classes] of all readers or some; minus infinity for classes that one lacks."""
        chosen = slice(None) if readers is None else readers
        prefix, device = self.prefix[chosen], self.prefix.device.type
        if torch.is_autocast_enabled(device):  # once for all layers
            prefix = prefix.to(torch.get_autocast_dtype(device))
        dropout = self.prefix_dropout if self.training else 0.0
        first = read(self.backbone, _Rows(prefix.unbind(1), dropout), text, len(prefix)).transpose(0, 1)
        heads = [parameter[chosen] for parameter in self.heads]
        logits = vmap(self._classify)(heads, first.to(heads[0].dtype))
        return logits.float().masked_fill(self.is_absent[chosen, None], -torch.inf)

    def _classify(self, head: list[Tensor], pooled: Tensor) -> Tensor:
        return functional_call(self._outside[1], dict(zip(self.names, head, strict=True)), (pooled,))


class _Rows(NamedTuple):
    """The prefixes [readers, j, hidden] of a bank in each layer, one after the other."""

    layers: tuple[Tensor, ...]
    dropout: float

    def layer(self, index: int, batch: int) -> Tensor:
        rows = self.layers[index].flatten(0, 1)[None]
        return F.dropout(rows.expand(batch, -1, -1), self.dropout) if self.dropout else rows


class _Head(nn.Module):
    """The form of a model's head, for parameters that are given at each call."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self._backbone = (backbone,)
        for name, module in backbone.head_modules.items():
            self.add_module(name, copy.deepcopy(module).eval())

    def forward(self, pooled: Tensor) -> Tensor:
        return self._backbone[0].classify(self, pooled)


def _stacked(values: Sequence[Tensor], widest: int) -> nn.Parameter:
    """Parameters of several heads as one; those of the last layer are filled up to the most classes."""
    different = len({value.shape for value in values}) > 1
    padded: list[Any] = [
        F.pad(value, (*(0, 0) * (value.dim() - 1), 0, widest - len(value))) if different else value
        for value in values
    ]
    return nn.Parameter(torch.stack(padded))
