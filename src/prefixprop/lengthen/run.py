"""From a RoBERTa or BERT and files of text to a folder with a trained long encoder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator
from transformers import set_seed

from prefixprop.atomic_files import clear_leftovers, replacing_folder, write_json, write_text
from prefixprop.lengthen.encoder import LongEncoder, build
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.lengthen.text import MASKED, TrainingText, read_text
from prefixprop.lengthen.trainer import Pretraining
from prefixprop.models.gpu import use_bf16, without_cudnn
from prefixprop.progress import Progress, process_count
from prefixprop.runs.directory import LOCK, claim
from prefixprop.train.recovery import explained_memory_errors, training_remedy, trusted_checkpoint
from prefixprop.train.run import describe_environment

RECORD, CHECKPOINTS = "lengthen.json", "checkpoints"


def lengthen_and_train(
    settings: LengthenSettings,
    output: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Lengthen a model, train it by masked language modelling, and save it as a folder for `from_pretrained`.

    `output` also gets a model card and `lengthen.json`: the settings, and the loss of held-out documents at the
    original's length and at full length, before, during and after training. That record is returned. A killed
    training continues with `resume`; on a CPU it ends with exactly the same weights. Under `accelerate launch` it
    uses several devices. Training stops with a checkpoint once `should_stop` returns true.

    >>> lengthen_and_train(LengthenSettings(model="roberta-base", text=["articles.jsonl"]), "roberta-base-4096")
    """
    progress = progress or Progress()
    settings.check(process_count())
    folder = Path(output)
    record = _check_may_start(folder, settings, resume, overwrite)
    if record is not None and record["finished"]:
        return record
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    accelerator.wait_for_everyone()  # every process has looked at the folder before the first one writes there
    with claim(folder, "--output") if accelerator.is_main_process else contextlib.nullcontext():
        return _train(settings, folder, accelerator, record, progress, should_stop)


def _check_may_start(
    folder: Path, settings: LengthenSettings, resume: bool, overwrite: bool
) -> dict[str, Any] | None:
    """The contents of `lengthen.json`, if training is to be resumed."""
    path = folder / RECORD
    if not path.exists():
        if folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
            raise ValueError(f"{folder}: the folder has other files; choose another --output.")
        return None
    if overwrite:
        return None
    if not resume:
        raise ValueError(f"{folder} has an encoder already; continue with --resume, or remove it with --overwrite.")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if changed := settings.changed_since(record["settings"]):
        raise ValueError(f"{folder} was begun with other values of {', '.join(changed)}; --resume needs the same.")
    return record


def _train(
    settings: LengthenSettings,
    folder: Path,
    accelerator: Accelerator,
    begun: dict[str, Any] | None,
    progress: Progress,
    should_stop: Callable[[], bool],
) -> dict[str, Any]:
    set_seed(settings.seed)
    progress.stage("reading the model and the text")
    encoder = build(settings)
    with accelerator.main_process_first():  # which encodes the documents for all
        text = read_text(settings, encoder.tokenizer, encoder.original_length)
    if begun is not None and begun["text"] != text.digest:
        raise ValueError(
            f"{folder} was begun with other documents in {', '.join(settings.text)}; --resume needs them."
        )
    if encoder.has_new_head:
        encoder.start_new_head(text.count_tokens(encoder.model.config.vocab_size))
    in_bf16 = use_bf16(settings.precision)
    record = {
        "settings": settings.recorded(),
        "environment": describe_environment(settings.seed, accelerator.device, accelerator.num_processes),
        "text": text.digest,
        "documents": text.documents,
        "tokens_of_text": text.tokens,
        "precision": "bf16" if in_bf16 else "fp32",
        "new_head": encoder.has_new_head,
        "finished": False,
    }
    if accelerator.is_main_process:
        clear_leftovers(folder)
        if begun is None:  # an encoder that is to be overwritten stays until the new one is trained
            for name in (CHECKPOINTS, "model"):
                shutil.rmtree(folder / name, ignore_errors=True)
        write_json(folder / RECORD, record)
        _tell_facts(text, encoder, settings, progress)
    with explained_memory_errors(training_remedy(settings, settings.device_batch_size)), without_cudnn():
        dtype = torch.bfloat16 if in_bf16 else torch.float32
        training = Pretraining(settings, encoder, text, accelerator, dtype, folder / CHECKPOINTS)
        checkpoint = trusted_checkpoint(folder / CHECKPOINTS, progress if accelerator.is_main_process else None)
        if checkpoint is not None:
            training.restore(checkpoint)
        training.run(progress, should_stop)
    state = training.state
    record |= {
        "steps": state.step,
        "tokens_seen": state.tokens,
        "seconds": round(state.seconds, 1),
        "history": state.history,
        "finished": True,
    }
    if accelerator.is_main_process:
        _finish(folder, encoder, training, record)
    accelerator.wait_for_everyone()
    return record


