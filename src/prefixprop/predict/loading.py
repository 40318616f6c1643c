"""Loading the model of a run: its base model with the weights that the run trained.

>>> from prefixprop import load_run
>>> classifier = load_run("runs/letters")
>>> classifier.predict(["Dear Sir or Madam, …"])[0].label

The weights are in one of four folders: `adapter/` in peft's format, `model/` whole, `head/head.safetensors`, or
`mix/` with an adapter for each reader and the TF-IDF model. They are safetensors only: nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from prefixprop.atomic_files import checksums
from prefixprop.attention import install
from prefixprop.backbones import family_in
from prefixprop.choices import EMBEDDED_MODELS
from prefixprop.evaluate import Mix, TfidfModel
from prefixprop.evaluate.mixing import READERS, WORDS
from prefixprop.models import CandidateScorer
from prefixprop.models.base_model import load_base_model, load_pretrained
from prefixprop.models.embedded import load_embedded
from prefixprop.models.gpu import hold_frozen_in_bfloat16, use_bf16
from prefixprop.predict.reading import ReadingEncoder
from prefixprop.predict.trained_model import TrainedModel
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.methods import ADAPTER, HEAD_FILE, MIX_FILE, MODEL
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import kind_of
from prefixprop.tuners.reader_bank import read_adapter

_DEFAULT_ADAPTER = "default"  # peft's name for an adapter that nobody named


def load_run(run_dir: str | Path, device: str | torch.device | None = None) -> TrainedModel:
    """Load the model that `prefixprop train` saved in `run_dir`.

    `device` is where it runs, such as "cpu" or "cuda:1"; by default a CUDA GPU if there is one.
    """
    return load_runs([run_dir], device)[0]


def load_runs(run_dirs: Sequence[str | Path], device: str | torch.device | None = None) -> list[TrainedModel]:
    """Load several runs; prefixes of one kind on the same base model become adapters of one model.

    All readers on the same base model become one bank, which reads every text once.
    """
    folders = [Path(run_dir) for run_dir in run_dirs]
    settings = [_settings(folder) for folder in folders]
    sharing = [_sharing(*both) for both in zip(folders, settings, strict=True)]
    chosen_device = _device(device)
    runs: list[TrainedModel] = []
    models: dict[Hashable, Any] = {}
    tokenizers: dict[Hashable, PreTrainedTokenizerBase] = {}
    for number, (folder, own, key) in enumerate(zip(folders, settings, sharing, strict=True)):
        adapter = f"run{number}" if sharing.count(key) > 1 else None
        run = _load(folder, own, _tokenizer(folder, own.model, tokenizers), models.get(key), adapter)
        runs.append(run)
        if run.model is not None:
            models[key] = run.model
    for run in {id(run.model): run for run in runs if run.model is not None}.values():
        model = run.model.model if isinstance(run.model, ReadingEncoder) else run.model
        _make_ready(model, run.settings, chosen_device)
    return runs


def load_by_name(run_dirs: Mapping[str, str | Path]) -> dict[str, TrainedModel]:
    """Load several runs for documents."""
    runs = dict(zip(run_dirs, load_runs(list(run_dirs.values())), strict=True))
    for run in runs.values():
        run.check_reads_documents()
    return runs


def _load(
    run_dir: Path, settings: RunSettings, tokenizer: PreTrainedTokenizerBase, shared: Any, adapter: str | None
) -> TrainedModel:
    """The run; `shared` is the model of another one, to which it adds its readers, or its adapter of this name."""
    directory = RunDirectory(run_dir)
    label_names = None if settings.answers_questions else directory.read_labels()
    weights = run_dir / settings.method_row.trains
    parts: dict[str, Any] = {"model": None}
    readers: list[Path] = []
    if settings.is_mix:
        shares = json.loads((weights / MIX_FILE).read_bytes())["weights"]
        mix = parts["mix"] = Mix(dict.fromkeys(shares, 0), shares)
        if WORDS in mix.used:
            parts["words"] = TfidfModel.load(weights / WORDS)
        if READERS in mix.used:
            readers = sorted((weights / READERS).iterdir(), key=lambda reader: int(reader.name))
    elif settings.method_row.is_read_only:
        readers = [weights]
    with quiet_transformers():
        if readers:
            encoder = shared or ReadingEncoder(_new_model(run_dir, settings, tokenizer, label_names))
            parts |= {"model": encoder, "readers": encoder.add([read_adapter(folder) for folder in readers])}
        elif not settings.is_mix:
            model = _load_model(run_dir, settings, tokenizer, label_names, shared, adapter or _DEFAULT_ADAPTER)
            parts |= {"model": model.eval(), "adapter": adapter}
    assert settings.max_length is not None
    return TrainedModel(
        run_dir=run_dir,
        tokenizer=tokenizer,
        label_names=label_names or (),
        max_length=settings.max_length,
        temperature=directory.read_temperature(),
        trust=directory.read_trust(),
        settings=settings,
        prepare=settings.task_row.prepare,
        thresholds=directory.read_thresholds(),
        **parts,
    )


def _settings(run_dir: Path) -> RunSettings:
    """The settings of a run that is finished, undamaged, and has its weights."""
    directory = RunDirectory(run_dir)
    directory.check_finished()
    settings = directory.read_settings()
    if not settings.keep_weights:
        raise ValueError(
            f"{run_dir}: this run did not keep its weights; train it again with `prefixprop train … "
            "--overwrite --keep-weights`."
        )
    directory.check_intact(weights=True)
    return settings


def _sharing(run_dir: Path, settings: RunSettings) -> Hashable:
    """Equal for runs that can be adapters of one model."""
    if not settings.is_prefix_method or settings.answers_questions:
        return run_dir
    row = settings.method_row
    base = settings.model, settings.model_revision, settings.precision, settings.attention_backend
    return *base, row.config, row.is_read_only


def _make_ready(model: Any, settings: RunSettings, device: torch.device) -> None:
    # This machine may need another fast backend than the one that the run used.
    if settings.attention_backend != "huggingface" and family_in(model).has_fast_attention:
        install(model)
    if device.type == "cuda" and use_bf16(settings.precision):
        hold_frozen_in_bfloat16(model.requires_grad_(False))
    model.to(device)


def _tokenizer(run_dir: Path, model: str, known: dict[Hashable, PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    """The run's tokenizer; runs whose files are the same share one."""
    folder = RunDirectory(run_dir).tokenizer
    if model in EMBEDDED_MODELS and not folder.is_dir():  # a small copy of a run, see recipes/pack_runs.py
        return known.setdefault(model, load_embedded(model)[1])
    names = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    key = frozenset(checksums(folder, names).items())
    if key not in known:
        known[key] = load_pretrained(AutoTokenizer, str(folder))
    return known[key]


