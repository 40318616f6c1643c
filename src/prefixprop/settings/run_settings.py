"""The settings of one run: every choice that decides its outcome, with the paper's hyperparameters as defaults.

A field is declared once, here. Its flag, its key in a recipe, its help and its check all come from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from prefixprop.choices import (
    ALPHA_MODES,
    BACKENDS,
    CHUNK_REDUCTIONS,
    DEFAULT_MODEL,
    INITS,
    LAYOUTS,
    MOST_ALPHA,
    MOST_ROWS,
    POOLINGS,
)
from prefixprop.data import SPLIT_NAMES
from prefixprop.data.registry import (
    EPOCHS_OF_FEW,
    EPOCHS_OF_MANY,
    MANY_DOCUMENTS,
    OWN_DOCUMENTS,
    TASKS,
    TaskSource,
)
from prefixprop.kernels import KERNELS
from prefixprop.settings.methods import METHODS, Method

PRECISIONS = ("auto", "fp32", "bf16")
ATTENTION_BACKENDS = ("auto", *BACKENDS, "huggingface")
KEPT_CHECKPOINTS = ("best", "last")

# Groups of fields, as help shows them.
DATA, MODEL, METHOD, OPTIMISATION, MACHINE = "Data", "Model", "Method", "Optimisation", "Machine"


@dataclass(frozen=True)
class Limits:
    """What a field's value may be, beyond its type."""

    choices: Callable[[], Iterable[str]] | None = None
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    hint: str = ""  # what else to do if a choice is unknown


def _option(
    default: Any,
    group: str,
    help: str | Callable[[], str],
    limits: Limits | None = None,
    alias: str | None = None,
    resumable: bool = False,
) -> Any:
    """A field; `resumable` ones may differ when a run is resumed, because the outcome does not depend on them."""
    details = {"group": group, "help": help, "limits": limits or Limits(), "alias": alias, "resumable": resumable}
    return field(default=default, metadata=details)


def _one_of(*choices: str) -> Limits:
    return Limits(choices=lambda: choices)


def _rows(table: Mapping[str, Any]) -> Limits:
    """One of a table that users' modules add to, so it is read anew whenever it is asked."""
    return Limits(choices=lambda: table, hint="One of your own: prefixprop --import MODULE, which adds it.")


def _or_own(name: str) -> str:
    """The value for tasks that have a name, if their row says nothing else, and for one's own documents."""
    return f"{getattr(TaskSource, name)}, or {getattr(OWN_DOCUMENTS, name)} for documents of your own"


def _by_task(name: str) -> str:
    """The paper's value for every task: `10, and 20 for hyperpartisan`."""
    default = getattr(TaskSource, name)
    others = [f"{getattr(task, name)} for {task.name}" for task in TASKS.values() if getattr(task, name) != default]
    return ", and ".join([str(default), *others])


def _rates() -> str:
    """The learning rate of every method: `0.005 for prefix-propagation, ...`."""
    return ", ".join(f"{method.learning_rate:g} for {method.name}" for method in METHODS.values())


# Every number has a bound, far above what makes sense, so that a typo is an error here and not in an allocator.
_MANY = 1_000_000
_COUNT = Limits(low=1, high=_MANY)
_DOCUMENTS = Limits(low=1, high=1000 * _MANY)
_UP_TO_MANY = Limits(low=0, high=_MANY)
_WIDTH = Limits(low=1, high=MOST_ROWS)
_RATE = Limits(low=0, below=1)


_SOURCE = (
    "task",
    "data_dir",
    "hub_dataset",
    "hub_config",
    "train_files",
    "dev_files",
    "test_files",
    "text_column",
    "label_column",
    "id_column",
)


