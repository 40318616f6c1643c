"""Prefix-propagation on a part of Hyperpartisan, with the embedded model, on the CPU in a few minutes.

    python examples/hyperpartisan.py

Ends in a table: majority class, TF-IDF with logistic regression, and the model, all trained on the same articles and
judged on the same articles of the official test.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel, get_peft_model
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from prefixprop import PrefixPropagationConfig, count_parameters
from prefixprop.evaluation import (
    classification_metrics,
    expected_calibration_error,
    majority_baseline,
    tfidf_classifier,
)
from prefixprop.models import load_default
from prefixprop.tasks import Document, load_hyperpartisan

SEED = 1
TRAIN_ARTICLES, TEST_ARTICLES = 400, 200
MAX_LENGTH = 384  # tokens; the model reads 4096, five minutes on a laptop do not
EPOCHS, BATCH_SIZE, LEARNING_RATE = 3, 8, 5e-3


def tokenized(documents: Sequence[Document], tokenizer: Any) -> list[dict[str, Any]]:
    encoded = tokenizer([document.text for document in documents], truncation=True, max_length=MAX_LENGTH)
    return [
        {"input_ids": ids, "labels": document.label}
        for ids, document in zip(encoded["input_ids"], documents, strict=True)
    ]


def build_model(factory: Any) -> PeftModel:
    # Attention dropout is off: on a CPU PyTorch spends more time on drawing its masks than on everything else.
    model = factory("SEQ_CLS", num_labels=2, attention_probs_dropout_prob=0.0)
    return get_peft_model(model, PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=8))


class ProgressBar(TrainerCallback):
    """One bar for training and one for reading, instead of the Trainer's log lines."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.progress.start()
        self.training = self.progress.add_task("training", total=state.max_steps)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.progress.update(self.training, completed=state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **_: Any) -> None:
        if not hasattr(self, "reading"):
            self.reading = self.progress.add_task("reading", total=len(eval_dataloader))
        self.progress.advance(self.reading)

    def on_predict(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.stop()


def build_trainer(
    model: PeftModel, tokenizer: Any, documents: Sequence[Document], console: Console, folder: Path
) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="linear",
        warmup_steps=0.1,
        train_sampling_strategy="group_by_length",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=SEED,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=tokenized(documents, tokenizer),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=[ProgressBar(console)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def predict(trainer: Trainer, tokenizer: Any, documents: Sequence[Document]) -> NDArray[np.float64]:
    """Probabilities [documents, 2]; batches of like length, results in the order given."""
    # Grouping by length would shuffle the documents here too; sorting them does the same, and can be undone.
    trainer.args.train_sampling_strategy = "sequential"
    order = sorted(range(len(documents)), key=lambda index: -len(documents[index].text))
    logits = trainer.predict(tokenized([documents[index] for index in order], tokenizer)).predictions
    probabilities = torch.tensor(logits).softmax(dim=-1).double().numpy()
    return probabilities[np.argsort(order)]


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    console = Console()
    started = time.perf_counter()
    set_seed(SEED)
    task = load_hyperpartisan()
    chooser = random.Random(SEED)
    train = chooser.sample(task.train, TRAIN_ARTICLES)
    test = chooser.sample(task.test, TEST_ARTICLES)
    labels = [document.label for document in test]
    factory, tokenizer = load_default()
    model = build_model(factory)
    count = count_parameters(model)
    console.print(
        f"[bold]{factory.name}[/bold] with prefix-propagation: {count.prefix:,} prefix parameters "
        f"({count.percent('prefix'):.3f} % of the encoder) and a head of {count.head:,}.\n"
        f"Training on {len(train)} articles of Hyperpartisan, then reading {len(test)} of the official test."
    )
    with TemporaryDirectory() as folder:  # nothing is kept
        trainer = build_trainer(model, tokenizer, train, console, Path(folder))
        trainer.train()
        ours = predict(trainer, tokenizer, test)

    words = tfidf_classifier(train)
    weights = words[-1].coef_.size + words[-1].intercept_.size
    rows = [
        ("majority class", majority_baseline(task, test, train), 0),
        ("TF-IDF + logistic regression", words.predict_proba([document.text for document in test]), weights),
        ("prefix-propagation", ours, count.trainable),
    ]
    table = Table(title=f"Hyperpartisan, {len(test)} articles of the official test")
    table.add_column("model")
    for name in ("accuracy", "F1", "ECE", "trained parameters"):
        table.add_column(name, justify="right")
    for name, probabilities, parameters in rows:
        metrics = classification_metrics(probabilities, labels)
        error = expected_calibration_error(probabilities, labels)
        table.add_row(name, f"{metrics.accuracy:.3f}", f"{metrics.binary_f1:.3f}", f"{error:.3f}", f"{parameters:,}")
    console.print(table)
    console.print(f"{time.perf_counter() - started:.0f} s on {torch.get_num_threads()} threads.")


if __name__ == "__main__":
    main()
