"""The encoder that is trained: a lengthened model with a masked-language-model head, its teacher, and its losses.

The losses are those of masked tokens and, if [CLS] is taught, of the original's [CLS] and of the document's words.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerBase

from prefixprop.attention import install
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.models.base_model import BaseModel, load_base_model, load_pretrained
from prefixprop.models.embedded import EmbeddedModel
from prefixprop.models.lengthen import lengthen

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_PROJECTIONS = ("query", "key", "value")


@dataclass(frozen=True)
class LongEncoder:
    """A Longformer to be trained, with what belongs to it."""

    # A `LongformerForMaskedLM` with the fast attention. It trains without dropout, as few passes over much text do
    # not overfit.
    model: Any
    teacher: nn.Module | None  # the original encoder, if [CLS] is taught
    tokenizer: PreTrainedTokenizerBase  # the original's, for longer texts
    original_length: int  # the longest text that the original reads, in tokens
    has_new_head: bool  # whether the original had no masked-language-model head
    dropout: dict[str, float]  # the dropout of the original's config, which the saved encoder gets again

    def save(self, folder: Path) -> None:
        """A folder as `from_pretrained` reads it."""
        model = self.model
        _set_global_projections(model, copy.deepcopy)
        for name, value in self.dropout.items():
            setattr(model.config, name, value)
        model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))

    @torch.no_grad()
    def start_new_head(self, counts: NDArray[np.int64]) -> None:
        """Start a new head with the frequencies of tokens, which it would learn first, and with logits of usual size.

        An encoder that never had a head may have embeddings of any scale.
        """
        head = self.model.lm_head
        frequency = torch.from_numpy(counts).double().add(1.0)
        head.bias.copy_((frequency / frequency.sum()).log())
        head.layer_norm.weight.fill_(1 / float(self.model.get_input_embeddings().weight.norm(dim=1).mean()))


def build(settings: LengthenSettings) -> LongEncoder:
    """Load the original, lengthen it, and choose which weights are trained."""
    original, base, has_new_head, dropout = _load(settings.model)
    tokenizer = base.tokenizer
    if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None or tokenizer.mask_token_id is None:
        raise ValueError(
            f"{settings.model}: its tokenizer has no [CLS], [SEP] or mask token, and masked language modelling needs "
            "all three."
        )
    model: Any = lengthen(original, settings.max_length, settings.attention_window)
    tokenizer.model_max_length = settings.max_length
    teacher = None
    if settings.teach_cls:
        teacher = original.base_model.eval().requires_grad_(False)
    # During training, global tokens share the projections of all others; `save` copies them.
    _set_global_projections(model, lambda projection: projection)
    model.requires_grad_(True)
    if settings.freeze_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    install(model)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return LongEncoder(model.train(), teacher, tokenizer, base.limit, has_new_head, dropout)


def _set_global_projections(model: Any, of_local: Callable[[nn.Module], nn.Module]) -> None:
    for layer in model.longformer.encoder.layer:
        attention = layer.attention.self
        for name in _PROJECTIONS:
            setattr(attention, f"{name}_global", of_local(getattr(attention, name)))


def _load(name: str) -> tuple[Any, BaseModel, bool, dict[str, float]]:
    """The original with a masked-language-model head, whether that is new, and its usual dropout."""
    base = load_base_model(name, dropout=0.0)
    if isinstance(base.source, EmbeddedModel):
        return base.source("MASKED_LM", **base.overrides), base, True, dict.fromkeys(_DROPOUTS, 0.1)  # RoBERTa's
    config = load_pretrained(AutoConfig, base.source)
    dropout = {field: getattr(config, field) for field in _DROPOUTS if hasattr(config, field)}
    options = base.loading | {"output_loading_info": True, "dtype": torch.float32}
    original, info = load_pretrained(AutoModelForMaskedLM, base.source, **options, **base.overrides)
    lacking = sorted(key for key in info["missing_keys"] if key.startswith(f"{original.base_model_prefix}."))
    if lacking:
        raise ValueError(f"{name}: weights of the encoder are missing: {', '.join(lacking[:3])}.")
    return original, base, bool(info["missing_keys"]), dropout


# --- losses ---------------------------------------------------------------------------------------------------------


class Losses(NamedTuple):
    """The losses of a step, or their weights."""

    tokens: Any  # the mean cross-entropy of masked tokens
    cls: Any  # 1 - cosine of a taught [CLS] and the original's mean [CLS] over the chunks of the document
    words: Any  # the mean cross-entropy of the document's words, each counted once, predicted from a taught [CLS]


# Near the best of three short trials (30 and 5); all had `words`. With a `cls` of 4 the [CLS] of a short text drifts
# away from the original's, with 100 the tokens are learnt more slowly.
WEIGHTS = Losses(tokens=1.0, cls=20.0, words=6.0)
# Logits that are computed at once: all of a step's would need more memory than everything else.
_LOGITS_AT_ONCE = 2**27
# The vocabulary is padded to a multiple of this: where a row of logits does not begin at 16 bytes, cuBLAS has only
# kernels that take five times as long.
_ALIGNED = 8
_TINY = torch.finfo(torch.float32).tiny


class Objective(nn.Module):
    """The losses of a Longformer with a masked-language-model head; with a `teacher`, also that of its [CLS].

    Without a teacher no token is global, as for Longformer's authors. With one, [CLS] is, as in later use.
    """

    def __init__(self, student: Any, teacher: nn.Module | None = None) -> None:
        super().__init__()
        self.student = student
        # In a list: the teacher is no part of what is trained, moved or saved.
        self._teacher: list[Any] = [] if teacher is None else [teacher]

    def forward(self, input_ids: Tensor, positions: Tensor, targets: Tensor, pieces: Tensor | None = None) -> Losses:
        """The losses; those of [CLS] are 0 without `pieces`, the text unmasked as the teacher can read it."""
        global_mask = None
        if self._teacher:
            first = torch.arange(input_ids.shape[1], device=input_ids.device) == 0
            global_mask = first.long().expand_as(input_ids)
        states = self.student.longformer(input_ids, global_attention_mask=global_mask).last_hidden_state
        decoder = self.student.get_output_embeddings()
        features = self._before_decoder(states.flatten(0, 1)[positions])
        loss = LinearCrossEntropy.apply(features, decoder.weight, decoder.bias, targets) / len(targets)
        if pieces is None:
            return Losses(loss, loss.new_zeros(()), loss.new_zeros(()))
        cls = states[:, 0]
        taught = F.cosine_similarity(cls.float(), self._teachers_cls(pieces, len(cls)), dim=-1)
        # The words in no order: a linear model of words is hard to beat on long documents.
        logits = decoder(self._before_decoder(cls)).float()
        present = torch.zeros_like(logits).scatter_(1, pieces.reshape(len(cls), -1), 1.0)
        words = F.cross_entropy(logits, present / present.sum(dim=1, keepdim=True))
        return Losses(loss, (1 - taught).mean(), words)

    def _before_decoder(self, states: Tensor) -> Tensor:
        """The masked-language-model head without its last product."""
        head = self.student.lm_head
        features: Tensor = head.layer_norm(F.gelu(head.dense(states)))
        return features

    @torch.no_grad()
    def _teachers_cls(self, pieces: Tensor, rows: int) -> Tensor:
        """The mean of the original's [CLS] over the pieces of each row."""
        (teacher,) = self._teacher
        cls: Tensor = teacher(input_ids=pieces).last_hidden_state[:, 0]
        return cls.float().unflatten(0, (rows, -1)).mean(dim=1)