@dataclass(frozen=True)
class RunSettings:
    """One run. None means "as the paper does for this task and method", see `prefixprop.settings.resolve`."""

    task: str | None = _option(None, DATA, "A named data set.", _rows(TASKS))
    data_dir: str | None = _option(None, DATA, "A local copy of the task's data.")
    train_files: tuple[str, ...] = _option(
        (), DATA, "Your documents: .jsonl, .json, .csv, .tsv, .parquet, or a folder per label."
    )
    dev_files: tuple[str, ...] = _option((), DATA, "Dev documents; without them a tenth of the training set.")
    test_files: tuple[str, ...] = _option((), DATA, "Test documents, if there are any.")
    hub_dataset: str | None = _option(None, DATA, "A data set of the Hugging Face hub.")
    hub_config: str | None = _option(None, DATA, "Its configuration.")
    text_column: str = _option("text", DATA, "Column of the text, in files or a hub data set.")
    label_column: str = _option("label", DATA, "Column of the label, a name or a number.")
    id_column: str | None = _option(
        None, DATA, "Column of the document's id; if not set, 'id' if there is one, otherwise documents are numbered."
    )
    max_train_documents: int | None = _option(
        None,
        DATA,
        "Train on at most this many documents, drawn with the seed: for small trials.",
        _DOCUMENTS,
    )
    max_dev_documents: int | None = _option(
        None, DATA, "Evaluate on at most this many dev documents, drawn with the seed.", _DOCUMENTS
    )
    max_test_documents: int | None = _option(
        None,
        DATA,
        "Evaluate on at most this many test documents, drawn with the seed; 0: leave test alone.",
        Limits(low=0, high=1000 * _MANY),
    )
    folds: int | None = _option(
        None,
        DATA,
        "Divide train into this many folds, and evaluate on one of them instead of the task's dev.",
        Limits(low=2, high=_MANY),
    )
    fold: int | None = _option(
        None, DATA, "Which of the --folds is left out of train and evaluated, from 0.", _UP_TO_MANY
    )

    model: str = _option(
        DEFAULT_MODEL,
        MODEL,
        "One of the package (longformer-mini-4096, longformer-mini-4096-mlm, roberta-mini-512, embedded), one of the "
        "hub, or a local folder.",
    )
    max_length: int | None = _option(
        None,
        MODEL,
        "Longest document in tokens; if not set, the task's 4096 or the model's limit.",
        Limits(low=4, high=_MANY),
    )
    chunk_reduction: str = _option(
        "mean", MODEL, "WikiHop: how a candidate's scores over chunks become one.", _one_of(*CHUNK_REDUCTIONS)
    )
    max_chunks: int | None = _option(
        None, MODEL, "WikiHop: the most chunks of a question to read; all if not set.", _COUNT
    )

    method: str | None = _option(
        None, METHOD, lambda: f"What is trained; if not set, {_or_own('method')}.", _rows(METHODS)
    )
    num_virtual_tokens: int | None = _option(
        None, METHOD, lambda: f"Prefix length j; if not set, the paper's: {_by_task('num_virtual_tokens')}.", _WIDTH
    )
    layout: str = _option("paper", METHOD, "Where the prefix stands.", _one_of(*LAYOUTS))
    pooling: str = _option("cls", METHOD, "Which row the head reads.", _one_of(*POOLINGS))
    prefix_dropout: float = _option(0.1, METHOD, "Dropout on the prefix.", _RATE)
    init: str = _option("normal", METHOD, "How the prefix starts.", _one_of(*INITS))
    reparameterize: bool = _option(False, METHOD, "Train the prefix through an MLP.")
    kernel: str | None = _option(None, METHOD, "Kernel decomposition (Eq. 3); none if not set.", _rows(KERNELS))
    alpha: float = _option(
        0.005,
        METHOD,
        "Weight of the kernel attention, or where it starts.",
        Limits(low=-MOST_ALPHA, high=MOST_ALPHA),
    )
    alpha_mode: str = _option("fixed", METHOD, "Fixed, or trained per layer, head or query.", _one_of(*ALPHA_MODES))
    gate: bool = _option(False, METHOD, "Train a number per layer that scales the prefix there.")
    lora_rank: int = _option(8, METHOD, "LoRA: its rank.", _WIDTH)
    lora_alpha: float = _option(
        16.0, METHOD, "LoRA: its scale is this divided by the rank.", Limits(above=0, high=_MANY)
    )
    lora_dropout: float = _option(0.1, METHOD, "LoRA: its dropout.", _RATE)
    lora_targets: tuple[str, ...] | None = _option(
        None, METHOD, "LoRA: names of the layers it changes; if not set, those usual for the model's family."
    )

    learning_rate: float | None = _option(
        None,
        OPTIMISATION,
        lambda: f"Peak of the schedule; if not set, {_rates()}.",
        Limits(above=0, high=100),
        alias="lr",
    )
    epochs: int | None = _option(
        None,
        OPTIMISATION,
        lambda: (
            f"Passes over train; if not set, the paper's: {_by_task('epochs')}. Documents of your own get "
            f"{EPOCHS_OF_FEW}, or {EPOCHS_OF_MANY} if there are {MANY_DOCUMENTS:,} or more."
        ),
        _COUNT,
    )
    batch_size: int | None = _option(
        None,
        OPTIMISATION,
        lambda: f"Documents per step, over all accumulation and processes; if not set, {_or_own('batch_size')}.",
        _COUNT,
    )
    warmup: float = _option(0.1, OPTIMISATION, "Share of the steps in which the learning rate rises.", _RATE)
    dropout: float = _option(0.1, OPTIMISATION, "Dropout of the model.", _RATE)
    attention_dropout: float | None = _option(
        None, OPTIMISATION, "Dropout of the attention weights; as dropout if not set.", _RATE
    )
    weight_decay: float = _option(0.01, OPTIMISATION, "AdamW's weight decay.", _UP_TO_MANY)
    max_grad_norm: float = _option(1.0, OPTIMISATION, "Gradients are clipped to this norm; 0: never.", _UP_TO_MANY)
    early_stopping: int = _option(
        0, OPTIMISATION, "Stop after this many epochs without a better dev metric; 0: never.", _UP_TO_MANY
    )
    keep: str = _option(
        "best", OPTIMISATION, "The epoch a run ends with: the best by the dev metric, or the last.",
        _one_of(*KEPT_CHECKPOINTS),
    )  # fmt: skip
    seed: int = _option(1, OPTIMISATION, "The seed of everything random.", Limits(low=0, high=2**32 - 1))

    device_batch_size: int = _option(
        8, MACHINE, "Documents at once on a device; the rest of the batch is accumulated.", _COUNT, resumable=True
    )
    precision: str = _option(
        "auto",
        MACHINE,
        "'auto' is bf16 on GPUs that have it (since Ampere), fp32 elsewhere.",
        _one_of(*PRECISIONS),
        resumable=True,
    )
    attention_backend: str = _option(
        "auto",
        MACHINE,
        "What computes Longformer's and ModernBERT's attention.",
        _one_of(*ATTENTION_BACKENDS),
        resumable=True,
    )
    gradient_checkpointing: bool = _option(
        False, MACHINE, "Compute activations twice instead of keeping them: less memory, more time.", resumable=True
    )
    checkpoint_every: int = _option(
        0,
        MACHINE,
        "Write a checkpoint every N steps, besides those at the ends of epochs; 0: none.",
        Limits(low=0, high=1000 * _MANY),
        resumable=True,
    )
    checkpoint_seconds: float = _option(
        30.0,
        MACHINE,
        "Write a checkpoint at the end of an epoch only if the last one (or the start) is at least this many seconds "
        "old; 0: at every epoch's end.",
        Limits(low=0, high=1000 * _MANY),
        resumable=True,
    )
    keep_checkpoints: bool = _option(
        False,
        MACHINE,
        "Keep the last two checkpoints after the run; a run shorter than --checkpoint-seconds has none.",
        resumable=True,
    )
    keep_weights: bool = _option(
        True,
        MACHINE,
        "Keep what was trained, and the tokenizer; without them a run can be reported on, but cannot predict.",
        resumable=True,
    )
    floor: bool = _option(
        True,
        MACHINE,
        "Fit a linear model of words on the same documents, and show what it reaches beside the run.",
        resumable=True,
    )
    report_to: tuple[str, ...] = _option((), MACHINE, "Trackers, such as tensorboard or wandb.", resumable=True)

    def __post_init__(self) -> None:
        for declared in fields(self):
            if isinstance(value := getattr(self, declared.name), list):
                object.__setattr__(self, declared.name, tuple(value))

    @property
    def task_row(self) -> TaskSource:
        """The row of the task; the user's own documents share one row."""
        return OWN_DOCUMENTS if self.task is None else TASKS[self.task]

    @property
    def method_row(self) -> Method:
        return METHODS[self.method or self.task_row.method]

    @property
    def documents_per_step(self) -> int:
        return self.batch_size or self.task_row.batch_size

    @property
    def answers_questions(self) -> bool:
        """Whether candidates are scored (WikiHop) rather than documents classified."""
        return self.task_row.answers_questions

    @property
    def is_prefix_method(self) -> bool:
        return self.method_row.is_prefix

    @property
    def source(self) -> dict[str, Any]:
        """Where the data are: the arguments of `load_data`."""
        return {name: getattr(self, name) for name in _SOURCE}

    @property
    def selection(self) -> dict[str, Any]:
        """Which of the data are read: the arguments of `select_documents`."""
        limits = {split: getattr(self, f"max_{split}_documents") for split in SPLIT_NAMES}
        return {"folds": self.folds, "fold": self.fold, "max_documents": limits, "seed": self.seed}

    @property
    def data_name(self) -> str:
        """The name of the data in reports and in the names of run directories."""
        return self.task or (self.hub_dataset or "files").replace("/", "-")

    @property
    def metric(self) -> str:
        """The measure on dev by which checkpoints and settings are chosen."""
        return self.task_row.metric


SETTING_FIELDS: dict[str, Field] = {declared.name: declared for declared in fields(RunSettings)}


def help_of(name: str) -> str:
    """What a field is for."""
    text: str | Callable[[], str] = SETTING_FIELDS[name].metadata["help"]
    return text if isinstance(text, str) else text()


def flag_of(name: str) -> str:
    """The flag of a field: `--learning-rate` for `learning_rate`.

    >>> flag_of("learning_rate")
    '--learning-rate'
    """
    return "--" + name.replace("_", "-")
