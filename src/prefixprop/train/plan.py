"""What a run will do: its resolved settings, its documents and its model, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel, set_seed
from transformers.integrations import get_available_reporting_integrations

from prefixprop.attention import install
from prefixprop.backbones import family_in
from prefixprop.data import ClassificationTask, Task, fingerprint, load_data, select_documents
from prefixprop.evaluate import PredictionSet, Temperature
from prefixprop.models.base_model import BaseModel, load_base_model
from prefixprop.progress import Progress, process_count
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.methods import HEAD, MODEL
from prefixprop.settings.resolve import check_settings, documents_at_once, resolve, unused_notes, with_method
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import RunData, kind_of
from prefixprop.train.recovery import building_remedy, explained_memory_errors
from prefixprop.tuners.counting import ParameterCount, count_parameters

FEW_STEPS = 10


@dataclass(frozen=True)
class RunPlan:
    """What a run will do: its resolved settings, its documents and its model, before anything is trained."""

    settings: RunSettings
    base: BaseModel
    task: Task  # the documents that the run reads
    data: RunData
    parameters: ParameterCount
    documents_fingerprint: str
    at_once: int  # documents that a device computes at once
    models: list[nn.Module]  # the model that was built to count its parameters; `take_model` uses it up

    @property
    def classification(self) -> ClassificationTask:
        """The task of a run that classifies documents."""
        assert isinstance(self.task, ClassificationTask)
        return self.task

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.data.train_lengths) // self.settings.documents_per_step)

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * (self.settings.epochs or 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before it starts."""
        notes = list(self.data.notes)
        if self.data.unread:
            is_lower = (self.settings.max_length or 0) < self.base.limit
            remedy = (
                f"--max-length reads up to {self.base.limit:,}"
                if is_lower
                else "a --model with a higher limit reads more"
            )
            notes.append(f"{self.data.unread}; {remedy}")
        if self.steps < FEW_STEPS and self.settings.epochs is not None:
            few = f"the run has {self.steps} step{'s' if self.steps > 1 else ''}, too few to learn much"
            notes.append(f"{few}: give it more --epochs or documents, or a smaller --batch-size")
        return tuple(notes)

    def take_model(self) -> nn.Module:
        """A model for one attempt at training; the plan keeps no reference to it, so that its memory can be freed."""
        return self.models.pop() if self.models else _build(self.base, self.data, self.settings)

    def __str__(self) -> str:
        """The settings that matter most, in one line."""
        settings = self.settings
        if not settings.reads_tokens:
            return f"{settings.method}: {len(self.data.train_lengths):,} documents, seed {settings.seed}"
        parts = [f"{len(self.data.train_lengths):,} documents of up to {settings.max_length:,} tokens"]
        if settings.epochs is not None:
            parts.append(f"{settings.epochs} × {self.steps_per_epoch:,} steps of {settings.batch_size} documents")
        if settings.learning_rate is not None:
            parts.append(f"learning rate {settings.learning_rate:g}")
        if not settings.is_mix:  # which decides only later how much it keeps
            trained = f"{self.parameters.trainable:,} trained parameters"
            parts.append(f"{trained} ({self.parameters.percent('trainable'):.2f} % of the encoder)")
        return f"{settings.method} on {self.base.name}: {', '.join(parts)}, seed {settings.seed}"


@dataclass(frozen=True)
class Trained:
    """What came of a run."""

    predictions: dict[str, PredictionSet]  # by split, not calibrated
    temperature: Temperature
    details: dict[str, Any]  # of its metrics, what runs of its kind alone have
    parameters: ParameterCount  # of what is kept
    save: Callable[[Path], None]  # writes what is kept into a folder