class LinearCrossEntropy(torch.autograd.Function):
    """The sum of cross-entropies of `features @ weight.T + bias`, with only a part of the logits in memory at a time.

    The gradients are computed with the loss, while the logits are there.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        ctx.dtypes, ctx.vocabulary = (weight.dtype, bias.dtype), len(weight)
        if missing := -len(weight) % _ALIGNED:  # tokens with a probability of 0
            weight, bias = F.pad(weight, (0, 0, 0, missing)), F.pad(bias, (0, missing), value=-torch.inf)
        rows = max(1, _LOGITS_AT_ONCE // len(weight))
        total = torch.zeros((), dtype=torch.float32, device=features.device)
        of_features = torch.empty_like(features)
        of_bias = torch.zeros_like(bias, dtype=torch.float32)
        # The largest of them, which frozen embeddings do not need.
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for start in range(0, len(features), rows):
            part, wanted = features[start : start + rows], targets[start : start + rows, None]
            # The softmax in one pass over the logits, which are most of the time that this takes.
            probabilities = F.softmax(F.linear(part, weight, bias), dim=1, dtype=torch.float32)
            of_wanted = probabilities.gather(1, wanted)
            total -= of_wanted.clamp_min(_TINY).log().sum()
            if not any(ctx.needs_input_grad):
                continue
            of_logits = probabilities.scatter_(1, wanted, of_wanted - 1).to(features.dtype)
            of_bias += of_logits.sum(dim=0, dtype=torch.float32)
            of_features[start : start + rows] = of_logits @ weight
            if of_weight is not None:
                of_weight += of_logits.T @ part
        ctx.save_for_backward(of_features, of_weight, of_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = grad_outputs
        of_features, of_weight, of_bias = ctx.saved_tensors
        of_weight_dtype, of_bias_dtype = ctx.dtypes
        return (
            of_features * scale.to(of_features.dtype),
            None if of_weight is None else (of_weight[: ctx.vocabulary] * scale).to(of_weight_dtype),
            (of_bias[: ctx.vocabulary] * scale).to(of_bias_dtype),
            None,
        )
