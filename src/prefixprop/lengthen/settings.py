"""The settings of `prefixprop lengthen`; the defaults are those of Longformer's authors where they state them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefixprop.choices import DEFAULT_MODEL
from prefixprop.settings.declaration import Settings, SettingsError, declared, setting, settings_class
from prefixprop.settings.run_settings import MACHINE, MANY, MODEL, OPTIMISATION, PRECISIONS

USUAL_STEPS = 2000  # Beltagy et al. (2020): most of what 65,000 steps gain


@settings_class
class LengthenSettings(Settings):
    """How an encoder is lengthened and trained."""

    model: str = setting(DEFAULT_MODEL, MODEL, "A RoBERTa or BERT encoder: a hub model, or a local folder.")
    text: tuple[str, ...] = setting((), MODEL, "Long documents: .jsonl, .csv, .tsv, .parquet, .txt files.")
    text_column: str = setting("text", MODEL, "Column of the text.")
    max_length: int = setting(4096, MODEL, "Longest document of the new encoder, in tokens.", ge=16, le=MANY)
    attention_window: int = setting(512, MODEL, "Neighbours that a token sees, half on either side.", ge=2, le=MANY)

    steps: int | None = setting(
        None, OPTIMISATION, f"Training steps. If not set: {USUAL_STEPS}, or --minutes.", ge=1, le=1000 * MANY
    )
    minutes: float | None = setting(None, OPTIMISATION, "Minutes of training, instead of --steps.", gt=0, le=MANY)
    teach_cls: bool = setting(
        False,
        OPTIMISATION,
        "Make [CLS] global and teach it the original's [CLS] over the chunks of a document, and the document's "
        "words: for encoders of text embeddings.",
    )
    freeze_embeddings: bool = setting(False, OPTIMISATION, "Do not train the word embeddings.")
    learning_rate: float = setting(3e-5, OPTIMISATION, "Peak learning rate.", alias="lr", gt=0, le=100)
    warmup: float = setting(
        0.1, OPTIMISATION, "Share of training in which the learning rate rises; then it falls to 0.", ge=0, lt=1
    )
    weight_decay: float = setting(0.01, OPTIMISATION, "AdamW's weight decay.", ge=0, le=MANY)
    batch_size: int = setting(64, OPTIMISATION, "Sequences of --max-length tokens in a step.", ge=1, le=MANY)
    seed: int = setting(1, OPTIMISATION, "The seed of everything random.", ge=0, le=2**32 - 1)

    device_batch_size: int = setting(
        8, MACHINE, "Sequences that a device computes at once.", resumable=True, ge=1, le=MANY
    )
    precision: str = setting("auto", MACHINE, "'auto' is bf16 on GPUs that have it.", choices=PRECISIONS)
    gradient_checkpointing: bool = setting(False, MACHINE, "Less memory, more time.", resumable=True)
    checkpoint_seconds: float = setting(
        300.0, MACHINE, "Seconds between checkpoints.", resumable=True, ge=0, le=1000 * MANY
    )

    @property
    def total_steps(self) -> int | None:
        """How many steps there will be; None if `minutes` decides."""
        return self.steps if self.steps is not None or self.minutes is not None else USUAL_STEPS

    def check(self, processes: int = 1) -> None:
        """Raise `SettingsError` for settings that cannot work together."""
        problems = [f"--text: {file} is not a file." for file in self.text if not Path(file).is_file()]
        if not self.text:
            problems.append("--text: give at least one file of documents.")
        if self.attention_window % 2:
            problems.append(f"--attention-window: {self.attention_window} cannot be halved; give an even number.")
        if self.steps is not None and self.minutes is not None:
            problems.append("--steps and --minutes both say when training ends; give one of them.")
        if self.batch_size % processes:
            problems.append(f"--batch-size: {self.batch_size} rows cannot be divided among {processes} processes.")
        if problems:
            raise SettingsError(problems)

    def recorded(self) -> dict[str, Any]:
        """All settings, as JSON gives them back."""
        return asdict(self) | {"text": list(self.text)}

    def changed_since(self, recorded: dict[str, Any]) -> list[str]:
        """The flags of settings that have changed although a resumed training must keep them."""
        now = self.recorded()
        return [
            setting.flag
            for name, setting in declared(LengthenSettings).items()
            if not setting.resumable and name in recorded and recorded[name] != now[name]
        ]
