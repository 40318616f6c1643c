"""The model of a run: its base model with the weights that the run trained.

These are in one of three folders: `adapter/` in peft's format, `model/` whole, or `head/head.safetensors`.
Weights are safetensors only: nothing is unpickled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from prefixprop.models import CandidateScorer
from prefixprop.settings.base_model import load_base_model, token_limit
from prefixprop.settings.methods import ADAPTER, HEAD, HEAD_FILE, MODEL, Method
from prefixprop.settings.run_settings import RunSettings
from prefixprop.tuners.counting import classes_of

DEFAULT_ADAPTER = "default"  # peft's name for an adapter that nobody named
_AGAIN = "train the run again, or restore the file from a copy"
_LONGEST_PROBLEM = 300  # characters of a library's message; some list every weight


def load_trained(
    run_dir: Path,
    settings: RunSettings,
    tokenizer: PreTrainedTokenizerBase,
    label_names: tuple[str, ...] | None,
    shared: Any = None,
    adapter: str = DEFAULT_ADAPTER,
) -> Any:
    """The run's model, in evaluation mode: for documents, with logits in the order of `label_names`.

    Without label names it is a model for questions with candidates (WikiHop). `tokenizer` is the run's. `shared` is
    the model of another run, which this run's adapter can be put on; `adapter` is the name it gets.
    """
    method = settings.method_row
    folders = (ADAPTER, MODEL, HEAD)
    found = [folder for folder in folders if (run_dir / folder).is_dir()]
    if found != [method.folder]:
        raise ValueError(
            f"{run_dir}: a run of {settings.method} keeps its weights in {method.folder} alone, but of "
            f"{', '.join(folders)} it has {' and '.join(found) or 'none'}; {_AGAIN}."
        )
    weights = run_dir / method.folder
    with _quiet():
        if method.folder == MODEL:
            model_class = CandidateScorer if label_names is None else AutoModelForSequenceClassification
            model = _whole_model(weights, model_class)
            limit = token_limit((model.encoder if label_names is None else model).config, tokenizer)
        else:
            with _explained_absence(run_dir, settings):
                base = load_base_model(settings, tokenizer)
                model, limit = base.build(label_names) if shared is None else shared, base.limit
            if method.folder == ADAPTER:
                model = _with_adapter(model, weights, method, adapter)
            else:
                model = _with_head(model, weights)
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


def _whole_model(folder: Path, model_class: Any) -> PreTrainedModel:
    with _explained_damage(folder):
        return model_class.from_pretrained(
            folder, use_safetensors=True, local_files_only=True, trust_remote_code=False
        )


def _with_adapter(model: PreTrainedModel | PeftModel, folder: Path, method: Method, adapter: str) -> PeftModel:
    # peft would look for a missing file on the hub, and take a pickled one.
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name}: the file is missing, so the run is damaged; {_AGAIN}.")
    weights = folder / "adapter_model.safetensors"
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


def _with_head(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    path = folder / HEAD_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the file is missing, so the run is damaged; {_AGAIN}.")
    with _explained_damage(path):
        tensors = load_file(path)
        found = model.load_state_dict(tensors, strict=False)
    if found.unexpected_keys or not tensors:
        unknown = ", ".join(found.unexpected_keys[:3]) or "no weights at all"
        raise ValueError(f"{path}: the weights do not fit the base model (the file has {unknown}); {_AGAIN}.")
    return model


@contextlib.contextmanager
def _explained_damage(path: Path) -> Iterator[None]:
    try:
        yield
    # torch raises RuntimeError for shapes that do not fit; broken JSON leads to KeyError and TypeError.
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{path}: the weights cannot be read ({_shortened(error)}); {_AGAIN}.") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide remarks about a new head: the run's own head replaces it."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _shortened(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    problem = " ".join(str(error).split()) or type(error).__name__
    return problem if len(problem) <= _LONGEST_PROBLEM else problem[:_LONGEST_PROBLEM] + " …"
