"""What encoders know before they are tuned: a linear classifier on their frozen [CLS], judged on folds of train.

    python benchmarks/encoder_probe.py recipes/hyperpartisan-head-only.yaml --max-length 1024
    python benchmarks/encoder_probe.py recipes/elife-prefix-tuning.yaml --data-dir FOLDER --documents 2400

Logistic regression on standardised features, ten times five folds, the best of several strengths. A name of the
package or a folder that `prefixprop lengthen` wrote is an encoder. Takes a GPU if there is one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RepeatedStratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import LongformerModel
from transformers.utils import logging

from prefixprop.attention import install
from prefixprop.models.embedded import EMBEDDED, load_tokenizer
from prefixprop.settings.documents import load_run_task
from prefixprop.settings.recipe import override, read_settings
from prefixprop.tasks import ClassificationTask, encode_documents
from prefixprop.tasks.batches import pad_documents
from prefixprop.training import RunSettings

ENCODERS = ("embedded", "longformer-mini-4096", "longformer-mini-4096-mlm")
STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1)
TOKENS_AT_ONCE = {"cuda": 262_144, "cpu": 8192}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="a YAML file of settings, on a classification task")
    parser.add_argument("--data-dir", help="the folder that holds the documents, if the package does not")
    parser.add_argument("--encoders", nargs="+", default=ENCODERS)
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--documents", type=int, help="take at most so many train documents")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    settings = override(RunSettings(), read_settings(options.recipe))
    settings = replace(settings, max_train_documents=options.documents or settings.max_train_documents)
    if options.data_dir is not None:
        settings = replace(settings, data_dir=options.data_dir)
    try:
        task = load_run_task(settings)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not isinstance(task, ClassificationTask):
        parser.error("the recipe is not for a classification task")
    texts = [document.text for document in task.train]
    labels = np.array([document.label for document in task.train])
    ids = encode_documents(texts, load_tokenizer(options.max_length), options.max_length).input_ids
    table = Table(
        title=f"{task.name}, {len(texts):,} train documents, {options.max_length:,} tokens", title_justify="left"
    )
    for column in ("encoder", "accuracy, %", "seconds"):
        table.add_column(column, justify="left" if column == "encoder" else "right")
    for name in options.encoders:
        started = time.monotonic()
        features = read_cls(name, ids)
        folds = RepeatedStratifiedKFold(n_splits=5, n_repeats=options.repeats, random_state=0)
        means = []
        for strength in STRENGTHS:
            model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300))
            means.append(cross_val_score(model, features, labels, cv=folds, n_jobs=-1).mean())
        table.add_row(name, f"{100 * max(means):.1f}", f"{time.monotonic() - started:.0f}")
    Console().print(table)


@torch.inference_mode()
def read_cls(name: str, ids: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
    """The last state of [CLS], a global token, of every document."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = (
        EMBEDDED[name]("FEATURE_EXTRACTION")
        if name in EMBEDDED
        else LongformerModel.from_pretrained(name, add_pooling_layer=False)
    )
    encoder = encoder.eval().to(device)
    if device == "cuda":
        encoder = encoder.to(torch.bfloat16)
    install(encoder)
    features = np.zeros((len(ids), encoder.config.hidden_size), dtype=np.float32)
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    while order:
        count = max(1, TOKENS_AT_ONCE[device] // len(ids[order[0]]))
        batch, order = order[:count], order[count:]
        padded = {key: tensor.to(device) for key, tensor in pad_documents([ids[index] for index in batch], 1).items()}
        global_mask = torch.zeros_like(padded["input_ids"])
        global_mask[:, 0] = 1
        states = encoder(**padded, global_attention_mask=global_mask).last_hidden_state
        features[batch] = states[:, 0].float().cpu().numpy()
    return features


if __name__ == "__main__":
    main()
