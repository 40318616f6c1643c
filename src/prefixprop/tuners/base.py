"""What both prefix methods are to peft: a tuner that puts one module beside the encoder's layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn

import torch
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner
from peft.utils import ModulesToSaveWrapper, _get_submodules
from torch import Tensor, nn

from prefixprop.backbones import Backbone, find_backbone
from prefixprop.config import PrefixConfig
from prefixprop.tuners.layer import PrefixLayer

# Name of the module beside the encoder's layers. peft's deletion skips names that contain a method's prefix.
LAYER_NAME = "prefixes"
_HEADS = ("classifier", "score", "qa_outputs")  # what peft adds to modules_to_save, whether a model has them or not


class PrefixTuner(BaseTuner):
    """Base of `PrefixPropagationModel` and `PrefixTuningModel`."""

    tuner_layer_cls: type[PrefixLayer]
    peft_type: Enum  # with equal names and values, as `PrefixPeftType`
    target_module_mapping: dict[str, list[str]] = {}  # noqa: RUF012 (declared by peft)

    # --- reading and writing the prefix ---------------------------------------------------------------------------

    def get_prefix(self, adapter_name: str | None = None) -> Tensor:
        """The prefix of an adapter: [layers, j, hidden], or [layers, 2, heads, j, head size] for prefix-tuning.

        Without a name it is that of the active adapter, here as below.

        This is the trained parameter itself, gradient and all, unless the prefix is reparameterised.
        """
        return self._prefix(self._named(adapter_name)).value()

    def set_prefix(self, value: Tensor, adapter_name: str | None = None) -> None:
        """Overwrite the prefix of an adapter; the shape must be that of `get_prefix`."""
        adapter_name = self._named(adapter_name)
        prefix = self._prefix(adapter_name)
        expected = tuple(prefix.weight.shape)
        if not isinstance(value, Tensor) or not value.is_floating_point() or tuple(value.shape) != expected:
            given = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"The prefix of adapter {adapter_name!r} is a float tensor of shape {list(expected)}, not {given}; "
                "pass one of that shape."
            )
        prefix.assign(value.to(prefix.weight.device, prefix.weight.dtype))

    def get_alpha(self, adapter_name: str | None = None) -> Tensor | float:
        """The weight of the kernel part of an adapter (Eq. 3).

        The number itself if it is fixed; the trained parameter, [layers] or [layers, heads], or the vectors that make
        it from queries, [layers, heads, head size].
        """
        adapter_name = self._named(adapter_name)
        self._prefix(adapter_name)
        kernels = self.prefix_layer().kernels
        if adapter_name not in kernels:
            raise ValueError(f"Adapter {adapter_name!r} has no kernel, so no alpha; set kernel in its configuration.")
        part = kernels[adapter_name]
        return part.start if part.mode == "fixed" else part.weight

    def _named(self, adapter_name: str | None) -> str:
        return self.active_adapters[0] if adapter_name is None else adapter_name

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Where peft asks for an adapter per example."""
        if kwargs.get("adapter_names") is not None:
            raise ValueError("adapter_names is not for prefixes: one adapter is active at a time; use set_adapter().")
        yield

    def _prefix(self, adapter_name: str) -> Any:
        prefixes = self.prefix_layer().prefixes
        if adapter_name not in prefixes:
            raise ValueError(f"There is no adapter {adapter_name!r}; there are: {', '.join(prefixes)}.")
        return prefixes[adapter_name]

    def prefix_layer(self) -> PrefixLayer:
        """The module that holds the prefixes of all adapters."""
        return _locate(self.model)[1]

    def set_adapter(self, adapter_name: str | list[str], inference_mode: bool = False) -> None:
        names = [adapter_name] if isinstance(adapter_name, str) else list(adapter_name)
        if len(names) > 1:
            raise ValueError(f"Only one prefix adapter can be active at a time, not {', '.join(names)}.")
        super().set_adapter(names, inference_mode=inference_mode)

    # --- injection ------------------------------------------------------------------------------------------------

    def _prepare_adapter_config(self, peft_config: PrefixConfig, model_config: dict) -> PrefixConfig:
        backbone = find_backbone(self.model)
        _check_fits(peft_config, backbone)
        _check_pooling(peft_config, self.model, backbone)
        _check_modules_to_save(peft_config, self.model)
        _record_model(peft_config, backbone)
        return peft_config

    def _check_target_module_exists(self, peft_config: PeftConfig, key: str) -> bool:
        return self.model.get_submodule(key) is find_backbone(self.model).host

    def _create_and_replace(
        self,
        peft_config: PrefixConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        layer = getattr(target, LAYER_NAME, None)
        if layer is None:
            layer = self.tuner_layer_cls(find_backbone(self.model))
            self._trainable_before = [p for p in self.model.parameters() if p.requires_grad]
            layer.train(target.training)
            layer.attach()
            target.add_module(LAYER_NAME, layer)
        elif not isinstance(layer, self.tuner_layer_cls):
            raise ValueError("The model already carries another prefix method; call unload() on that one first.")
        layer.add_prefix(adapter_name, peft_config)
        layer.prefixes[adapter_name].train(target.training)

    # --- taking it off again --------------------------------------------------------------------------------------

    def _unload_and_optionally_merge(self, merge: bool = True, *args: Any, **kwargs: Any) -> nn.Module:
        if merge:
            self._check_merge_allowed()
        layer = self.prefix_layer()
        layer.detach()
        delattr(layer.backbone.host, LAYER_NAME)
        for name, module in list(self.model.named_modules()):
            if isinstance(module, ModulesToSaveWrapper):
                parent, _, attribute = _get_submodules(self.model, name)
                setattr(parent, attribute, module.original_module)
        for parameter in self._trainable_before:
            parameter.requires_grad = True
        if hasattr(self.model, "peft_config"):
            del self.model.peft_config
        return self.model

    def merge_adapter(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._check_merge_allowed()

    def _check_merge_allowed(self) -> NoReturn:
        raise ValueError(
            "A prefix cannot be merged: it acts as extra rows or keys that attention sees, not as a change of any "
            "weight. Save it with save_pretrained(), or get the base model back with unload()."
        )

    # --- saving and loading ---------------------------------------------------------------------------------------

    @classmethod
    def _get_adapter_state_dict(
        cls,
        model: nn.Module,
        config: PrefixConfig,
        adapter_name: str,
        state_dict: dict[str, Tensor],
        unwanted_adapter_names: list[str],
    ) -> dict[str, Tensor]:
        """The plain prefix, whatever network it was trained through, and a trained alpha."""
        path, layer = _locate(model)
        prefix_key, alpha_key = _keys(path, layer, adapter_name)
        prefix = layer.prefixes[adapter_name]
        saved = {prefix_key: state_dict[prefix_key] if prefix.network is None else prefix.value().detach()}
        if alpha_key in state_dict:
            saved[alpha_key] = state_dict[alpha_key]
        return saved

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: PrefixConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        path, layer = _locate(model)
        prefix_key, alpha_key = _keys(path, layer, adapter_name)
        prefix = layer.prefixes[adapter_name]
        value = cls._take(state_dict, prefix_key, adapter_name, prefix.weight)
        if prefix.network is not None:
            base = prefix_key.removesuffix("weight")
            state_dict.update({f"{base}network.{name}": own for name, own in prefix.network.state_dict().items()})
            value = value - prefix.from_network().detach().to(value.device)
        state_dict[prefix_key] = value
        if adapter_name in layer.kernels and layer.kernels[adapter_name].mode != "fixed":
            own = layer.kernels[adapter_name].weight
            state_dict[alpha_key] = cls._take(state_dict, alpha_key, adapter_name, own)
        return state_dict

    @classmethod
    def _take(cls, state_dict: dict[str, Tensor], key: str, adapter_name: str, own: Tensor) -> Tensor:
        """Take a saved tensor out of `state_dict`, checked against the one it is to replace."""
        saved_key = cls._remove_adapter_name_from_key(key, adapter_name)
        saved = state_dict.pop(saved_key, None)
        if saved is None:
            saved = state_dict.pop(f"base_model.model.{saved_key}", None)
        return _checked(saved, own, saved_key)


def _locate(model: nn.Module) -> tuple[str, PrefixLayer]:
    """The module that holds the prefixes, and its name."""
    for name, module in model.named_modules():
        if isinstance(module, PrefixLayer):
            return name, module
    raise ValueError("This model carries no prefixes.")


def _keys(path: str, layer: PrefixLayer, adapter_name: str) -> list[str]:
    """The state dict keys of an adapter's prefix and of its alpha."""
    return [f"{path}.{name}.{adapter_name}.weight" for name in layer.adapter_layer_names]


def _checked(saved: Tensor | None, own: Tensor, key: str) -> Tensor:
    again = "load it onto the model it was trained on, or save the adapter again."
    if saved is None:
        raise ValueError(f"The adapter file has no tensor {key!r}: it is not this kind of prefix; {again}")
    if tuple(saved.shape) != tuple(own.shape):
        raise ValueError(
            f"The saved tensor {key!r} has shape {list(saved.shape)}, this model and configuration need "
            f"{list(own.shape)}; {again}"
        )
    if not saved.is_floating_point() or not bool(torch.isfinite(saved).all()):
        raise ValueError(f"The saved tensor {key!r} holds values that are no finite floats; {again}")
    return saved


def _check_fits(config: PrefixConfig, backbone: Backbone) -> None:
    length, room = config.num_virtual_tokens, backbone.max_tokens
    if length >= room:
        raise ValueError(
            f"num_virtual_tokens={length} leaves no room for text: this {backbone.config.model_type} model reads "
            f"{room} tokens; choose a prefix of fewer than {room}."
        )


def _check_pooling(config: PrefixConfig, model: nn.Module, backbone: Backbone) -> None:
    takes_mean = backbone.head_takes_mean
    head_pools = type(model).__name__.endswith("ForSequenceClassification") and not takes_mean
    if config.pooling == "prefix" and not (backbone.has_pooler or head_pools):
        raise ValueError(
            f"pooling='prefix' needs a model that pools one row, and {type(model).__name__} does not"
            f"{' (its classifier_pooling is mean)' if takes_mean else ''}; use pooling='cls'."
        )


def _check_modules_to_save(config: PrefixConfig, model: nn.Module) -> None:
    names = [name for name, _ in model.named_modules()]
    for wanted in config.modules_to_save or ():
        if wanted not in _HEADS and not any(name.endswith(wanted) for name in names):
            parts = ", ".join(name for name, _ in model.named_children())
            raise ValueError(
                f"modules_to_save: {type(model).__name__} has no module {wanted!r}; it has {parts} and what is in "
                "them."
            )


def _record_model(config: PrefixConfig, backbone: Backbone) -> None:
    """Write down what the adapter is for; refuse a model that it was not made for."""
    facts = {
        "model_type": backbone.config.model_type,
        "num_layers": backbone.config.num_hidden_layers,
        "token_dim": backbone.config.hidden_size,
        "num_attention_heads": backbone.config.num_attention_heads,
    }
    for name, here in facts.items():
        saved = getattr(config, name)
        if saved not in (None, here):
            raise ValueError(
                f"This adapter was made for a model with {name}={saved!r}, but the model here has {here!r}; load it "
                f"onto the model it was trained on{_base_model(config)}, or make a new configuration."
            )
        setattr(config, name, here)


def _base_model(config: PrefixConfig) -> str:
    return f" ({config.base_model_name_or_path})" if config.base_model_name_or_path else ""
