"""Turn a RoBERTa- or BERT-family model into the Longformer with the same head (Beltagy et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import transformers
from accelerate import init_empty_weights
from transformers import LongformerConfig, LongformerModel, PreTrainedModel


@dataclass(frozen=True)
class _Family:
    """How one family of encoders differs from Longformer, besides its attention."""

    class_prefix: str
    # RoBERTa numbers its positions from pad_token_id + 1, as Longformer does; BERT from 0.
    positions_follow_padding: bool = True
    # RoBERTa's masked language model uses gelu whatever hidden_act says, as Longformer's does.
    lm_head_is_gelu: bool = True
    # The beginnings of Longformer's names for head weights, and what this family calls them.
    head_names: Mapping[str, str] = field(default_factory=dict)


_FAMILIES = {
    "roberta": _Family("Roberta"),
    "xlm-roberta": _Family("XLMRoberta"),
    "camembert": _Family("Camembert"),
    "data2vec-text": _Family("Data2VecText"),
    "bert": _Family(
        "Bert",
        positions_follow_padding=False,
        lm_head_is_gelu=False,
        head_names={
            "classifier.dense.": "bert.pooler.dense.",
            "classifier.out_proj.": "classifier.",
            "lm_head.dense.": "cls.predictions.transform.dense.",
            "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
            "lm_head.": "cls.predictions.",
        },
    ),
}

# What classes are called behind the name of their family: Longformer has these.
_HEADS = (
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForMaskedLM",
)

# What Longformer's config does not have, or what `_longformer_config` sets anew.
_NOT_CARRIED = {
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attention_window",
    "classifier_dropout",
    "dtype",
    "is_decoder",
    "max_position_embeddings",
    "model_type",
    "sep_token_id",
    "tie_word_embeddings",
    "transformers_version",
    "use_cache",
}

_POSITIONS = "embeddings.position_embeddings.weight"


def lengthen(model: PreTrainedModel, max_length: int = 4096, attention_window: int = 512) -> PreTrainedModel:
    """Return the Longformer of `model`: the same weights and head, for texts of up to `max_length` tokens.

    The position embeddings are repeated until `max_length`, and query, key and value are copied to their
    `_global` twins. While every token lies in the window of every other (up to `attention_window // 2 + 1`
    tokens, without padding or padded on the right) the result computes what `model` computes; beyond that it
    is a starting point for tuning. `model` itself is left as it is and shares no memory with the result,
    which keeps its dtype, device, training mode and frozen weights.

    Args:
        model: A RoBERTa, XLM-RoBERTa, CamemBERT, data2vec-text or BERT encoder, bare or with a head for
            sequence classification, token classification, question answering, multiple choice or masked
            language modelling.
        max_length: The longest text in tokens, at least what `model` can already read.
        attention_window: How many neighbours a token sees, half of them on either side: an even number.

    Two things differ in Longformer's own code. Its heads use `hidden_dropout_prob` and have no
    `classifier_dropout`. And without a `global_attention_mask`, its question answering and multiple choice
    look for RoBERTa's three separators in a pair: a lengthened BERT writes two, so it needs the mask.
    """
    family, head = _recognise(model)
    config = _longformer_config(model, attention_window)
    positions = _repeat_positions(model, family, max_length)
    config.max_position_embeddings = len(positions)

    with init_empty_weights(include_buffers=False):
        if head == "Model":
            longformer: PreTrainedModel = LongformerModel(config, add_pooling_layer=model.pooler is not None)
        else:
            longformer = getattr(transformers, f"Longformer{head}")(config)
    _copy_weights(model, longformer, family, positions)
    return longformer.train(model.training)


def _recognise(model: PreTrainedModel) -> tuple[_Family, str]:
    """The family and the head of a model that can be lengthened."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"lengthen takes a model of the transformers library, not {type(model).__name__}")
    family = _FAMILIES.get(model.config.model_type)
    head = type(model).__name__.removeprefix(family.class_prefix) if family else ""
    if family is None or head not in _HEADS:
        raise ValueError(
            f"{type(model).__name__} cannot be lengthened: choose one of the model types "
            f"{', '.join(_FAMILIES)} with one of the heads {', '.join(_HEADS)}"
        )
    if head == "ForMaskedLM" and not family.lm_head_is_gelu and model.config.hidden_act != "gelu":
        raise ValueError(
            f"Longformer's masked language model always uses gelu, this one {model.config.hidden_act!r}: "
            "lengthen the encoder alone (BertModel)"
        )
    return family, head


def _longformer_config(model: PreTrainedModel, attention_window: int) -> LongformerConfig:
    original = model.config
    output = model.get_output_embeddings()
    tied = original.tie_word_embeddings if output is None else output.weight is model.get_input_embeddings().weight
    separator = getattr(original, "sep_token_id", None)
    if separator is None and isinstance(original.eos_token_id, int):
        separator = original.eos_token_id  # RoBERTa separates with it, without saying so in its config
    return LongformerConfig(
        **{name: value for name, value in original.to_dict().items() if name not in _NOT_CARRIED},
        attention_window=attention_window,
        dtype=model.dtype,
        name_or_path=original.name_or_path,
        sep_token_id=separator,
        tie_word_embeddings=tied,
    )


def _repeat_positions(model: PreTrainedModel, family: _Family, max_length: int) -> torch.Tensor:
    """Longformer's position embeddings: the rows before the first position, then the original's, repeated."""
    rows = model.base_model.get_parameter(_POSITIONS).detach()
    unused = model.config.pad_token_id + 1
    if family.positions_follow_padding:
        before_first, used = rows[:unused], rows[unused:]
    else:  # only padding will look these rows up, and nothing attends to padding
        before_first, used = rows.new_zeros(unused, rows.shape[1]), rows
    if max_length < len(used):
        raise ValueError(
            f"max_length={max_length} is shorter than the {len(used)} tokens of the model: give at least that"
        )
    repetitions = -(-max_length // len(used))
    return torch.cat([before_first, used.repeat(repetitions, 1)[:max_length]])


def _copy_weights(
    model: PreTrainedModel, longformer: PreTrainedModel, family: _Family, positions: torch.Tensor
) -> None:
    """Fill the empty `longformer`; every weight has a source in `model`, and none of `model` is left over."""
    weights = model.state_dict(keep_vars=True)
    sources = {
        name: _original_name(name, family, model.base_model_prefix) for name in longformer.state_dict(keep_vars=True)
    }
    unmatched = sorted(set(sources.values()) ^ set(weights))
    if unmatched:
        raise ValueError(
            f"{type(model).__name__} does not have the weights of its class ({', '.join(unmatched)} without "
            "a counterpart): lengthen the model as transformers builds it"
        )

    copies = {name: weights[source].detach().clone() for name, source in sources.items()}
    copies.update({name: positions for name in copies if name.endswith(_POSITIONS)})
    longformer.load_state_dict(copies, strict=True, assign=True)
    for name, source in sources.items():
        longformer.get_parameter(name).requires_grad_(weights[source].requires_grad)
    longformer.tie_weights()


def _original_name(longformer_name: str, family: _Family, base_prefix: str) -> str:
    """Where `model` keeps the weight that Longformer calls `longformer_name`."""
    for longformer_beginning, beginning in family.head_names.items():
        if longformer_name.startswith(longformer_beginning):
            return beginning + longformer_name.removeprefix(longformer_beginning)
    if longformer_name.startswith("longformer."):
        longformer_name = f"{base_prefix}.{longformer_name.removeprefix('longformer.')}"
    return longformer_name.replace("_global.", ".")
