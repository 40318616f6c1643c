"""Loading the model of a run: its base model with the weights that the run trained.

>>> from prefixprop import load_run
>>> classifier = load_run("runs/letters")
>>> classifier.predict(["Dear Sir or Madam, …"])[0].label

The weights are in one of three folders: `adapter/` in peft's format, `model/` whole, or `head/head.safetensors`.
They are safetensors only: nothing is unpickled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
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
from prefixprop.models import CandidateScorer
from prefixprop.models.base_model import load_base_model, token_limit
from prefixprop.models.gpu import hold_frozen_in_bfloat16
from prefixprop.predict.trained_model import TrainedModel
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.methods import ADAPTER, HEAD, HEAD_FILE, MODEL, Method
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import kind_of
from prefixprop.tuners.counting import classes_of

_DEFAULT_ADAPTER = "default"  # peft's name for an adapter that nobody named
_AGAIN = "train the run again, or restore the file from a copy"
_LONGEST_PROBLEM = 300  # characters of a library's message; some list every weight


def load_run(run_dir: str | Path, device: str | torch.device | None = None) -> TrainedModel:
    """Load the model that `prefixprop train` left in `run_dir`.

    `device` is where it runs, such as "cpu" or "cuda:1"; by default a CUDA GPU if there is one.
    """
    return load_runs([run_dir], device)[0]


def load_runs(run_dirs: Sequence[str | Path], device: str | torch.device | None = None) -> list[TrainedModel]:
    """Load several runs; prefixes of one kind on the same base model become adapters of one model."""
    folders = [Path(run_dir) for run_dir in run_dirs]
    settings = [_settings(folder) for folder in folders]
    sharing = [_sharing(*both) for both in zip(folders, settings, strict=True)]
    runs: list[TrainedModel] = []
    for number, folder in enumerate(folders):
        shared = next((run.model for run, key in zip(runs, sharing, strict=False) if key == sharing[number]), None)
        adapter = f"run{number}" if sharing.count(sharing[number]) > 1 else None
        runs.append(_load(folder, settings[number], runs, shared, adapter))
    chosen_device = _device(device)
    for run in {id(run.model): run for run in runs}.values():
        _make_ready(run.model, run.settings, chosen_device)
    return runs


def _load(
    run_dir: Path, settings: RunSettings, others: list[TrainedModel], shared: Any, adapter: str | None
) -> TrainedModel:
    directory = RunDirectory(run_dir)
    temperature = directory.read_temperature()
    alike = [run for run in others if _tokenizer_checksums(run.run_dir) == _tokenizer_checksums(run_dir)]
    tokenizer = alike[0].tokenizer if alike else _load_tokenizer(directory.tokenizer)
    label_names = None if settings.answers_questions else directory.read_labels()
    assert settings.max_length is not None
    return TrainedModel(
        run_dir=run_dir,
        model=_load_model(run_dir, settings, tokenizer, label_names, shared, adapter or _DEFAULT_ADAPTER),
        tokenizer=tokenizer,
        label_names=label_names or (),
        max_length=settings.max_length,
        temperature=temperature,
        settings=settings,
        prepare=settings.task_row.prepare,
        adapter=adapter,
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
    if settings.max_length is None:
        raise ValueError(
            f"{directory.config}: max_length is missing, which a finished run always has; train the run again."
        )
    directory.check_intact(weights=True)
    return settings


def _sharing(run_dir: Path, settings: RunSettings) -> Hashable:
    """Equal for runs that can be adapters of one model."""
    if not settings.is_prefix_method or settings.answers_questions:
        return run_dir
    return settings.model, settings.method_row.config, settings.precision, settings.attention_backend


def _make_ready(model: Any, settings: RunSettings, device: torch.device) -> None:
    # This machine may need another fast backend than the one that the run used.
    if settings.attention_backend != "huggingface" and family_in(model).has_fast_attention:
        install(model)
    if device.type == "cuda" and settings.precision != "fp32":
        hold_frozen_in_bfloat16(model.requires_grad_(False))
    model.to(device)


def _tokenizer_checksums(run_dir: Path) -> dict[str, str]:
    folder = RunDirectory(run_dir).tokenizer
    return checksums(folder, (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()))


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: the run's tokenizer is missing; train the run again.")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises nothing more specific
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{folder}: the run's tokenizer cannot be read ({problem}); train the run again.") from error


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
    """The run's model, in evaluation mode: for documents, with logits in the order of `label_names`.

    Without label names it is a model for questions with candidates (WikiHop). `shared` is the model of another run,
    to which this run's adapter is added; `adapter` is the name that it gets.
    """
    method = settings.method_row
    folders = (ADAPTER, MODEL, HEAD)
    found = [folder for folder in folders if (run_dir / folder).is_dir()]
    if found != [method.trains]:
        raise ValueError(
            f"{run_dir}: a run of {settings.method} keeps its weights in {method.trains} alone, but of "
            f"{', '.join(folders)} it has {' and '.join(found) or 'none'}; {_AGAIN}."
        )
    weights = run_dir / method.trains
    with _quiet():
        if method.trains == MODEL:
            model_class = CandidateScorer if label_names is None else AutoModelForSequenceClassification
            with _explained_damage(weights):
                model = model_class.from_pretrained(
                    weights, use_safetensors=True, local_files_only=True, trust_remote_code=False
                )
            limit = token_limit((model.encoder if label_names is None else model).config, tokenizer)
        else:
            with _explained_absence(run_dir, settings):
                base = load_base_model(settings.model, settings.model_revision, tokenizer=tokenizer)
                model = kind_of(settings).new_model(base, label_names, settings) if shared is None else shared
                limit = base.limit
            if method.trains == ADAPTER:
                model = _with_adapter(model, weights, method, adapter)
            else:
                model = _with_head(model, weights / HEAD_FILE)
    if settings.max_length is not None and settings.max_length > limit:
        raise ValueError(
            f"{run_dir / 'config.yaml'}: max_length is {settings.max_length}, but the model reads {limit} tokens at "
            "most; put back the number that the run was trained with, or train the run again."
        )
    classes = model.config.num_labels if shared is None else classes_of(shared, adapter)
    if label_names is not None and classes != len(label_names):
        raise ValueError(
            f"{run_dir}: the model has {classes} classes, but labels.json has {len(label_names)}; {_AGAIN}."
        )
    return model.eval()


def _with_adapter(model: PreTrainedModel | PeftModel, folder: Path, method: Method, adapter: str) -> PeftModel:
    weights = folder / "adapter_model.safetensors"
    # peft would look for a missing file on the hub, and take a pickled one.
    for file in (folder / "adapter_config.json", weights):
        _check_there(file)
    with _explained_damage(folder):
        config = PeftConfig.from_pretrained(folder)
    if type(config) is not method.config_class:
        raise ValueError(
            f"{folder}: this is an adapter of the type {config.peft_type.value}, but the method in config.yaml is "
            f"{method.name}, so they are of different runs; {_AGAIN}."
        )
    with _explained_damage(folder):
        if isinstance(model, PeftModel):
            model.load_adapter(folder, adapter)
        else:
            model = PeftModel.from_pretrained(model, folder, adapter_name=adapter)
        # peft leaves weights that the file lacks at their random start.
        saved = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
        lacking = saved.keys() - load_file(weights).keys()
    if lacking:
        raise ValueError(f"{weights}: the weights of {sorted(lacking)[0]} are missing; {_AGAIN}.")
    return model


def _with_head(model: PreTrainedModel, path: Path) -> PreTrainedModel:
    _check_there(path)
    with _explained_damage(path):
        tensors = load_file(path)
        found = model.load_state_dict(tensors, strict=False)
    if found.unexpected_keys or not tensors:
        unknown = ", ".join(found.unexpected_keys[:3]) or "no weights at all"
        raise ValueError(f"{path}: the weights do not fit the base model (the file has {unknown}); {_AGAIN}.")
    return model


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the file is missing, so the run is damaged; {_AGAIN}.")


@contextlib.contextmanager
def _explained_absence(run_dir: Path, settings: RunSettings) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        # The problem alone, without the advice on --model, which is for training.
        problem = _shortened(error.__cause__ or error)
        raise ValueError(
            f"{run_dir}: the run's base model {settings.model!r} cannot be loaded ({problem}). Put it back where it "
            "was, or make the hub reachable once; it must have safetensors weights."
        ) from error


@contextlib.contextmanager
def _explained_damage(path: Path) -> Iterator[None]:
    try:
        yield
    # torch raises RuntimeError for shapes that do not fit; broken JSON leads to KeyError and TypeError.
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{path}: the weights cannot be read ({_shortened(error)}); {_AGAIN}.") from error


def _shortened(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    problem = " ".join(str(error).split()) or type(error).__name__
    return problem if len(problem) <= _LONGEST_PROBLEM else problem[:_LONGEST_PROBLEM] + " …"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide messages about a new head: the run's own head replaces it."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
