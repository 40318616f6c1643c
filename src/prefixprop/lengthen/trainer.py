"""The training loop: steps, the held-out loss, checkpoints, and when training ends."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

from prefixprop.lengthen.encoder import WEIGHTS, LongEncoder, Objective
from prefixprop.lengthen.settings import LengthenSettings
from prefixprop.lengthen.text import Ids, PackedRows, TrainingText, cut, mask, pieces
from prefixprop.progress import Progress
from prefixprop.train.recovery import (
    TRAINER_STATE,
    Snapshot,
    TrainingError,
    read_checkpoint,
    write_checkpoint,
)
from prefixprop.train.trainer import send_to_host

EVALUATIONS = 10  # of the held-out text, besides the one before training
_MOST_HELD_OUT_TOKENS = 2**18
# Where [CLS] is taught, every second step reads short documents, which the original was made for: as long as it
# reads, and a half, a quarter and an eighth of that, in turns.
_SHORT_STEPS, _SHORTENINGS = 2, (1, 2, 4, 8)
_OF_TRAINING, _OF_HELD_OUT = 0, 1  # seeds of masks
_BETAS, _EPSILON, _MAX_GRAD_NORM = (0.9, 0.98), 1e-6, 1.0  # RoBERTa's betas and epsilon


class MasterWeights:
    """The trained weights in float32, by name, with their optimizer, for a model that computes in `dtype`.

    In bfloat16 a weight has 8 bits: most steps are smaller than the last of them and would be lost.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, weight_decay: float) -> None:
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.by_name: dict[str, Tensor] = {
            name: parameter if dtype == torch.float32 else parameter.detach().float().clone()
            for name, parameter in trained.items()
        }
        self.frozen = {
            name: parameter.detach().to("cpu", copy=True)
            for name, parameter in model.named_parameters()
            if not parameter.requires_grad
        }
        self.model = model.to(dtype)
        self.computed: list[Tensor] = list(trained.values())
        self.masters = list(self.by_name.values())
        groups = [
            {"params": [tensor for tensor in self.masters if tensor.ndim > 1], "weight_decay": weight_decay},
            {"params": [tensor for tensor in self.masters if tensor.ndim <= 1], "weight_decay": 0.0},
        ]
        on_gpu = self.masters[0].is_cuda
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=_BETAS, eps=_EPSILON, fused=on_gpu)

    def collect_gradients(self) -> None:
        """Add the gradients of the model to those of the masters, in float32."""
        if self.masters[0] is self.computed[0]:
            return
        made = [parameter.grad for parameter in self.computed if parameter.grad is not None]
        assert len(made) == len(self.computed), "every trained weight takes part in every step"
        is_first = self.masters[0].grad is None
        if is_first:
            for master in self.masters:
                master.grad = torch.empty_like(master)
        sums = [master.grad for master in self.masters if master.grad is not None]
        (torch._foreach_copy_ if is_first else torch._foreach_add_)(sums, made)
        for parameter in self.computed:
            parameter.grad = None

    def step(self, learning_rate: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.masters, _MAX_GRAD_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Give the model the masters' values."""
        if self.masters[0] is not self.computed[0]:
            torch._foreach_copy_(self.computed, self.masters)

    @torch.no_grad()
    def end(self) -> None:
        """Convert the model to float32, with the masters' values; other weights are as they were."""
        self.model.float()
        for name, tensor in (self.by_name | self.frozen).items():
            self.model.get_parameter(name).copy_(tensor)

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], optimizer: dict) -> None:
        for name, master in self.by_name.items():
            master.copy_(tensors[name])
        self.optimizer.load_state_dict(optimizer)
        self.publish()


