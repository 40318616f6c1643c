"""The settings of one run: every choice that decides its outcome, with the paper's hyperparameters as defaults.

A setting is declared once, here. Its flag, its key in a recipe, its help, its check and its line in the reference
come from this declaration.
"""

from __future__ import annotations

from typing import Any

from prefixprop.choices import (
    ALPHA_MODES,
    BACKENDS,
    CHUNK_REDUCTIONS,
    DEFAULT_MODEL,
    EMBEDDED_MODELS,
    INITS,
    LAYOUTS,
    MOST_ALPHA,
    MOST_ROWS,
    POOLINGS,
)
from prefixprop.data.documents import SPLIT_NAMES
from prefixprop.data.tasks import (
    EPOCHS_OF_FEW,
    EPOCHS_OF_MANY,
    MANY_DOCUMENTS,
    METHOD_OF_MANY,
    OWN_DOCUMENTS,
    QUESTIONS,
    TASKS,
    TaskSource,
)
from prefixprop.evaluate.calibration import documents_for_guarantee
from prefixprop.kernels import KERNELS
from prefixprop.settings.declaration import Setting, Settings, declared, setting, settings_class
from prefixprop.settings.methods import METHODS, Method

PRECISIONS = ("auto", "fp32", "bf16")

# Groups of settings, as help shows them.
DATA, MODEL, METHOD, OPTIMISATION, MACHINE = "Data", "Model", "Method", "Optimisation", "Machine"

_SOURCE = (  # the arguments of `load_data`
    "task", "data_dir", "hub_dataset", "hub_config", "train_files", "dev_files", "test_files", "text_column",
    "label_column", "id_column", "label_separator",
)  # fmt: skip

# Every number has a bound far above what makes sense, so that a typo is an error here and not in an allocator.
MANY = 1_000_000
BILLION = 1000 * MANY


def _or_own(name: str) -> str:
    """The value for named tasks, if their row says nothing else, and for the user's documents."""
    return f"{getattr(TaskSource, name)}, or {getattr(OWN_DOCUMENTS, name)} for your documents"


def _by_task(name: str) -> str:
    """The value for every task: `10, or 20 for hyperpartisan`."""
    names: dict[int, list[str]] = {getattr(TaskSource, name): []}
    for task in TASKS.values():
        names.setdefault(getattr(task, name), []).append(task.name)
    default, *others = names
    return ", or ".join([str(default), *(f"{value} for {' and '.join(names[value])}" for value in others)])


def _learning_rates() -> str:
    """The learning rate of every method: `0.005 for prefix-propagation, ...`."""
    fixed = [f"{method.learning_rate:g} for {method.name}" for method in METHODS.values() if method.learning_rate]
    return ", ".join([*fixed, "chosen by cross-validation for readers"])


def _machine(default: Any, help: str, **options: Any) -> Any:
    """A setting that results do not depend on, so that it may change when a run is resumed."""
    return setting(default, MACHINE, help, resumable=True, **options)


