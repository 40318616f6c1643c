"""The settings of `prefixprop lengthen`; the defaults are those of Longformer's authors where they state any."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from prefixprop.settings.check import SettingsError
from prefixprop.settings.run_settings import PRECISIONS

USUAL_STEPS = 2000  # Beltagy et al. (2020): most of what 65,000 steps gain
ENCODER, TRAINING, MACHINE = "Encoder", "Training", "Machine"  # groups of flags


def _setting(
    default: Any,
    group: str,
    help: str,
    low: float | None = None,
    above: float | None = None,
    resumable: bool = False,
) -> Any:
    """A field; `resumable` ones may differ when training is resumed, because its outcome does not depend on them."""
    details = {"group": group, "help": help, "low": low, "above": above, "resumable": resumable}
    return field(default=default, metadata=details)


@dataclass(frozen=True)
class LengthenSettings:
    """How an encoder is lengthened and trained. The flags of the command are made from these fields.

    Attributes:
        model: The encoder to start from: one of the package, of the hub, or in a folder.
        text: Files of documents.
    """

    model: str
    text: tuple[str, ...]
    text_column: str = _setting("text", ENCODER, "Column of the text.")
    max_length: int = _setting(4096, ENCODER, "Longest document that the new encoder reads, in tokens.", low=16)
    attention_window: int = _setting(512, ENCODER, "Neighbours that a token sees, half on either side.", low=2)
    steps: int | None = _setting(
        None, TRAINING, f"Training steps; {USUAL_STEPS} if --minutes is not given either.", low=1
    )
    minutes: float | None = _setting(None, TRAINING, "Minutes of training, instead of --steps.", above=0)
    teach_cls: bool = _setting(
        False,
        TRAINING,
        "Make [CLS] global and teach it the original's [CLS] over the chunks of a document, and the document's "
        "words: for models that embed texts.",
    )
    freeze_embeddings: bool = _setting(False, TRAINING, "Do not train the word embeddings.")
    learning_rate: float = _setting(3e-5, TRAINING, "Peak of the schedule.", above=0)
    warmup: float = _setting(0.1, TRAINING, "Share of training in which the learning rate rises; then it falls to 0.")
    weight_decay: float = _setting(0.01, TRAINING, "AdamW's weight decay.", low=0)
    batch_size: int = _setting(64, TRAINING, "Rows of --max-length tokens in a step.", low=1)
    seed: int = _setting(1, TRAINING, "The seed of everything random.", low=0)
    device_batch_size: int = _setting(8, MACHINE, "Rows that a device computes at once.", low=1, resumable=True)
    precision: str = _setting("auto", MACHINE, "auto, fp32 or bf16; auto is bf16 on GPUs that have it.")
    gradient_checkpointing: bool = _setting(False, MACHINE, "Less memory, more time.", resumable=True)
    checkpoint_seconds: float = _setting(300.0, MACHINE, "Seconds between checkpoints.", low=0, resumable=True)

    @property
    def total_steps(self) -> int | None:
        """How many steps there will be; None if the clock decides."""
        return self.steps if self.steps is not None or self.minutes is not None else USUAL_STEPS

    def check(self, processes: int = 1) -> None:
        """Raise `SettingsError` for values that cannot work."""
        problems = []
        for declared in fields(self):
            value, low, above = getattr(self, declared.name), *map(declared.metadata.get, ("low", "above"))
            if value is not None and low is not None and not value >= low:
                problems.append(f"{flag_of(declared.name)}: must be at least {low}, got {value}.")
            if value is not None and above is not None and not value > above:
                problems.append(f"{flag_of(declared.name)}: must be more than {above}, got {value}.")
        problems += [f"--text: {file} is not a file." for file in self.text if not Path(file).is_file()]
        if not self.text:
            problems.append("--text: give at least one file of documents.")
        if not 0 <= self.warmup < 1:
            problems.append(f"--warmup: must be at least 0 and less than 1, got {self.warmup}.")
        if self.steps is not None and self.minutes is not None:
            problems.append("--steps and --minutes both say when training ends; give one of them.")
        if self.precision not in PRECISIONS:
            problems.append(f"--precision: {self.precision!r} is unknown; choose one of {', '.join(PRECISIONS)}.")
        if self.batch_size % processes:
            problems.append(f"--batch-size: {self.batch_size} rows cannot be divided among {processes} processes.")
        if problems:
            raise SettingsError(problems)

    def recorded(self) -> dict[str, Any]:
        """All settings, as JSON gives them back."""
        return asdict(self) | {"text": list(self.text)}

    def changed_since(self, recorded: dict[str, Any]) -> list[str]:
        """The flags of settings that a resumed training must share with its beginning and does not."""
        now = self.recorded()
        decisive = [declared.name for declared in fields(self) if not declared.metadata.get("resumable")]
        return [flag_of(name) for name in decisive if name in recorded and recorded[name] != now[name]]


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")
