"""A trained classifier, from its run directory, ready to predict.

>>> from prefixprop import load_run
>>> classifier = load_run("runs/letters")
>>> classifier.predict(["Dear Sir or Madam, …"])[0].label
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from prefixprop.attention import install
from prefixprop.backbones import family_in
from prefixprop.choices import DEFAULT_BATCH_TOKENS
from prefixprop.data import encode_documents
from prefixprop.data.encoding import TokenIds
from prefixprop.evaluate import Temperature
from prefixprop.manifest import checksums
from prefixprop.models.gpu import hold_frozen_in_bfloat16
from prefixprop.predict.predictor import Prediction, PredictionOptions, predict_together
from prefixprop.predict.summary import PredictionSummary
from prefixprop.predict.token_batches import classify
from prefixprop.predict.weights import DEFAULT_ADAPTER, load_trained
from prefixprop.predict.windows import windows
from prefixprop.runs.directory import RunDirectory
from prefixprop.settings.run_settings import RunSettings


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of a finished run, in evaluation mode.

    `label_names` is empty for a run on WikiHop, whose model scores the candidates of questions. `settings` are those
    of `config.yaml`. `prepare` cleans a text as the run's task cleaned its own. `adapter` is the run's own in a model
    that it shares with other runs.
    """

    run_dir: Path
    model: Any
    tokenizer: PreTrainedTokenizerBase
    label_names: tuple[str, ...]
    max_length: int
    temperature: Temperature
    settings: RunSettings
    prepare: Callable[[str], str]
    adapter: str | None = None

    def predict(
        self, texts: Iterable[str], *, long: str = "truncate", batch_tokens: int = DEFAULT_BATCH_TOKENS
    ) -> list[Prediction]:
        """Predict texts, in their order; a warning gives the indices of documents that are empty or over the limit.

        Args:
            texts: The documents.
            long: What to do with one over the limit: "truncate" cuts it, "chunk-average" reads all of it in chunks.
            batch_tokens: The size of a batch in tokens; lower it where the GPU's memory is short.
        """
        options = PredictionOptions(long, batch_tokens)
        texts = list(self._checked(texts))
        predictions = predict_together(self, texts, options) if texts else []
        summary = PredictionSummary(self.max_length)
        for index, (text, prediction) in enumerate(zip(texts, predictions, strict=True)):
            summary.add(str(index), text, prediction)
        for warning in summary.warnings():
            warnings.warn(f"{self.run_dir}: {warning} (indices in the list, from 0).", stacklevel=2)
        return predictions

    def predict_stream(
        self, texts: Iterable[str], *, long: str = "truncate", batch_tokens: int = DEFAULT_BATCH_TOKENS
    ) -> Iterator[Prediction]:
        """Like `predict`, one prediction at a time, from any number of texts in memory that does not grow.

        The first text is predicted alone. After it, texts are batched as the model handles them in about two seconds,
        so the last digits of a prediction may differ from call to call. There are no warnings: see `truncated`,
        `chunks` and `tokens` of each prediction.
        """
        options = PredictionOptions(long, batch_tokens)
        checked = self._checked(texts)
        return (
            prediction
            for window in windows(checked, text_of=str)
            for prediction in predict_together(self, window, options)
        )

    def logits(self, texts: Iterable[str], *, batch_tokens: int = DEFAULT_BATCH_TOKENS) -> NDArray[np.float64]:
        """The uncalibrated logits [texts, labels] of texts that are already prepared; longer ones are cut."""
        encoded = encode_documents(list(texts), self.tokenizer, self.max_length)
        input_ids = [self.readable(ids) for ids in encoded.input_ids]
        reads = (self.pad_token_id, batch_tokens, self.uses_bf16, self.max_length)
        (logits,) = classify(self.model, input_ids, *reads, (self.adapter,))
        return logits[:, : len(self.label_names)]

    @property
    def answers_questions(self) -> bool:
        """Whether this is a run on WikiHop, for questions with candidates."""
        return self.settings.answers_questions

    @property
    def reading(self) -> Hashable:
        """What decides the tokens of a text; the same for runs that read alike and were loaded together."""
        return id(self.tokenizer), self.max_length, self.prepare, self.pad_token_id

    @property
    def pad_token_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(self.model.config.pad_token_id or 0) if pad is None else int(pad)

    @property
    def uses_bf16(self) -> bool:
        """Whether it computes in bf16: on a GPU, unless the run's precision is fp32."""
        return self.settings.precision != "fp32" and torch.cuda.is_available()

    def check_reads_documents(self) -> None:
        """Raise if this model is for questions."""
        if self.answers_questions:
            raise ValueError(
                f"{self.run_dir}: this run was trained on WikiHop, so it chooses among the candidates of questions "
                "and cannot label documents; `prefixprop evaluate` reads questions with it."
            )

    def readable(self, input_ids: TokenIds) -> TokenIds:
        """The ids; one padding token if there are none: an empty text, and a tokenizer without special tokens."""
        return input_ids if len(input_ids) else np.array([self.pad_token_id], dtype=np.int32)

    def _checked(self, texts: Iterable[str]) -> Iterator[str]:
        if isinstance(texts, str):
            raise TypeError("Give a list of texts, even for a single one: predict([text]).")
        self.check_reads_documents()
        return (_checked_text(text, index) for index, text in enumerate(texts))


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
    alike = [run for run in others if _content(run.run_dir) == _content(run_dir)]
    tokenizer = alike[0].tokenizer if alike else _load_tokenizer(directory.tokenizer)
    label_names = None if settings.answers_questions else directory.read_labels()
    assert settings.max_length is not None
    return TrainedModel(
        run_dir=run_dir,
        model=load_trained(run_dir, settings, tokenizer, label_names, shared, adapter or DEFAULT_ADAPTER),
        tokenizer=tokenizer,
        label_names=label_names or (),
        max_length=settings.max_length,
        temperature=temperature,
        settings=settings,
        prepare=settings.task_row.prepare,
        adapter=adapter,
    )


def _settings(run_dir: Path) -> RunSettings:
    """The settings of a run that is finished, whole, and has its weights."""
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
    directory.check_parts()
    return settings


def _sharing(run_dir: Path, settings: RunSettings) -> Hashable:
    """The same for runs that can be adapters of one model."""
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


def _content(run_dir: Path) -> dict[str, str]:
    """What the files of a run's tokenizer hold."""
    folder = RunDirectory(run_dir).tokenizer
    return checksums(folder, (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()))


def _checked_text(text: object, index: int) -> str:
    if not isinstance(text, str):
        raise TypeError(f"Document {index} of the list must be a text (str), got {type(text).__name__}.")
    return text


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