def _tell_facts(text: TrainingText, encoder: LongEncoder, settings: LengthenSettings, progress: Progress) -> None:
    if text.note is not None:
        progress.note(text.note)
    if encoder.has_new_head:
        progress.note(
            f"{settings.model} has no masked-language-model head; it gets a new one, tied to its embeddings, that "
            "starts with the frequencies of tokens"
        )
    if settings.total_steps is not None:
        passes = settings.total_steps * settings.batch_size / text.train.rows_per_pass
        if passes > 10:
            progress.note(
                f"{settings.total_steps:,} steps read the {text.tokens:,} tokens of text {passes:.0f} times over"
            )


def _finish(folder: Path, encoder: LongEncoder, training: Pretraining, record: dict[str, Any]) -> None:
    training.weights.end()
    # Written to a folder of its own, so that a killed process leaves no half a model; the record comes last.
    with replacing_folder(folder / "model") as temporary:
        encoder.save(temporary)
        write_text(temporary / "README.md", _model_card(record, encoder))
    for path in folder.iterdir():
        if path.is_file() and path.name not in (LOCK, RECORD):  # of an encoder that is overwritten
            path.unlink()
    for path in (folder / "model").iterdir():
        os.replace(path, folder / path.name)
    (folder / "model").rmdir()
    write_json(folder / RECORD, record)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _model_card(record: dict[str, Any], encoder: LongEncoder) -> str:
    """Markdown with a YAML head, as the Hugging Face hub reads it."""
    settings, lines = record["settings"], record["history"]
    head = {
        "library_name": "transformers",
        "base_model": settings["model"],
        "pipeline_tag": "fill-mask",
        "tags": ["prefixprop", "longformer", "long documents"],
    }
    about_cls = "No token was global in training."
    if encoder.teacher is not None:
        about_cls = (
            "[CLS] was global in training. It also learnt the mean of the original's [CLS] over the chunks of a "
            f"document (cosine {lines[-1]['cls_cosine']:.3f} at the end) and which words the document has."
        )
    frozen = " The word embeddings were not trained." if settings["freeze_embeddings"] else ""
    new_head = " The original had no masked-language-model head, so its first loss is that of a new one."
    lengths = list(lines[0]["held_out_bits"])
    losses = "\n".join(
        f"| {line['step']:,} | {line['tokens']:,} | "
        + " | ".join(f"{line['held_out_bits'][length]:.3f}" for length in lengths)
        + " |"
        for line in lines
    )
    return f"""---
{yaml.safe_dump(head, sort_keys=False).strip()}
---

# {settings["model"]} for {settings["max_length"]:,} tokens

A Longformer, made of {settings["model"]} with `prefixprop lengthen`: its positions were repeated up to
{settings["max_length"]:,} tokens, with attention windows of {settings["attention_window"]}, and it was then trained
by masked language modelling.

- **Text:** {record["documents"]:,} documents with {record["tokens_of_text"]:,} training tokens, in
  {", ".join(settings["text"])}.
- **Training:** {record["steps"]:,} steps of {settings["batch_size"]} × {settings["max_length"]:,} tokens,
  {record["tokens_seen"]:,} tokens in all, {MASKED:.0%} of them masked; AdamW, learning rate
  {settings["learning_rate"]:g} with a linear warm-up and decay, {record["precision"]}, {record["seconds"] / 60:.1f}
  minutes.{frozen}
- **Global attention:** {about_cls} Its projections are copies of the local ones.

Cross-entropy of masked tokens in held-out documents, in bits per token.{new_head if record["new_head"] else ""}

| step | tokens seen | {" | ".join(f"{length} tokens" for length in lengths)} |
| ---: | ---: |{" ---: |" * len(lengths)}
{losses}

`prefixprop train --model FOLDER` tunes it; `from_pretrained` of transformers reads it. It has the limits and biases
of {settings["model"]} and of the text.
"""