def _device(wanted: str | torch.device | None) -> torch.device:
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ValueError(f"device={wanted!r} is unknown; choose one such as cpu, cuda or cuda:1.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={str(wanted)!r}: there is no CUDA GPU that PyTorch can use; choose cpu.")
    return device


# --- the model and its weights ------------------------------------------------------------------------------------


def _load_model(
    run_dir: Path,
    settings: RunSettings,
    tokenizer: PreTrainedTokenizerBase,
    label_names: tuple[str, ...] | None,
    shared: Any,
    adapter: str,
) -> Any:
    """The run's model: for documents, with logits in the order of `label_names`.

    The manifest says that the weights are those of the run. Without label names it is a model for questions with
    candidates (WikiHop).
    """
    trains = settings.method_row.trains
    weights = run_dir / trains
    if trains == MODEL:
        model_class = CandidateScorer if label_names is None else AutoModelForSequenceClassification
        return load_pretrained(model_class, str(weights), use_safetensors=True, local_files_only=True)
    model = shared or _new_model(run_dir, settings, tokenizer, label_names)
    if trains == ADAPTER:
        return _with_adapter(model, weights, adapter)
    model.load_state_dict(load_file(weights / HEAD_FILE), strict=False)
    return model


def _new_model(
    run_dir: Path, settings: RunSettings, tokenizer: PreTrainedTokenizerBase, label_names: tuple[str, ...] | None
) -> Any:
    """The run's base model with a new head."""
    try:
        base = load_base_model(settings.model, settings.model_revision, tokenizer=tokenizer)
        return kind_of(settings).new_model(base, label_names, settings)
    except (OSError, ValueError) as error:
        # The problem alone, without the advice on --model, which is for training.
        problem = str(error.__cause__ or error).removeprefix("--model: ").rstrip(".")
        raise ValueError(
            f"{run_dir}: the run's base model {settings.model!r} cannot be loaded ({problem}). Put it back where it "
            "was, or make the hub reachable once; it must have safetensors weights."
        ) from error


def _with_adapter(model: PreTrainedModel | PeftModel, folder: Path, adapter: str) -> PeftModel:
    if not (folder / SAFETENSORS_WEIGHTS_NAME).is_file():
        raise ValueError(f"{folder} has no {SAFETENSORS_WEIGHTS_NAME}; adapters are loaded from safetensors only.")
    if isinstance(model, PeftModel):
        model.load_adapter(folder, adapter)
        return model
    return PeftModel.from_pretrained(model, folder, adapter_name=adapter)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide bars and messages about a new head, which the run's own head replaces, and what peft uses of old names."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