@settings_class
class RunSettings(Settings):
    """One run. None means "as the paper does for this task and method", see `prefixprop.settings.resolve`."""

    task: str | None = setting(None, DATA, "A named data set.", choices=TASKS)
    data_dir: str | None = setting(None, DATA, "A local copy of the task's data.")
    train_files: tuple[str, ...] = setting(
        (), DATA, "Your training set: .jsonl, .json, .csv, .tsv, .parquet files, or a folder with a folder per label."
    )
    dev_files: tuple[str, ...] = setting(
        (), DATA, "Your dev set. Without one, a tenth of the training set becomes it; readers and tfidf need none."
    )
    test_files: tuple[str, ...] = setting((), DATA, "Your test set, if there is one.")
    hub_dataset: str | None = setting(None, DATA, "A data set on the Hugging Face hub.")
    hub_config: str | None = setting(None, DATA, "The configuration of the hub data set.")
    text_column: tuple[str, ...] = setting(("text",), DATA, "Column with the text, in files or a hub data set.")
    label_column: tuple[str, ...] = setting(
        ("label",),
        DATA,
        "Column with the label, a name or a whole number, or with a list of labels. With several columns, readers "
        "answer each in one pass.",
    )
    label_separator: str | None = setting(
        None, DATA, "What separates a document's labels in a label column of text, such as ';'. Lists need none."
    )
    id_column: str | None = setting(
        None, DATA, "Column with the document's id. If not set: 'id' if there is one; else documents are numbered."
    )
    max_train_documents: int | None = setting(
        None, DATA, "Train on at most this many documents, drawn with the seed.", ge=1, le=BILLION
    )
    max_dev_documents: int | None = setting(
        None,
        DATA,
        "Evaluate on at most this many documents of the dev set, drawn with the seed; 0 (readers and tfidf only): "
        "do not use it.",
        ge=0,
        le=BILLION,
    )
    max_test_documents: int | None = setting(
        None, DATA, "The same for the test set; 0: do not use it.", ge=0, le=BILLION
    )
    folds: int | None = setting(
        None, DATA, "Divide the training set into this many folds, and evaluate on one of them.", ge=2, le=MANY
    )
    fold: int | None = setting(
        None, DATA, "The fold that is left out of training and evaluated, from 0.", ge=0, le=MANY
    )

    model: str = setting(
        DEFAULT_MODEL, MODEL, f"The encoder: {', '.join(EMBEDDED_MODELS)}, a hub model, or a local folder."
    )
    model_revision: str | None = setting(
        None, MODEL, "Branch, tag or commit of a hub model. A run stores the commit, or the fingerprint of a folder."
    )
    max_length: int | None = setting(
        None,
        MODEL,
        "Tokens at which documents are cut. If not set: the model's limit, and for a named task at most 4096.",
        ge=4,
        le=MANY,
    )
    chunk_reduction: str = setting(
        "mean", MODEL, "Questions: how a candidate's scores in several chunks are combined.", choices=CHUNK_REDUCTIONS
    )
    max_chunks: int | None = setting(
        None, MODEL, "Questions: maximum number of chunks of a question. If not set: all.", ge=1, le=MANY
    )

    method: str | None = setting(
        None,
        METHOD,
        lambda: (
            f"What is trained. If not set: {_or_own('method')}; {METHOD_OF_MANY} if there are {MANY_DOCUMENTS:,} or "
            "more, unless a setting is given that readers do not have."
        ),
        choices=METHODS,
    )
    num_virtual_tokens: int | None = setting(
        None,
        METHOD,
        lambda: f"Prefix length j. If not set: {_by_task('num_virtual_tokens')}.",
        ge=1,
        le=MOST_ROWS,
    )
    layout: str = setting(
        "paper",
        METHOD,
        "'paper': real tokens keep their positions. 'reference': the prefix shifts them, as in the authors' code.",
        choices=LAYOUTS,
    )
    pooling: str = setting("cls", METHOD, "What the head reads: [CLS], or the prefix.", choices=POOLINGS)
    prefix_dropout: float = setting(0.1, METHOD, "Dropout on the prefix.", ge=0, lt=1)
    init: str = setting("normal", METHOD, "How the prefix is initialised.", choices=INITS)
    reparameterize: bool = setting(False, METHOD, "Train the prefix through an MLP.")
    kernel: str | None = setting(None, METHOD, "Kernel decomposition (Eq. 3). If not set: none.", choices=KERNELS)
    alpha: float = setting(
        0.005, METHOD, "Weight of the kernel attention; if it is trained, its start.", ge=-MOST_ALPHA, le=MOST_ALPHA
    )
    alpha_mode: str = setting("fixed", METHOD, "Fixed, or trained per layer, head or query.", choices=ALPHA_MODES)
    gate: bool = setting(False, METHOD, "Train a number per layer that scales the prefix there.")
    lora_rank: int = setting(8, METHOD, "LoRA: its rank.", ge=1, le=MOST_ROWS)
    lora_alpha: float = setting(16.0, METHOD, "LoRA: its scale is this divided by the rank.", gt=0, le=MANY)
    lora_dropout: float = setting(0.1, METHOD, "LoRA: its dropout.", ge=0, lt=1)
    lora_targets: tuple[str, ...] | None = setting(
        None, METHOD, "LoRA: names of the layers it changes. If not set: the usual ones of the model's family."
    )

    mix_baseline: str = setting(
        "auto",
        METHOD,
        "Mix the TF-IDF baseline into the answers of readers: 'auto' mixes if held-out answers improve.",
        choices=("auto", "no"),
    )

    target_precision: float | None = setting(
        None,
        METHOD,
        "Find the confidence above which this share of answers is right, such as 0.95; predict marks those answers "
        "'accept' and the others 'review'.",
        gt=0,
        lt=1,
    )

    learning_rate: float | None = setting(
        None, OPTIMISATION, lambda: f"Peak learning rate. If not set: {_learning_rates()}.", alias="lr", gt=0, le=100
    )
    epochs: int | None = setting(
        None,
        OPTIMISATION,
        lambda: (
            f"Passes over the training set. If not set: {_by_task('epochs')}; for your documents "
            f"{EPOCHS_OF_FEW}, or {EPOCHS_OF_MANY} if there are {MANY_DOCUMENTS:,} or more."
        ),
        ge=1,
        le=MANY,
    )
    batch_size: int | None = setting(
        None,
        OPTIMISATION,
        lambda: f"Documents per step, over all devices and accumulation. If not set: {_or_own('batch_size')}.",
        ge=1,
        le=MANY,
    )
    warmup: float = setting(0.1, OPTIMISATION, "Share of the steps in which the learning rate rises.", ge=0, lt=1)
    dropout: float = setting(0.1, OPTIMISATION, "Dropout of the model.", ge=0, lt=1)
    attention_dropout: float | None = setting(
        None, OPTIMISATION, "Dropout of the attention weights. If not set: as --dropout.", ge=0, lt=1
    )
    weight_decay: float = setting(0.01, OPTIMISATION, "AdamW's weight decay.", ge=0, le=MANY)
    max_grad_norm: float = setting(1.0, OPTIMISATION, "Clip gradients to this norm; 0: never.", ge=0, le=MANY)
    early_stopping: int = setting(
        0, OPTIMISATION, "Stop after this many epochs without a better dev metric; 0: never.", ge=0, le=MANY
    )
    keep: str = setting(
        "best", OPTIMISATION, "Which epoch is kept: the best on the dev set, or the last.", choices=("best", "last")
    )
    class_weights: str | None = setting(
        None,
        OPTIMISATION,
        "'balanced': a rare class weighs as much in the loss as a frequent one. If not set: balanced for TF-IDF, "
        "none for what is trained on the encoder.",
        choices=("balanced", "none"),
    )
    choose_by: str | None = setting(
        None,
        OPTIMISATION,
        "The metric on the dev set or held-out documents that chooses epoch, learning rate and C. If not set: "
        "average_precision with several labels; otherwise the log-loss for readers and tfidf, and the task's metric "
        "for other methods.",
        choices=("micro_f1", "macro_f1", "average_precision"),
    )
    seed: int = setting(1, OPTIMISATION, "The seed of everything random.", ge=0, le=2**32 - 1)

    device_batch_size: int = _machine(
        8,
        "Maximum number of documents at once on a device; gradients of larger batches are accumulated.",
        ge=1,
        le=MANY,
    )
    precision: str = _machine(
        "auto", "'auto' is bf16 on GPUs that have it (Ampere or later), fp32 elsewhere.", choices=PRECISIONS
    )
    attention_backend: str = _machine(
        "auto",
        "What computes the attention of Longformer and ModernBERT.",
        choices=("auto", *BACKENDS, "huggingface"),
    )
    gradient_checkpointing: bool = _machine(
        False, "Compute activations twice instead of keeping them: less memory, more time."
    )
    keep_states: str = _machine(
        "auto",
        "Readers: keep the text's states between epochs. 'auto' does so if they fit into half of the free memory.",
        choices=("auto", "no"),
    )
    checkpoint_every: int = _machine(
        0,
        "Write a checkpoint every N steps as well; 0: only at the ends of epochs, or of steps for readers.",
        ge=0,
        le=BILLION,
    )
    checkpoint_seconds: float = _machine(
        30.0,
        "Skip the checkpoint at such an end if the last one is less than this many seconds old.",
        ge=0,
        le=BILLION,
    )
    keep_checkpoints: bool = _machine(False, "Keep the last two checkpoints after the run.")
    keep_weights: bool = _machine(
        True, "Save what was trained, and the tokenizer; without them a run appears in reports but cannot predict."
    )
    baseline: bool = _machine(
        True,
        "Fit a baseline on the same documents, TF-IDF or for hybridqa BM25, and show its metrics beside the run's.",
    )
    report_to: tuple[str, ...] = _machine((), "Trackers, such as tensorboard or wandb.")

    @property
    def task_row(self) -> TaskSource:
        """The row of the task; all of the user's own documents share one row."""
        return OWN_DOCUMENTS if self.task is None else TASKS[self.task]

    @property
    def has_source(self) -> bool:
        """Whether the settings say where the documents are; those of a `DocumentClassifier` were in memory."""
        return bool(self.task or self.train_files or self.hub_dataset)

    @property
    def method_row(self) -> Method:
        return METHODS[self.method or self.task_row.method]

    @property
    def documents_per_step(self) -> int:
        return self.batch_size or self.task_row.batch_size

    @property
    def is_mix(self) -> bool:
        """Whether the run trains several models and mixes their answers (readers, tfidf)."""
        return self.method_row.is_mix

    @property
    def reads_tokens(self) -> bool:
        """Whether the encoder reads the documents, up to `max_length`; TF-IDF alone counts the words of all of it."""
        return self.is_prefix_method or not self.is_mix

    @property
    def answers_questions(self) -> bool:
        """Whether candidates are scored (WikiHop) rather than documents classified."""
        return self.task_row.kind == QUESTIONS

    @property
    def is_prefix_method(self) -> bool:
        return self.method_row.is_prefix

    @property
    def source(self) -> dict[str, Any]:
        """Where the data are: the arguments of `load_data`."""
        columns = {"text_column": self.text_column[0], "label_column": self.label_column[0]}
        return {name: getattr(self, name) for name in _SOURCE} | columns

    @property
    def selection(self) -> dict[str, Any]:
        """Which of the data are read: the arguments of `select_documents`."""
        limits = {split: getattr(self, f"max_{split}_documents") for split in SPLIT_NAMES}
        return {
            "folds": self.folds,
            "fold": self.fold,
            "max_documents": limits,
            "seed": self.seed,
            "needs_dev": not self.is_mix,
            "set_aside_from": self.target_precision and documents_for_guarantee(self.target_precision),
        }

    @property
    def data_name(self) -> str:
        """The name of the data in reports and in the names of run directories."""
        own = "files" if self.has_source else "documents"
        return self.task or (self.hub_dataset or own).replace("/", "-")

    @property
    def metric(self) -> str:
        """The metric on the dev set by which checkpoints and settings are chosen."""
        return self.choose_by or self.task_row.metric

    @property
    def tfidf_class_weight(self) -> str | None:
        """scikit-learn's `class_weight` of the TF-IDF model."""
        return None if self.class_weights == "none" else "balanced"


SETTINGS: dict[str, Setting] = declared(RunSettings)


def flag_of(name: str) -> str:
    """The flag of a setting: `--learning-rate` for `learning_rate`."""
    return SETTINGS[name].flag
