"""What encoders know before they are tuned: a linear classifier on their frozen [CLS], judged on left-out documents.

    python benchmarks/encoder_probe.py recipes/hyperpartisan-head-only.yaml
    python benchmarks/encoder_probe.py recipes/elife-prefix-tuning.yaml --data-dir FOLDER --documents 2400

With --documents, three draws of so many documents to learn from, and all others to judge; without, six times five
folds. Logistic regression on standardised features, the best of several penalties. An encoder is a name of the
package, `lengthened-original`, or a folder that `prefixprop lengthen` wrote; FOLDER@0.75 keeps three quarters of what
training changed of roberta-mini-512 (see recipes/pack_encoder.py). Takes a GPU if there is one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import LongformerModel
from transformers.utils import logging

from prefixprop.attention import install
from prefixprop.data import ClassificationTask, encode_documents
from prefixprop.data.batches import pad_documents
from prefixprop.models.embedded import EMBEDDED, lengthened_original, load_tokenizer
from prefixprop.settings.documents import load_run_task
from prefixprop.settings.recipe import override, read_settings
from prefixprop.train import RunSettings

ORIGINAL = "lengthened-original"  # roberta-mini-512 with 4,096 positions, not trained further
ENCODERS = (ORIGINAL, "longformer-mini-4096", "longformer-mini-4096-mlm")
PENALTIES = (0.01, 0.03, 0.1, 0.15)  # on squared weights, beside the mean loss of a document
DRAWS, FOLDS, TIMES = 3, 5, 6
TOKENS_AT_ONCE = {"cuda": 262_144, "cpu": 8192}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="a YAML file of settings, on a classification task")
    parser.add_argument("--data-dir", help="the folder that holds the documents, if the package does not")
    parser.add_argument("--encoders", nargs="+", default=ENCODERS)
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--documents", type=int, help="to learn from; all others judge")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    settings = override(RunSettings(), read_settings(options.recipe))
    if options.data_dir is not None:
        settings = replace(settings, data_dir=options.data_dir)
    try:
        task = load_run_task(settings)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not isinstance(task, ClassificationTask):
        parser.error("the recipe is not for a classification task")
    labels = np.array([document.label for document in task.train])
    texts = [document.text for document in task.train]
    ids = encode_documents(texts, load_tokenizer(options.max_length), options.max_length).input_ids
    splits = list(split(len(texts), options.documents))
    table = Table(title=f"{task.name}, {len(splits[0][0]):,} documents to learn from", title_justify="left")
    for column in ("encoder", "accuracy, %", "seconds"):
        table.add_column(column, justify="left" if column == "encoder" else "right")
    for name in options.encoders:
        started = time.monotonic()
        features = read_cls(load(name), ids)
        means = []
        for penalty in PENALTIES:
            regression = LogisticRegression(C=1 / (penalty * len(splits[0][0])), max_iter=300)
            model = make_pipeline(StandardScaler(), regression)
            means.append(cross_val_score(model, features, labels, cv=splits, n_jobs=-1).mean())
        table.add_row(name, f"{100 * max(means):.1f}", f"{time.monotonic() - started:.0f}")
    Console().print(table)


def split(count: int, documents: int | None) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Which documents to learn from, and which judge."""
    generator = np.random.default_rng(0)
    for _ in range(TIMES if documents is None else DRAWS):
        order = generator.permutation(count)
        if documents is not None:
            yield order[:documents], order[documents:]
            continue
        size = count // FOLDS
        for start in range(0, FOLDS * size, size):
            yield np.delete(order, np.s_[start : start + size]), order[start : start + size]


def load(name: str) -> Any:
    if name == ORIGINAL:
        return lengthened_original()
    if name in EMBEDDED:
        return EMBEDDED[name]("FEATURE_EXTRACTION")
    folder, _, share = name.partition("@")
    encoder = LongformerModel.from_pretrained(folder, add_pooling_layer=False)
    if share:
        trained, original = encoder.state_dict(), lengthened_original().state_dict()
        encoder.load_state_dict({key: torch.lerp(original[key], trained[key], float(share)) for key in trained})
    return encoder


@torch.inference_mode()
def read_cls(encoder: Any, ids: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
    """The last state of [CLS], a global token, of every document."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
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
