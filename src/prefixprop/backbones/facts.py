"""What is known about a family of encoders before a model of it is loaded."""

from __future__ import annotations

from typing import Any, ClassVar


class FamilyFacts:
    """What most encoders have in common, supported or not; a family declares what differs.

    Attributes:
        hidden_dropout_fields: Names that its configs have for the dropout of states, and of the head.
        attention_dropout_fields: Names for the dropout of attention weights.
        lora_targets: The layers that LoRA changes by default.
        has_fast_attention: Whether `prefixprop.attention.install` works on it.
    """

    hidden_dropout_fields: ClassVar[tuple[str, ...]] = ("hidden_dropout_prob",)
    attention_dropout_fields: ClassVar[tuple[str, ...]] = ("attention_probs_dropout_prob",)
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "value")
    has_fast_attention: ClassVar[bool] = False

    @staticmethod
    def first_position_of(config: Any) -> int:
        """Position of the first real token."""
        return 0
