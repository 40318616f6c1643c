"""What a run will do: its resolved settings, its documents and its model, before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn
from transformers import set_seed
from transformers.integrations import get_available_reporting_integrations

from prefixprop.attention.backends import is_modern_gpu
from prefixprop.data import ClassificationTask, Task, fingerprint, load_data, select_documents
from prefixprop.models.base_model import BaseModel, load_base_model
from prefixprop.processes import process_count
from prefixprop.progress import Progress
from prefixprop.settings.declaration import SettingsError
from prefixprop.settings.resolve import check_settings, documents_at_once, resolve, unused_notes
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.errors import building_remedy, explained_memory_errors
from prefixprop.train.kinds import RunData, kind_of
from prefixprop.train.trainable import build_trainable
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
    documents: str  # fingerprint of the data set
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
            remedy = f"--max-length reads up to {self.base.limit:,}" if is_lower else "a longer --model reads on"
            notes.append(f"{self.data.unread}; {remedy}")
        if self.steps < FEW_STEPS and self.settings.epochs is not None:
            few = f"the run has {self.steps} step{'s' if self.steps > 1 else ''}, too few to learn much"
            notes.append(f"{few}: give it more --epochs or documents, or a smaller --batch-size")
        return tuple(notes)

    def take_model(self) -> nn.Module:
        """A model for one attempt at training; the plan keeps no hold on it, so that its memory can be freed."""
        return self.models.pop() if self.models else _build(self.base, self.data, self.settings)

    def __str__(self) -> str:
        """The settings that matter most, in one line."""
        settings = self.settings
        parts = [f"{len(self.data.train_lengths):,} documents of up to {settings.max_length:,} tokens"]
        if settings.epochs is not None:
            parts.append(f"{settings.epochs} × {self.steps_per_epoch:,} steps of {settings.batch_size} documents")
        if settings.learning_rate is not None:
            parts.append(f"learning rate {settings.learning_rate:g}")
        if not settings.is_mix:  # which decides only later how much it keeps
            trained = self.parameters.trainable
            parts.append(
                f"{trained:,} trained parameters ({self.parameters.percent('trainable'):.2f} % of the encoder)"
            )
        return f"{settings.method} on {self.base.name}: {', '.join(parts)}, seed {settings.seed}"


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
    notes = unused_notes(settings)
    progress.stage("loading the model")
    # Readers have no dropout of attention weights.
    attention_dropout = 0.0 if settings.is_mix else settings.attention_dropout
    dropouts = (settings.dropout, attention_dropout)
    base = other.base if other else load_base_model(settings.model, settings.model_revision, *dropouts)
    progress.stage("reading documents")
    whole: Task = load_data(**settings.source) if documents is None else documents
    several_labels = isinstance(whole, ClassificationTask) and whole.several_labels
    settings = resolve(settings, base.limit, len(whole.train), several_labels)
    settings = replace(settings, model=base.name, model_revision=base.revision)
    task = select_documents(whole, **settings.selection)
    progress.stage("turning documents into tokens")
    data = kind_of(settings).encode(task, base.tokenizer, settings)
    data = replace(data, notes=(*notes, *data.notes))
    at_once = documents_at_once(settings, process_count())
    if other is not None:
        return RunPlan(settings, base, task, data, other.parameters, fingerprint(whole), at_once, [])
    model = _build(base, data, settings)
    return RunPlan(settings, base, task, data, count_parameters(model), fingerprint(whole), at_once, [model])


def _build(base: BaseModel, data: RunData, settings: RunSettings) -> nn.Module:
    """A new model; its head and its prefix are drawn with the run's seed."""
    set_seed(settings.seed)
    with explained_memory_errors(building_remedy(settings)):
        model = kind_of(settings).new_model(base, data.label_names, settings)
        if data.several_labels:  # for whoever loads the model without this package
            model.config.problem_type = "multi_label_classification"
        return build_trainable(model, settings)


def _check_trackers(settings: RunSettings) -> None:
    installed = get_available_reporting_integrations()
    missing = [name for name in settings.report_to if name not in installed]
    if missing:
        here = ", ".join(sorted(installed)) or "none"
        unknown = "is unknown or its package is not installed; installed"
        raise SettingsError(f"--report-to: {name!r} {unknown}: {here}." for name in missing)


def use_bf16(settings: RunSettings) -> bool:
    """Whether a run computes in bf16."""
    # Without instructions for it, it is slower than fp32, on a CPU some thirty times.
    return settings.precision == "bf16" or (settings.precision == "auto" and is_modern_gpu())
