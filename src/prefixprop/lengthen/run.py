"""From a RoBERTa or BERT and files of text to a folder with a trained long encoder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import set_seed

from prefixprop.atomic_files import clear_leftovers, replacing_folder, write_json, write_text
from prefixprop.attention.backends import is_modern_gpu
from prefixprop.lengthen.encoder import LongEncoder, build
from prefixprop.lengthen.model_card import model_card
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.lengthen.text import TrainingText, read_text
from prefixprop.lengthen.trainer import Pretraining, Progress
from prefixprop.models.gpu import without_cudnn
from prefixprop.processes import process_count
from prefixprop.runs.claim import LOCK, claim
from prefixprop.train.checkpoints import find_checkpoint
from prefixprop.train.environment import describe_environment
from prefixprop.train.errors import explained_memory_errors, training_remedy

RECORD, CHECKPOINTS = "lengthen.json", "checkpoints"


def lengthen_and_train(
    settings: LengthenSettings,
    output: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    tell: Callable[[str], None] = warnings.warn,
    show: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Lengthen a model, train it by masked language modelling, and save it as a folder for `from_pretrained`.

    `output` also gets a model card and `lengthen.json`: the settings, and the loss of held-out documents at the
    original's length and at full length, before training, during it and after. That record is returned. Training that
    was killed goes on with `resume`; on a CPU it ends with the very same weights. Under `accelerate launch` it uses
    several devices. `show` is called after every step, `tell` gets what a user should know, and training stops with a
    checkpoint once `should_stop` says so.

    >>> lengthen_and_train(LengthenSettings("roberta-base", ("articles.jsonl",)), "roberta-base-4096")
    """
    settings.check(process_count())
    folder = Path(output)
    record = _check_may_start(folder, settings, resume, overwrite)
    if record is not None and record["finished"]:
        return record
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    accelerator.wait_for_everyone()  # every process has looked at the folder before the first one writes there
    with claim(folder, "--output") if accelerator.is_main_process else contextlib.nullcontext():
        return _train(settings, folder, accelerator, record, tell, show, should_stop)


def _check_may_start(
    folder: Path, settings: LengthenSettings, resume: bool, overwrite: bool
) -> dict[str, Any] | None:
    """What `lengthen.json` says, if training is to go on."""
    path = folder / RECORD
    if not path.exists():
        if folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
            raise ValueError(f"{folder}: the folder has other files; choose another --output.")
        return None
    if overwrite:
        return None
    if not resume:
        raise ValueError(f"{folder} has an encoder already; go on with --resume, or remove it with --overwrite.")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    decisive = settings.decisive()
    changed = [name for name, value in record["settings"].items() if name in decisive and decisive[name] != value]
    if changed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise ValueError(f"{folder} was begun with other values of {flags}; --resume needs the same.")
    return record


def _train(
    settings: LengthenSettings,
    folder: Path,
    accelerator: Accelerator,
    begun: dict[str, Any] | None,
    tell: Callable[[str], None],
    show: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> dict[str, Any]:
    set_seed(settings.seed)
    encoder = build(settings)
    with accelerator.main_process_first():  # which encodes the documents for all
        text = read_text(settings, encoder.tokenizer, encoder.original_length)
    if begun is not None and begun["text"] != text.digest:
        raise ValueError(
            f"{folder} was begun with other documents in {', '.join(settings.text)}; --resume needs them."
        )
    if encoder.has_new_head:
        encoder.start_new_head(text.count_tokens(encoder.model.config.vocab_size))
    use_bf16 = settings.precision == "bf16" or (settings.precision == "auto" and is_modern_gpu())
    record = {
        "settings": dataclasses.asdict(settings) | {"text": list(settings.text)},
        "environment": describe_environment(settings.seed, accelerator.device, accelerator.num_processes),
        "text": text.digest,
        "documents": text.documents,
        "tokens_of_text": text.tokens,
        "precision": "bf16" if use_bf16 else "fp32",
        "new_head": encoder.has_new_head,
        "finished": False,
    }
    if accelerator.is_main_process:
        _start(folder, record, resumes=begun is not None)
        _tell_facts(text, encoder, settings, tell)
    with explained_memory_errors(training_remedy(settings)), without_cudnn():
        dtype = torch.bfloat16 if use_bf16 else torch.float32
        training = Pretraining(settings, encoder, text, accelerator, dtype, folder / CHECKPOINTS)
        checkpoint, complaints = find_checkpoint(folder / CHECKPOINTS)
        for complaint in complaints if accelerator.is_main_process else ():
            instead = f"goes on from {checkpoint.name}" if checkpoint else "starts from the beginning"
            tell(f"{complaint}; training {instead} instead")
        if checkpoint is not None:
            training.restore(checkpoint)
        training.run(show, should_stop)
    progress = training.progress
    record |= {
        "steps": progress.step,
        "tokens_seen": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "history": progress.history,
        "finished": True,
    }
    if accelerator.is_main_process:
        _finish(folder, encoder, training, record)
    accelerator.wait_for_everyone()
    return record


def _start(folder: Path, record: dict[str, Any], resumes: bool) -> None:
    clear_leftovers(folder)
    if not resumes:  # what is there then is an encoder to be overwritten; folders in it are somebody else's
        for name in (CHECKPOINTS, "model"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for path in folder.iterdir():
            if path.is_file() and path.name != LOCK:
                path.unlink()
    write_json(folder / RECORD, record)


def _tell_facts(
    text: TrainingText, encoder: LongEncoder, settings: LengthenSettings, tell: Callable[[str], None]
) -> None:
    if text.note is not None:
        tell(text.note)
    if encoder.has_new_head:
        tell(
            f"{settings.model} has no masked-language-model head; it gets a new one, tied to its embeddings. Before "
            "training that knows how often each word occurs, and nothing else"
        )
    if settings.total_steps is not None:
        passes = settings.total_steps * settings.batch_size / text.train.rows_per_pass
        if passes > 10:
            tell(f"{settings.total_steps:,} steps read the {text.tokens:,} tokens of text {passes:.0f} times over")


def _finish(folder: Path, encoder: LongEncoder, training: Pretraining, record: dict[str, Any]) -> None:
    training.weights.end()
    # Written aside, so that a kill leaves no half of a model, and then moved file by file; the record comes last.
    with replacing_folder(folder / "model") as temporary:
        encoder.save(temporary)
        write_text(temporary / "README.md", model_card(record, encoder))
    for path in (folder / "model").iterdir():
        os.replace(path, folder / path.name)
    (folder / "model").rmdir()
    write_json(folder / RECORD, record)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