def plan(
    settings: RunSettings,
    progress: Progress | None = None,
    other: RunPlan | None = None,
    documents: ClassificationTask | None = None,
) -> RunPlan:
    """Check the settings, load data and model, and resolve what was left open; nothing is written.

    `other` is the plan for another label column of the same documents, whose model serves this one too. `documents`
    are those of a run whose settings name no source of data.
    """
    progress = progress or Progress()
    check_settings(settings, process_count(), in_memory=documents is not None)
    _check_trackers(settings)
    progress.stage("reading documents")
    whole: Task = load_data(**settings.source) if documents is None else documents
    several_labels = isinstance(whole, ClassificationTask) and whole.several_labels
    settings = with_method(settings, len(whole.train), process_count())
    notes = unused_notes(settings)
    progress.stage("loading the model")
    # Readers have no dropout of attention weights.
    dropouts = (settings.dropout, 0.0 if settings.is_mix else settings.attention_dropout)
    base = other.base if other else load_base_model(settings.model, settings.model_revision, *dropouts)
    settings = replace(settings, model=base.name, model_revision=base.revision)
    settings = resolve(settings, base.limit, len(whole.train), several_labels)
    task = select_documents(whole, **settings.selection)
    progress.stage("turning documents into tokens")
    data = kind_of(settings).encode(task, base.tokenizer, settings)
    data = replace(data, notes=(*notes, *data.notes))
    at_once = documents_at_once(settings, process_count())
    models = [] if other else [_build(base, data, settings)]
    count = other.parameters if other else count_parameters(models[0])
    return RunPlan(settings, base, task, data, count, fingerprint(whole), at_once, models)


def _build(base: BaseModel, data: RunData, settings: RunSettings) -> nn.Module:
    """A new model; its head and its prefix are drawn with the run's seed."""
    set_seed(settings.seed)
    with explained_memory_errors(building_remedy(settings)):
        model = kind_of(settings).new_model(base, data.label_names, settings)
        if data.several_labels:  # for whoever loads the model without this package
            model.config.problem_type = "multi_label_classification"
        return build_trainable(model, settings)


def build_trainable(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    """The model that is trained: `base`, with a new head, as the method of the settings changes and freezes it."""
    model = _trainable(base, settings)
    if settings.attention_backend != "huggingface" and family_in(base).has_fast_attention:
        install(model, settings.attention_backend)
    elif settings.attention_backend not in ("auto", "huggingface"):
        raise ValueError(
            f"--attention-backend: {settings.attention_backend} is for Longformer and ModernBERT, and this model is "
            f"a {base.config.model_type}; leave it at auto."
        )
    return model


def _trainable(base: PreTrainedModel, settings: RunSettings) -> nn.Module:
    method = settings.method_row
    if method.is_mix:  # readers stand beside the frozen model
        return base.requires_grad_(False)
    if method.trains == MODEL:
        return base.requires_grad_(True)
    if method.trains == HEAD:
        kind_of(settings).freeze_encoder(base)
        return base
    if "lora_targets" in method.options:
        settings = replace(settings, lora_targets=_lora_targets(base, settings))
    return kind_of(settings).adapt(base, method.peft_config(settings))


def _lora_targets(base: PreTrainedModel, settings: RunSettings) -> tuple[str, ...]:
    """The names of the layers that LoRA changes: the family's, unless they are given."""
    layers = {name.rpartition(".")[2] for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    targets = family_in(base).lora_targets if settings.lora_targets is None else settings.lora_targets
    lacking = [target for target in targets if target not in layers]
    if lacking:
        raise ValueError(
            f"--lora-targets: this {base.config.model_type} has no layers named {', '.join(lacking)}; it has "
            f"{', '.join(sorted(layers))}."
        )
    return targets


def _check_trackers(settings: RunSettings) -> None:
    installed = get_available_reporting_integrations()
    missing = [name for name in settings.report_to if name not in installed]
    if missing:
        here = ", ".join(sorted(installed)) or "none"
        unknown = "is unknown or its package is not installed; installed"
        raise SettingsError(f"--report-to: {name!r} {unknown}: {here}." for name in missing)
