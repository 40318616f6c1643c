"""A run that mixes models: readers on a frozen encoder, and TF-IDF. Answers to held-out documents choose everything.

The training set is divided into folds. For each learning rate and each seed there is a reader for every fold, which
does not learn from that fold, and one that learns from all documents; one pass over the documents trains all of them.
The TF-IDF model is fitted in the same folds. So every document has answers by models that have not seen it:

- halfway, learning rates that have fallen behind are dropped;
- at the end, the answers choose the learning rate, the C of the TF-IDF model and the weights of the mix;
- the accuracy that is stated is that of cross-fitted answers: those of a fold, with what the other folds chose.

The models that learned from all documents are kept. If there is a dev set, it replaces the held-out documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import TrainerCallback

from prefixprop.atomic_files import write_json
from prefixprop.data.documents import CALIBRATION
from prefixprop.evaluate import (
    C_VALUES,
    CrossFitted,
    Part,
    PredictionSet,
    Temperature,
    TfidfModel,
    accuracy_interval,
    average_precision_interval,
    cross_fit,
    decide,
    fit_tfidf,
    held_out_scores,
)
from prefixprop.evaluate.metrics import log_odds
from prefixprop.evaluate.mixing import READERS, WORDS
from prefixprop.models.gpu import without_cudnn
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.methods import MIX_FILE
from prefixprop.train.kinds import kind_of
from prefixprop.train.plan import RunPlan, Trained
from prefixprop.train.readers import Array, Judged, Readers
from prefixprop.train.recovery import TrainingError, building_remedy, explained_memory_errors
from prefixprop.train.trainer import GracefulStop, write_history
from prefixprop.tuners.counting import ParameterCount
from prefixprop.tuners.reader_bank import save_adapters


class Words(NamedTuple):
    """The TF-IDF models, one for each C, their answers to the judged documents, and these cross-fitted."""

    models: Sequence[TfidfModel]
    part: Part
    fitted: CrossFitted


def train_mix(
    runs: Sequence[RunPlan],
    directories: Sequence[RunDirectory],
    callbacks: Sequence[TrainerCallback],
    progress: Progress,
) -> list[Trained]:
    """Fit all parts of a run, or of one for each label column of the same documents, and mix them."""
    judged = [Judged.of(run.classification) for run in runs]
    if (few := len(runs[0].task.dev)) and not judged[0].is_dev:
        progress.note(f"the dev set has too few documents to choose by ({few}); folds of the training set are used")
    with explained_memory_errors(building_remedy(runs[0].settings)), without_cudnn():
        words = [_words(run, one, progress) for run, one in zip(runs, judged, strict=True)]
        readers = None
        if runs[0].settings.is_prefix_method:
            readers = Readers(runs, judged, progress)
            readers.train(directories, [one for one in callbacks if isinstance(one, GracefulStop)])
        progress.stage("answering")
        each = zip(runs, judged, words, strict=True)
        mixes = [FittedMix(run, one, of_words, readers, number) for number, (run, one, of_words) in enumerate(each)]
    for directory in directories:
        write_history(directory, [] if readers is None else readers.history)  # a fit of words has no epochs
    # Mixed answers are calibrated already.
    return [Trained(mix.predictions, Temperature(1.0), mix.details(), mix.count(), mix.save) for mix in mixes]


def _words(run: RunPlan, judged: Judged, progress: Progress) -> Words | None:
    """Fit TF-IDF on the whole training set, and judge it; None where its documents have no words."""
    task, weight = run.classification, run.settings.tfidf_class_weight
    texts, labels = task.train.texts, task.label_array(task.train)
    progress.stage("fitting TF-IDF")
    try:
        models = fit_tfidf(texts, labels, task.num_labels, C_VALUES, weight)
        if judged.is_dev:
            logits = np.stack([model.scores(judged.documents.texts) for model in models])
        else:
            logits = held_out_scores(texts, labels, task.num_labels, judged.folds, C_VALUES, weight)
    except ValueError as error:
        if not run.settings.is_prefix_method:  # there is nothing else
            raise TrainingError(str(error)) from error
        progress.note(f"there is no TF-IDF baseline: {error}")
        return None
    part = Part(WORDS, C_VALUES, judged.as_answers(logits))
    fitted = cross_fit([part], judged.labels, judged.folds, run.settings.choose_by)
    progress.line(f"{models[0].name}: {judged.in_words(judged.score(fitted.log_probabilities))}")
    return Words(models, part, fitted)


class FittedMix:
    """What a run says in the end: the mix, its cross-fitted answers, and what is kept of it."""

    def __init__(
        self, run: RunPlan, judged: Judged, words: Words | None, readers: Readers | None, column: int
    ) -> None:
        self.run, self.judged, self.words, self.readers, self.column = run, judged, words, readers, column
        self.of_readers = None if readers is None else readers.part(column)
        if self.of_readers is None:
            assert words is not None
            self.fitted = words.fitted
        else:
            also = [words.part] if words is not None and run.settings.mix_baseline == "auto" else []
            self.fitted = cross_fit([self.of_readers, *also], judged.labels, judged.folds, run.settings.choose_by)
        others = [name for name in (CALIBRATION, "test") if run.classification.split(name)]
        self.answers = {split: self._answers(split) for split in others}
        mixed = {split: self.fitted.final.log_probabilities(found) for split, found in self.answers.items()}
        self.predictions, self.thresholds = self._sets({"dev": self.fitted.log_probabilities, **mixed})

    def _sets(self, answers: dict[str, Array]) -> tuple[dict[str, PredictionSet], Array | None]:
        """Predictions from calibrated answers and, with several labels, the thresholds of labels."""
        task, several = self.run.classification, self.judged.several_labels
        sets = {}
        for split, found in answers.items():
            documents = self.judged.documents if split == "dev" else task.split(split)
            sets[split] = PredictionSet.of_documents(task, documents, log_odds(found) if several else found)
        return decide(sets, Temperature(1.0), self.judged.folds) if several else (sets, None)

    def _answers(self, split: str) -> dict[str, Array]:
        """What the final model of each part says of a split."""
        found = {}
        if self.readers is not None:
            found[READERS] = self.readers.answers(self.column, split, self.learning_rate)
        if self.words is not None:
            scores = self.final_words.scores(self.run.classification.split(split).texts)
            found[WORDS] = self.judged.as_answers(scores)
        return found

    @property
    def learning_rate(self) -> float:
        """The learning rate of the readers that are kept."""
        assert self.of_readers is not None
        return self.of_readers.candidates[self.fitted.final.chosen[READERS]]

    @property
    def final_words(self) -> TfidfModel:
        """The TF-IDF model that is kept, fitted on all documents."""
        assert self.words is not None
        return self.words.models[self.words.fitted.final.chosen[WORDS]]

    def details(self) -> dict[str, Any]:
        """What the metrics of a mix have beside those of its answers."""
        found: dict[str, Any] = {
            f"expected_{self.judged.headline}": self._expected(),
            "judged_on": "dev" if self.judged.is_dev else f"{int(self.judged.folds.max()) + 1} folds",
            "mix": {"weights": self.fitted.final.weights, "chosen": self._chosen()},
        }
        if self.thresholds is not None:
            found["thresholds"] = self.thresholds.tolist()
        if self.words is not None:
            found["baseline"] = {"model": self.final_words.name, **self._alone(self.words.fitted, WORDS)}
        if self.readers is not None:
            found["readers"] = self._alone(self.fitted, READERS)
            found["learning_rates"] = self._learning_rates()
        epochs = 0 if self.readers is None else len(self.readers.history)
        seconds = 0.0 if self.readers is None else self.readers.seconds
        return found | {"epochs": epochs, "best_epoch": epochs, "seconds": round(seconds, 3)}

    def _expected(self) -> dict[str, Any]:
        """What to expect on documents like these, with its 95 % interval."""
        labels, dev, name = self.judged.labels, self.predictions["dev"], self.judged.headline
        value, documents = self.judged.score(self.fitted.log_probabilities), len(labels)
        if self.judged.several_labels:
            low, high = average_precision_interval(dev.logits, labels)
        else:
            low, high = accuracy_interval(round(value * documents), documents)
        return {name: value, "low": low, "high": high, "documents": documents}

    def _chosen(self) -> dict[str, float]:
        found = {READERS: self.learning_rate} if self.readers is not None else {}
        return found | ({WORDS: self.final_words.c} if self.words is not None else {})

    def _alone(self, fitted: CrossFitted, part: str) -> dict[str, Any]:
        """The metrics of one part without the others."""
        answers = {"dev": fitted.alone[part]}
        if part in self.answers.get("test", ()):
            answers["test"] = fitted.final_alone[part].log_probabilities(self.answers["test"])
        return {split: found.evaluate() for split, found in self._sets(answers)[0].items()}

    def _learning_rates(self) -> list[dict[str, Any]]:
        """Every learning rate that was tried, with its score on held-out documents when it was last judged."""
        assert self.readers is not None and self.of_readers is not None
        dropped = {float(rate): found for rate, found in self.readers.dropped[self.column].items()}
        kept = {
            rate: self.judged.score(logits)
            for rate, logits in zip(self.of_readers.candidates, self.of_readers.logits, strict=True)
        }
        return [
            {"learning_rate": rate, self.judged.headline: found, "dropped": rate in dropped}
            for rate, found in sorted((kept | dropped).items())
        ]

    def count(self) -> ParameterCount:
        """The parameters of what is kept."""
        count = self.run.parameters
        if self.readers is None:
            return replace(count, head=0, trainable=self.final_words.coefficients.size)
        weights = self.readers.weights(self.column, self.learning_rate)
        prefix = sum(reader.prefix.numel() for reader in weights)
        head = sum(tensor.numel() for reader in weights for tensor in reader.head.values())
        return replace(count, prefix=prefix, head=head, trainable=prefix + head)

    def save(self, folder: Path) -> None:
        """Write the parts that answers are made of, and how they are mixed."""
        mix = self.fitted.final
        write_json(folder / MIX_FILE, {"weights": mix.weights, "chosen": self._chosen()})
        if WORDS in mix.used:
            self.final_words.save(folder / WORDS)
        if READERS in mix.used and self.readers is not None:
            weights = self.readers.weights(self.column, self.learning_rate)
            settings = replace(self.run.settings, num_virtual_tokens=self.readers.plan.length)
            model = self.run.base.classifier(self.run.classification.label_names)
            adapted = kind_of(settings).adapt(model, settings.method_row.peft_config(settings))
            save_adapters(adapted, {folder / READERS / str(number): one for number, one in enumerate(weights, 1)})
