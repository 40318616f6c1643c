"""Questions with candidates, as in WikiHop: the model scores every candidate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from peft import PeftConfig, PeftModel
from torch.utils.data import Subset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prefixprop.data import (
    SPLIT_NAMES,
    CandidateCollator,
    QuestionTask,
    Task,
    WikiHopDataset,
    add_special_tokens,
)
from prefixprop.data.documents import IN_WORDS
from prefixprop.evaluate import PredictionSet, question_predictions
from prefixprop.evaluate.baseline import measure_bm25
from prefixprop.models import adapt_candidate_scorer
from prefixprop.models.base_model import BaseModel
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.kinds import EvaluationSplit, RunData, TaskKind, longest_first, pad_token


class CandidateChoice(TaskKind):
    """Questions over many documents; the answer is one of several candidates. The model computes its loss itself."""

    def encode(self, task: Task, tokenizer: PreTrainedTokenizerBase, settings: RunSettings) -> RunData:
        assert isinstance(task, QuestionTask) and settings.max_length is not None
        add_special_tokens(tokenizer)
        datasets = {
            name: WikiHopDataset(
                task.split(name),
                tokenizer,
                settings.max_length,
                shuffle=name == "train",
                seed=settings.seed,
                max_chunks=settings.max_chunks,
            )
            for name in SPLIT_NAMES
        }
        notes = []
        for name, dataset in datasets.items():
            if dataset.skipped:
                consequence = "are not trained on" if name == "train" else "count as wrong"
                count = f"{len(dataset.skipped):,} of {len(task.split(name)):,} {IN_WORDS[name]} questions"
                notes.append(
                    f"{count} have candidates that leave no room for supports in {settings.max_length} tokens; they "
                    f"{consequence}"
                )
            if dataset.cut:
                lost = f"questions lose supports to --max-chunks {settings.max_chunks}"
                notes.append(f"{len(dataset.cut):,} {IN_WORDS[name]} {lost}")
        return RunData(
            label_names=None,
            train=datasets["train"],  # type: ignore[arg-type]
            train_lengths=datasets["train"].lengths,
            evaluated={
                name: _question_split(name, task, datasets[name]) for name in ("dev", "test") if task.split(name)
            },
            collator=CandidateCollator(pad_token(tokenizer), tokenizer.padding_side),
            notes=tuple(notes),
        )

    def new_model(
        self, base: BaseModel, label_names: tuple[str, ...] | None, settings: RunSettings
    ) -> PreTrainedModel:
        return base.candidate_scorer(add_special_tokens(base.tokenizer), settings.chunk_reduction)

    def freeze_encoder(self, model: Any) -> None:
        model.freeze_encoder()

    def adapt(self, model: Any, config: PeftConfig) -> PeftModel:
        return adapt_candidate_scorer(model, config)

    def baseline(self, task: Task, settings: RunSettings) -> dict[str, Any] | None:
        assert isinstance(task, QuestionTask)
        return measure_bm25(task) if settings.task_row.has_baseline else None


def _question_split(name: str, task: QuestionTask, dataset: WikiHopDataset) -> EvaluationSplit:
    order = longest_first(dataset.lengths)
    read = [dataset.questions[index] for index in order]
    questions = task.split(name)

    def predictions(logits: NDArray[np.float64]) -> PredictionSet:
        return question_predictions(questions, {question.id: row for question, row in zip(read, logits, strict=True)})

    return EvaluationSplit(name, Subset(dataset, order), predictions)  # type: ignore[arg-type]
