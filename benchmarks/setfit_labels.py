"""SetFit with few labels: question (k) of results/PROTOCOL.md.

    pip install setfit
    python benchmarks/setfit_labels.py --data-dir elife-2400 --json setfit.json

The encoder is roberta-mini-512, from which the long ones of the package were made. A draw has the training articles
of a run of `prefixprop train` with this --seed and --max-train-documents. SetFit has its own defaults, but for the
number of steps, which would grow with the square of the labels.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression

from prefixprop.data import ClassificationTask, load_data, select_documents
from prefixprop.models.embedded import load_embedded
from prefixprop.settings.run_settings import RunSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="elife")
    parser.add_argument("--data-dir", help="folder of the task's files")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 400, 1600])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--max-steps", type=int, default=1000, help="of contrastive training")
    parser.add_argument("--max-test-documents", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        factory, tokenizer = load_embedded("roberta-mini-512")
        factory("FEATURE_EXTRACTION").save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for labels in options.labels:
            for seed in range(1, options.draws + 1):
                settings = RunSettings(
                    task=options.task, data_dir=options.data_dir, seed=seed, max_train_documents=labels,
                    max_test_documents=options.max_test_documents,
                )  # fmt: skip
                task = select_documents(load_data(**settings.source), **settings.selection)
                found.append({"labels": labels, "seed": seed, "accuracy": accuracy(task, folder, seed, options)})
                print(json.dumps(found[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def accuracy(task: ClassificationTask, encoder: str, seed: int, options: argparse.Namespace) -> float:
    """The accuracy on the test set of SetFit trained on the training set."""
    body = Transformer(encoder, max_seq_length=512)
    pooling = Pooling(body.auto_model.config.hidden_size, pooling_mode="cls")  # as the encoder was trained
    sentences = SentenceTransformer(modules=[body, pooling, Normalize()])
    model = SetFitModel(sentences, LogisticRegression(max_iter=1000))
    train, test = (
        Dataset.from_dict({"text": [one.text for one in split], "label": [one.label for one in split]})
        for split in (task.train, task.test)
    )
    arguments = TrainingArguments(
        batch_size=16, max_steps=options.max_steps, seed=seed, use_amp=torch.cuda.is_available(),
        show_progress_bar=False, report_to="none", save_strategy="no",
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=train).train()
    predicted = model.predict(test["text"], batch_size=64)
    return float((torch.as_tensor(predicted) == torch.tensor(test["label"])).float().mean())


if __name__ == "__main__":
    main()
