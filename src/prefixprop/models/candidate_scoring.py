"""Question answering by scoring candidates, as the paper does WikiHop (Appendix A, after Beltagy et al., 2020).

A linear layer scores the last state of each `[ent]` token, which stands in front of a candidate. The candidates are
repeated in front of every chunk of the supports; their scores are averaged over the chunks, and softmax over the
candidates with cross-entropy is the loss. `prefixprop.data.CandidateCollator` makes the batches.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from accelerate import init_empty_weights
from peft import PeftConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MultipleChoiceModelOutput

from prefixprop.backbones import find_backbone
from prefixprop.choices import CHUNK_REDUCTIONS


class SpecialTokenEmbedding(nn.Module):
    """A few trained rows, for consecutive token ids, over a table of word embeddings that may be frozen.

    The table stays as it is: it needs no rows for these ids, and only the few rows are trained and saved.
    """

    def __init__(self, first_id: int, count: int, size: int) -> None:
        super().__init__()
        self.first_id = first_id
        self.weight = nn.Parameter(torch.empty(count, size))

    @torch.no_grad()
    def start_like(self, words: Tensor) -> None:
        """Draw the rows from the normal distribution of the weights of `words`."""
        self.weight.normal_(mean=float(words.mean()), std=float(words.std()))

    def forward(self, input_ids: Tensor, table: Any) -> Tensor:
        """The embeddings of `input_ids`: own rows for the special tokens, those of `table` for all others."""
        row = input_ids - self.first_id
        is_special = (row >= 0) & (row < len(self.weight))
        words = table(input_ids.masked_fill(is_special, 0))
        own = F.embedding(row.clamp(0, len(self.weight) - 1), self.weight)
        return torch.where(is_special.unsqueeze(-1), own.to(words.dtype), words)


NUM_SPECIAL_TOKENS = 4

# Modules that every method trains, and every adapter saves, in addition to the method's own weights.
TRAINED_MODULES = ("answer_score", "special_tokens")


class CandidateScoringConfig(PreTrainedConfig):
    """The configuration of a `CandidateScorer`.

    Args:
        encoder: The encoder's configuration, as its `to_dict()` gives it.
        first_special_token: The first of the four consecutive ids of the special tokens.
        chunk_reduction: "mean" (the paper) or "sum" (the authors' released code) of a candidate's scores over chunks.
    """

    model_type = "candidate-scoring"

    def __init__(
        self,
        encoder: Mapping[str, Any] | None = None,
        first_special_token: int = 0,
        chunk_reduction: str = "mean",
        **others: Any,
    ) -> None:
        if chunk_reduction not in CHUNK_REDUCTIONS:
            raise ValueError(
                f"chunk_reduction={chunk_reduction!r} is unknown; choose one of {', '.join(CHUNK_REDUCTIONS)}."
            )
        self.encoder = dict(encoder or {})
        self.first_special_token = first_special_token
        self.chunk_reduction = chunk_reduction
        super().__init__(**others)


class CandidateScorer(PreTrainedModel):
    """An encoder with one score per candidate on top; made by `candidate_scorer` or `from_pretrained`."""

    config_class = CandidateScoringConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    # Trainer then passes the number of questions of a whole step, over all its batches.
    accepts_loss_kwargs: ClassVar[bool] = True

    def __init__(self, config: CandidateScoringConfig) -> None:
        super().__init__(config)
        self.encoder: Any = _without_pooler(
            AutoModel.from_config(AutoConfig.for_model(**config.encoder), trust_remote_code=False)
        )
        words = self.encoder.get_input_embeddings()
        self.special_tokens = SpecialTokenEmbedding(
            config.first_special_token, NUM_SPECIAL_TOKENS, words.embedding_dim
        )
        self.answer_score = nn.Linear(self.encoder.config.hidden_size, 1, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # The encoder's modules are initialised by the encoder's own method.
        if module in (self.answer_score, self.special_tokens):
            nn.init.normal_(module.weight, std=self.encoder.config.initializer_range)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def freeze_encoder(self) -> None:
        """Train the scores and the special tokens only."""
        self.encoder.requires_grad_(False)

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor,
        question_of_chunk: Tensor,
        candidate_positions: Tensor,
        candidate_mask: Tensor,
        global_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> MultipleChoiceModelOutput | tuple[Any, ...]:
        """Score the candidates of a batch of questions.

        Takes what `CandidateCollator` makes. `logits` are [questions, candidates] in float32, with the lowest number
        there is for a candidate that a question does not have; states and attentions are those of the chunks.
        """
        self._check_trained(labels)
        if inputs_embeds is None:
            inputs_embeds = self.special_tokens(input_ids, self.get_input_embeddings())
        outputs = self.encoder(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=self._positions(attention_mask),
            **self._global_attention(global_attention_mask),
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        states = outputs.last_hidden_state
        positions = candidate_positions.unsqueeze(-1).expand(-1, -1, states.shape[-1])
        scores = self.answer_score(states.gather(1, positions)).squeeze(-1).float()
        logits = self._reduce_chunks(scores, question_of_chunk, len(candidate_mask))
        logits = logits.masked_fill(~candidate_mask, torch.finfo(logits.dtype).min)
        loss = None
        if labels is not None:
            questions = len(labels) if num_items_in_batch is None else num_items_in_batch
            loss = F.cross_entropy(logits, labels, reduction="sum") / questions
        output = MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
        return output.to_tuple() if return_dict is False else output

    def _positions(self, attention_mask: Tensor) -> Tensor:
        """Positions counted over real tokens, so that it does not matter on which side the padding is."""
        last = find_backbone(self.encoder).first_position - 1
        return (attention_mask.cumsum(dim=1) * attention_mask + last).clamp(min=0)

    def _global_attention(self, mask: Tensor | None) -> dict[str, Tensor]:
        if "global_attention_mask" not in inspect.signature(type(self.encoder).forward).parameters:
            return {}
        if mask is None:
            raise ValueError(
                f"A {self.encoder.config.model_type} encoder needs global_attention_mask, which makes the candidate "
                "part global; prefixprop.data.CandidateCollator gives it."
            )
        return {"global_attention_mask": mask}

    def _reduce_chunks(self, scores: Tensor, question_of_chunk: Tensor, questions: int) -> Tensor:
        """[chunks, candidates] to [questions, candidates]."""
        # Not index_add, which adds in a different order each time on a GPU.
        belongs = F.one_hot(question_of_chunk, questions).T.unsqueeze(-1)
        total = (belongs * scores).sum(dim=1)
        return total / belongs.sum(dim=1) if self.config.chunk_reduction == "mean" else total

    def _check_trained(self, labels: Tensor | None) -> None:
        if labels is None or not self.training or not torch.is_grad_enabled():
            return
        for name in TRAINED_MODULES:
            if not any(parameter.requires_grad for parameter in getattr(self, name).parameters()):
                raise ValueError(
                    f"{name} is frozen and would stay random: add adapters with "
                    f"adapt_candidate_scorer(), or configure them with modules_to_save={list(TRAINED_MODULES)}."
                )


def candidate_scorer(
    encoder: PreTrainedModel, first_special_token: int, chunk_reduction: str = "mean"
) -> CandidateScorer:
    """Put new scores and special tokens on a pretrained encoder; `torch.manual_seed` makes them reproducible.

    >>> from prefixprop.models import load_default
    >>> from prefixprop.data import add_special_tokens
    >>> factory, tokenizer = load_default()
    >>> model = candidate_scorer(factory("FEATURE_EXTRACTION"), add_special_tokens(tokenizer))

    Args:
        encoder: A model without a head, such as `AutoModel.from_pretrained` gives; it becomes part of the result.
        first_special_token: What `add_special_tokens(tokenizer)` returned for the encoder's tokenizer.
        chunk_reduction: "mean" (the paper) or "sum" (the authors' released code) of a candidate's scores over chunks.
    """
    loaded = _without_pooler(encoder)
    backbone = find_backbone(loaded)
    if backbone.module is not loaded:
        raise ValueError(f"{type(loaded).__name__} has a head; give the encoder alone, such as model.base_model.")
    config = CandidateScoringConfig(loaded.config.to_dict(), first_special_token, chunk_reduction)
    config.name_or_path = loaded.config.name_or_path or ""
    with init_empty_weights(include_buffers=False):
        model = CandidateScorer(config)
    model.encoder = loaded
    words = loaded.get_input_embeddings().weight
    for name in TRAINED_MODULES:
        getattr(model, name).to_empty(device=words.device).to(words.dtype)
    nn.init.normal_(model.answer_score.weight, std=loaded.config.initializer_range)
    model.special_tokens.start_like(words)
    return model.eval()


def adapt_candidate_scorer(model: CandidateScorer, config: PeftConfig) -> PeftModel:
    """`get_peft_model`, with the scores and the special tokens trained and saved with the adapter."""
    if config.task_type is not None:
        raise ValueError(
            f"task_type={str(config.task_type)!r}: peft has no task type for candidate scoring; leave task_type out."
        )
    config = copy.deepcopy(config)
    config.modules_to_save = sorted({*(config.modules_to_save or ()), *TRAINED_MODULES})
    return get_peft_model(model, config)


def _without_pooler(encoder: PreTrainedModel) -> PreTrainedModel:
    """Nothing reads what a pooler computes, and parameters without gradients stop distributed training."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return encoder
