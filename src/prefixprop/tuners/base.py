"""The peft tuner of both prefix methods: it adds one module beside the encoder's layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from peft import LoraModel, PeftConfig, inject_adapter_in_model
from peft.tuners import tuners_utils
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTuner
from peft.utils import ModulesToSaveWrapper, _get_submodules
from torch import Tensor, nn

from prefixprop.backbones import Backbone, find_backbone
from prefixprop.config import PrefixConfig
from prefixprop.tuners.layer import PrefixLayer, is_read_only
from prefixprop.tuners.mixed_batch import MixedBatch

# Name of that module. It must not contain a method's peft prefix: deleting an adapter skips such names.
LAYER_NAME = "prefixes"
_HEADS = ("classifier", "score", "qa_outputs")  # what peft adds to modules_to_save, whether a model has them or not


class PrefixTuner(BaseTuner):
    """Base of `PrefixPropagationModel` and `PrefixTuningModel`."""

    model: nn.Module
    tuner_layer_cls: type[PrefixLayer]
    peft_type: Enum  # with equal names and values, as `PrefixPeftType`
    target_module_mapping: dict[str, list[str]] = {}  # noqa: RUF012 (declared by peft)

    # --- reading and writing the prefix ---------------------------------------------------------------------------

    def get_prefix(self, adapter_name: str | None = None) -> Tensor:
        """The prefix of an adapter: [layers, j, hidden], or [layers, 2, heads, j, head size] for prefix-tuning.

        Without a name, of the active adapter, as in the methods below. This is the trained parameter itself unless
        the prefix is reparameterised.
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

    def get_gates(self, adapter_name: str | None = None) -> Tensor:
        """What the prefix of an adapter is scaled by at each layer: the trained parameter, [layers]."""
        adapter_name = self._named(adapter_name)
        gate: Tensor | None = self._prefix(adapter_name).gate
        if gate is None:
            raise ValueError(f"Adapter {adapter_name!r} has no gates; set gate=True in its configuration.")
        return gate

    def _named(self, adapter_name: str | None) -> str:
        return self.active_adapters[0] if adapter_name is None else adapter_name

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Called by peft for every forward pass, with the `adapter_names` of the documents if they are given."""
        names = kwargs.get("adapter_names")
        if names is None:
            yield
            return
        model = self.model
        self.model = MixedBatch(model, names, self.peft_config)
        try:
            yield
        finally:
            self.model = model

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
        kinds: Any = (self.tuner_layer_cls, LoraLayer)
        tuners_utils.set_adapter(self.model, names, inference_mode=inference_mode, layer_cls=kinds)
        self.active_adapter = names

    def delete_adapter(self, adapter_name: str) -> None:
        was_active = adapter_name in self.active_adapters
        super().delete_adapter(adapter_name)
        for layer in self._lora_layers().values():
            if was_active:
                layer.set_adapter(self.active_adapters)  # otherwise each layer would choose one for itself
            layer.delete_adapter(adapter_name)

    def _lora_layers(self) -> dict[str, Any]:
        return {name: layer for name, layer in self.model.named_modules() if isinstance(layer, LoraLayer)}

    # --- injection ------------------------------------------------------------------------------------------------

    def _prepare_adapter_config(self, peft_config: PrefixConfig, model_config: dict) -> PrefixConfig:
        backbone = find_backbone(self.model)
        _check_pooling(peft_config, self.model, backbone)
        _check_modules_to_save(peft_config, self.model)
        _record_model(peft_config, backbone)
        if peft_config.lora is not None:
            _prepare_lora(peft_config, backbone)
        return peft_config

    def _pre_injection_hook(self, model: nn.Module, config: PeftConfig, adapter_name: str) -> None:
        self._trainable_before = {name for name, parameter in model.named_parameters() if parameter.requires_grad}

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
            layer.train(target.training)
            layer.attach()
            self.model.requires_grad_(False)  # LoRA is injected next, and peft freezes nothing beside an adapter
            target.add_module(LAYER_NAME, layer)
        elif not isinstance(layer, self.tuner_layer_cls):
            raise ValueError("The model already carries another prefix method; call unload() on that one first.")
        layer.add_prefix(adapter_name, peft_config)
        layer.prefixes[adapter_name].train(target.training)
        if peft_config.lora is not None:
            self._inject_lora(peft_config, adapter_name)

    def _inject_lora(self, config: PrefixConfig, adapter_name: str) -> None:
        """Put peft's own LoRA layers into the model; peft then sets what is active and trained, for both parts."""
        entered = self.model.__dict__.pop("peft_config", None)  # LoRA would add its own configuration to it
        try:
            inject_adapter_in_model(config.lora, self.model, adapter_name)
        finally:
            if entered is not None:
                self.model.peft_config = entered

    def _mark_only_adapters_as_trainable(self, model: nn.Module) -> None:
        super()._mark_only_adapters_as_trainable(model)
        if any(self.peft_config[name].bias == "lora_only" for name in self.active_adapters):
            for layer in self._lora_layers().values():
                if layer.bias is not None:
                    layer.bias.requires_grad = True

    # --- taking it off again --------------------------------------------------------------------------------------

    def _unload_and_optionally_merge(
        self,
        merge: bool = True,
        progressbar: bool = False,
        safe_merge: bool = False,
        adapter_names: list[str] | None = None,
    ) -> nn.Module:
        if merge:
            return self._merge_lora(adapter_names or self.active_adapters, safe_merge)
        layer = self.prefix_layer()
        layer.detach()
        delattr(layer.backbone.host, LAYER_NAME)
        super()._unload_and_optionally_merge(merge=False, progressbar=progressbar)
        for name, parameter in self.model.named_parameters():  # by name: the head is now the adapter's
            parameter.requires_grad = name in self._trainable_before
        return self.model

    def _replace_module(self, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module) -> None:
        setattr(parent, child_name, new_module)

    def _merge_lora(self, names: list[str], safe_merge: bool) -> nn.Module:
        """Merge the LoRA part into the weights. A prefix cannot be merged, so it stays."""
        self.set_adapter(names)
        self.merge_adapter(safe_merge=safe_merge)
        for name in [name for name in self.peft_config if name not in names]:
            self.delete_adapter(name)  # it was trained for the unmerged weights
        for name, layer in self._lora_layers().items():
            parent, _, attribute = _get_submodules(self.model, name)
            setattr(parent, attribute, layer.get_base_layer())
        self.peft_config[names[0]].lora = None
        warnings.warn(
            "The LoRA part is merged into the weights, but the prefix stays, because it changes no weight: "
            "save_pretrained() stores it alone, and unload() gives the merged model without it.",
            stacklevel=4,
        )
        return self.model

    def _check_merge_allowed(self) -> None:
        if all(self.peft_config[name].lora is None for name in self.active_adapters):
            raise ValueError(
                "A prefix cannot be merged: it adds virtual tokens or keys to the attention and changes no weight. "
                "Save it with save_pretrained(), or get the base model back with unload()."
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
        """The prefix (without a reparameterisation network), a trained alpha, gates, and the LoRA part."""
        path, layer = _locate(model)
        keys, prefix = _keys(path, layer, adapter_name), layer.prefixes[adapter_name]
        saved = {key: state_dict[key] for key in keys if key in state_dict}
        if prefix.network is not None:
            saved[keys[0]] = prefix.value().detach()
        if config.lora is not None:
            both = LoraModel._get_adapter_state_dict(
                model, config.lora, adapter_name, state_dict, unwanted_adapter_names
            )
            saved |= {key: tensor for key, tensor in both.items() if not key.startswith(f"{path}.")}
        return saved

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: Any, config: PrefixConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        cls._check_whole(model, config, adapter_name, state_dict)
        if len(model.peft_config) > 1:  # the first adapter must fit the number of classes of the model
            _fit_heads(model, adapter_name, state_dict)
        state_dict = LoraModel._remap_adapter_state_dict_for_load(model, config.lora, adapter_name, state_dict)
        path, layer = _locate(model)
        prefix, key = layer.prefixes[adapter_name], _keys(path, layer, adapter_name)[0]
        if prefix.network is not None:
            base = key.removesuffix("weight")
            state_dict.update({f"{base}network.{name}": own for name, own in prefix.network.state_dict().items()})
            state_dict[key] = state_dict[key] - prefix.from_network().detach().to(state_dict[key].device)
        return state_dict

    @classmethod
    def _check_whole(cls, model: Any, config: PrefixConfig, adapter_name: str, state_dict: dict[str, Tensor]) -> None:
        """Raise unless `state_dict` has all that this adapter saves; peft would leave the rest untrained."""
        others = [name for name in model.peft_config if name != adapter_name]
        own = {
            key: tensor
            for key, tensor in model.state_dict().items()
            if not any(f".{name}." in f"{key}." for name in others)
        }
        for key, tensor in cls._get_adapter_state_dict(model, config, adapter_name, own, others).items():
            saved_key = cls._remove_adapter_name_from_key(key, adapter_name)
            saved = state_dict.get(saved_key, state_dict.get(f"base_model.model.{saved_key}"))
            _check_saved(saved, tensor, saved_key)


def _locate(model: nn.Module) -> tuple[str, PrefixLayer]:
    """The module that holds the prefixes, and its name."""
    for name, module in model.named_modules():
        if isinstance(module, PrefixLayer):
            return name, module
    raise ValueError("This model carries no prefixes.")


@torch.no_grad()
def _fit_heads(model: nn.Module, adapter_name: str, state_dict: dict[str, Tensor]) -> None:
    """Give the heads of an adapter as many classes as it was saved with; peft copies them from the model."""
    for path, wrapper in model.named_modules():
        if not isinstance(wrapper, ModulesToSaveWrapper) or adapter_name not in wrapper.modules_to_save:
            continue
        head = f"{path}.modules_to_save.{adapter_name}"
        for name, linear in wrapper.modules_to_save[adapter_name].named_modules(prefix=head):
            saved = state_dict.get(f"{name}.weight")
            if isinstance(linear, nn.Linear) and saved is not None and saved.shape[1:] == linear.weight.shape[1:]:
                _resize(linear, len(saved))


def _resize(linear: nn.Linear, classes: int) -> None:
    if linear.out_features == classes:
        return
    linear.out_features = classes
    for name, parameter in list(linear.named_parameters()):
        empty = parameter.new_empty(classes, *parameter.shape[1:])
        setattr(linear, name, nn.Parameter(empty, parameter.requires_grad))


def _keys(path: str, layer: PrefixLayer, adapter_name: str) -> list[str]:
    """The state dict keys of an adapter's prefix, of its alpha and of its gates."""
    prefix, alpha = (f"{path}.{name}.{adapter_name}" for name in layer.adapter_layer_names)
    return [f"{prefix}.weight", f"{alpha}.weight", f"{prefix}.gate"]


def _check_saved(saved: Tensor | None, own: Tensor, key: str) -> None:
    again = "load it onto the model it was trained on, or save the adapter again."
    if saved is None:
        raise ValueError(f"The adapter file has no tensor {key!r}: it holds another kind of adapter; {again}")
    if tuple(saved.shape) != tuple(own.shape):
        raise ValueError(
            f"The saved tensor {key!r} has shape {list(saved.shape)}, this model and configuration need "
            f"{list(own.shape)}; {again}"
        )
    if not saved.is_floating_point() or not bool(torch.isfinite(saved).all()):
        raise ValueError(f"The saved tensor {key!r} contains values that are not finite floats; {again}")


def _check_pooling(config: PrefixConfig, model: nn.Module, backbone: Backbone) -> None:
    takes_mean = backbone.head_takes_mean
    head_pools = type(model).__name__.endswith("ForSequenceClassification") and not takes_mean
    if config.pooling == "prefix" and not (backbone.has_pooler or head_pools):
        needed, instead = "pooling='prefix'", "use pooling='cls'"
        if is_read_only(config):
            needed, instead = "read_only=True", "use a sequence classification model that reads [CLS]"
        raise ValueError(
            f"{needed} needs a model that pools one row, and {type(model).__name__} does not"
            f"{' (its classifier_pooling is mean)' if takes_mean else ''}; {instead}."
        )


def _check_modules_to_save(config: PrefixConfig, model: nn.Module) -> None:
    names = [name for name, _ in model.named_modules()]
    for wanted in config.modules_to_save or ():
        if wanted not in _HEADS and not any(name.endswith(wanted) for name in names):
            parts = ", ".join(name for name, _ in model.named_children())
            raise ValueError(
                f"modules_to_save: {type(model).__name__} has no module {wanted!r}; it has {parts} and their parts."
            )


def _prepare_lora(config: PrefixConfig, backbone: Backbone) -> None:
    """Complete the LoRA part's settings from the adapter's; both name the same heads, which are saved once."""
    lora = config.lora
    assert lora is not None
    heads = dict.fromkeys([*(config.modules_to_save or ()), *(lora.modules_to_save or ())])
    config.modules_to_save = lora.modules_to_save = list(heads) or None
    lora.task_type, lora.inference_mode = config.task_type, config.inference_mode
    if lora.target_modules is None and lora.target_parameters is None:
        lora.target_modules = set(backbone.lora_targets)


def _record_model(config: PrefixConfig, backbone: Backbone) -> None:
    """Record which model the adapter is for; refuse a model that it was not made for."""
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
