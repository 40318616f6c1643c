"""Prefix-tuning (Eq. 2): trained keys and values P_k, P_v in front of those of every row, at every layer.

No tokens are added. In Longformer local and global tokens see the same P_k and P_v, unprojected.
"""

from __future__ import annotations

from torch import Tensor

from prefixprop.config import PrefixConfig, PrefixPeftType
from prefixprop.tuners.base import PrefixTuner
from prefixprop.tuners.layer import PrefixLayer


class TuningLayer(PrefixLayer):
    adapter_layer_names = ("tuning_prefix", "tuning_alpha")

    def shape(self, length: int) -> tuple[int, ...]:
        config = self.backbone.config
        heads = config.num_attention_heads
        return (config.num_hidden_layers, 2, heads, length, self.backbone.head_size)

    def words_as_prefix(self, input_ids: Tensor, config: PrefixConfig) -> Tensor:
        """The keys and values that the model itself computes for real tokens."""
        return self.backbone.token_key_values(input_ids)

    def key_values(self, layer: int, batch: int) -> tuple[Tensor, Tensor] | None:
        active = self.active_prefix()
        if active is None:
            return None
        keys, values = active.prefix.layer(layer, batch).unbind(1)
        return keys, values


class PrefixTuningModel(PrefixTuner):
    """The peft tuner of `PrefixTuningConfig`."""

    prefix = "tuning_"
    peft_type = PrefixPeftType.LONG_PREFIX_TUNING
    tuner_layer_cls = TuningLayer