@dataclass
class PretrainingState:
    """How far training is; the losses are sums over the `counted` steps since the last evaluation."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    loss: float = 0.0
    cls_loss: float = 0.0
    words_loss: float = 0.0
    counted: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


class Pretraining:
    """The training of one encoder."""

    def __init__(
        self,
        settings: LengthenSettings,
        encoder: LongEncoder,
        text: TrainingText,
        accelerator: Accelerator,
        dtype: torch.dtype,
        checkpoints: Path,
    ) -> None:
        self.settings, self.encoder, self.text = settings, encoder, text
        self.accelerator, self.checkpoints = accelerator, checkpoints
        self.state = PretrainingState()
        # The next step's rows are made while the device computes this one.
        self.preparing = ThreadPoolExecutor(max_workers=1)
        self.prepared: Future[list[dict[str, Ids]]] | None = None
        self.arriving: list[Callable[[], float]] = []  # losses of the last step
        device = accelerator.device
        encoder.model.to(device)
        if encoder.teacher is not None:
            encoder.teacher.to(device=device, dtype=dtype)
        self.weights = MasterWeights(encoder.model, dtype, settings.weight_decay)
        self.objective: Any = accelerator.prepare_model(Objective(encoder.model, encoder.teacher))

    def run(self, progress: Progress, should_stop: Callable[[], bool]) -> None:
        """Train to the end; after a checkpoint it raises `KeyboardInterrupt` if it should stop earlier."""
        if not self.state.history:
            self._evaluate(progress)
        last_checkpoint = time.monotonic()
        while (share := self._share()) < 1:
            started = time.monotonic()
            arriving = [send_to_host(loss) for loss in self._step(self._learning_rate(share))]
            # Those of the previous step: reading this step's losses would wait for the device.
            self._count_losses()
            self.arriving = arriving
            self.state.step += 1
            self.state.seconds += time.monotonic() - started
            if self._share() * EVALUATIONS >= len(self.state.history):
                self._evaluate(progress)
            self._report(progress)
            stops = should_stop()
            is_due = time.monotonic() - last_checkpoint >= self.settings.checkpoint_seconds
            if self._share() < 1 and (stops or is_due):  # asked in every process, whose clocks differ
                self._save()
                last_checkpoint = time.monotonic()
                if stops:
                    raise KeyboardInterrupt

    def _report(self, progress: Progress) -> None:
        state, minutes = self.state, self.settings.minutes
        loss = f"loss {state.loss / state.counted:.3f}, " if state.counted else ""
        detail = f"{loss}{state.tokens / max(state.seconds, 1e-9):,.0f} tokens/s"
        if self.accelerator.is_main_process and minutes is not None:
            progress.advance("training (seconds)", int(state.seconds), int(60 * minutes), detail)
        elif self.accelerator.is_main_process:
            progress.advance("training", state.step, self.settings.total_steps or 0, detail)

    def _share(self) -> float:
        """The share of training that is done."""
        if self.settings.minutes is None:
            return self.state.step / (self.settings.total_steps or 1)
        share = self.state.seconds / (60 * self.settings.minutes)
        if self.accelerator.num_processes > 1:
            (share,) = broadcast_object_list([share])  # one clock decides for all
        return share

    def _learning_rate(self, share: float) -> float:
        """The schedule: it rises linearly for a share of `warmup`, then falls linearly to 0."""
        warmup = self.settings.warmup
        if self.settings.total_steps is not None:
            share = (self.state.step + 1) / (self.settings.total_steps + 1)  # above 0 in the first step
        rising = max(share, 1e-3) / warmup if warmup else 1.0
        return self.settings.learning_rate * min(rising, (1 - share) / (1 - warmup))

    # --- one step -------------------------------------------------------------------------------------------------

    def _step(self, learning_rate: float) -> list[Tensor]:
        parts = self.prepared.result() if self.prepared else self._prepare(self.state.step)
        self.prepared = self.preparing.submit(self._prepare, self.state.step + 1)
        tokens = sum(part["input_ids"].size for part in parts)
        self.state.tokens += tokens * self.accelerator.num_processes
        sums: list[Tensor] = []
        for part in parts:
            share = part["input_ids"].size / tokens  # the last part may have fewer rows
            losses = [share * loss for loss in self.objective(**self._on_device(part))]
            torch.stack([weight * loss for weight, loss in zip(WEIGHTS, losses, strict=True)]).sum().backward()
            self.weights.collect_gradients()
            sums = [loss.detach() + total for loss, total in zip(losses, sums or (0.0, 0.0, 0.0), strict=True)]
        self.weights.step(learning_rate)
        return sums

    def _prepare(self, step: int) -> list[dict[str, Ids]]:
        """What this process computes of a step, as many rows at once as the device takes."""
        settings = self.settings
        own = settings.batch_size // self.accelerator.num_processes
        first = self.accelerator.process_index * own
        length = self._short_length(step)
        parts = []
        for start in range(first, first + own, settings.device_batch_size):
            numbers = range(start, min(start + settings.device_batch_size, first + own))
            rows = [self.text.train.drawn(step * settings.batch_size + number, settings.seed) for number in numbers]
            blocks = [row[None] if length is None else cut(row, length) for row in rows]
            parts.append(self._batch(blocks, [[settings.seed, _OF_TRAINING, step, number] for number in numbers]))
        return parts

    def _short_length(self, step: int) -> int | None:
        """How long the rows of a step are, if it reads short documents."""
        if not self.settings.teach_cls or step % _SHORT_STEPS != _SHORT_STEPS - 1:
            return None
        shortening = _SHORTENINGS[step // _SHORT_STEPS % len(_SHORTENINGS)]
        return max(4, min(self.encoder.original_length, self.settings.max_length) // shortening)

    def _batch(self, blocks: list[Ids], seeds: list[list[int]]) -> dict[str, Ids]:
        arrays = mask(blocks, self.encoder.tokenizer, seeds)
        if self.encoder.teacher is not None:
            longest = self.encoder.original_length
            arrays["pieces"] = np.concatenate([pieces(row, longest) for block in blocks for row in block])
        return arrays

    def _on_device(self, arrays: dict[str, Ids]) -> dict[str, Tensor]:
        device = self.accelerator.device
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if device.type == "cuda":
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}

    def _count_losses(self) -> None:
        if not self.arriving:
            return
        loss, cls_loss, words_loss = (value() for value in self.arriving)
        self.arriving = []
        if not math.isfinite(loss + cls_loss + words_loss):
            raise TrainingError(
                f"The loss is {loss} at step {self.state.step}: start again (--overwrite) with a lower "
                "--learning-rate, or with --precision fp32 if it is bf16."
            )
        self.state.loss += loss
        self.state.cls_loss += cls_loss
        self.state.words_loss += words_loss
        self.state.counted += 1

    # --- held-out text --------------------------------------------------------------------------------------------

    def _evaluate(self, progress: Progress) -> None:
        self._count_losses()
        state, counted = self.state, self.state.counted
        line: dict[str, Any] = {
            "step": state.step,
            "tokens": state.tokens,
            "seconds": round(state.seconds, 1),
            "held_out_bits": {str(rows.length): self._held_out_bits(rows) for rows in self._held_out()},
        }
        if counted:
            line["loss_bits"] = state.loss / counted / math.log(2)
            if self.encoder.teacher is not None:
                line["cls_cosine"] = 1 - state.cls_loss / counted
                line["words_bits"] = state.words_loss / counted / math.log(2)
        state.history.append(line)
        state.loss = state.cls_loss = state.words_loss = 0.0
        state.counted = 0
        bits = "  ".join(f"{value:.3f} at {length} tokens" for length, value in line["held_out_bits"].items())
        cosine = f"  [CLS] cosine {line['cls_cosine']:.3f}" if "cls_cosine" in line else ""
        told = f"step {state.step:>6,}  {state.tokens:>13,} tokens  held out: {bits} (bits per token){cosine}"
        if self.accelerator.is_main_process:
            progress.line(told)

    def _held_out(self) -> list[PackedRows]:
        """At the original's length and at full length, which may be the same."""
        both = (self.text.held_out_short, self.text.held_out)
        return [rows for rows in {rows.length: rows for rows in both}.values() if rows.count()]

    @torch.no_grad()
    def _held_out_bits(self, rows: PackedRows) -> float:
        """Cross-entropy of masked tokens in bits; the masks are the same at every evaluation."""
        settings = self.settings
        # At most twice the tokens of a step, so that evaluation never takes longer than training.
        tokens = min(_MOST_HELD_OUT_TOKENS, 2 * settings.batch_size * settings.max_length)
        count = min(rows.count(), max(1, tokens // rows.length))
        at_once = max(1, settings.device_batch_size * settings.max_length // rows.length)
        total = torch.zeros((), device=self.accelerator.device)
        objective = self.accelerator.unwrap_model(self.objective)
        for start in range(0, count, at_once):
            numbers = range(start, min(start + at_once, count))
            batch = self._batch(
                [rows.row(number)[None] for number in numbers],
                [[settings.seed, _OF_HELD_OUT, number] for number in numbers],
            )
            batch.pop("pieces", None)
            total += objective(**self._on_device(batch))[0] * len(numbers)
        return total.item() / count / math.log(2)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._count_losses()
        # Only the main process saves, by its own clock; the others do not wait for it here.
        if self.accelerator.is_main_process:
            numbers = dataclasses.asdict(self.state)
            history = json.dumps(numbers.pop("history"))
            snapshot = Snapshot(self.weights.by_name, None, self.weights.optimizer.state_dict(), {}, [], numbers)
            write_checkpoint(self.checkpoints, self.state.step, snapshot, history)

    def restore(self, checkpoint: Path) -> None:
        """Continue from a checkpoint."""
        snapshot = read_checkpoint(checkpoint)
        history = json.loads((checkpoint / TRAINER_STATE).read_bytes())
        self.state = PretrainingState(**snapshot.progress, history=history)  # type: ignore[arg-type]
        self.weights.load(dict(snapshot.trained), snapshot.optimizer)
