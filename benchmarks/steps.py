"""Training steps of every method in one run, synchronised as a training loop does, and what GPU and host take of it.

    python benchmarks/steps.py --size base --hugging-face --json results/bench/all-steps.json

"step" is a step as `train` runs it on a GPU: recorded once per shape, then replayed as a CUDA graph. "launched" is
the same step launched kernel by kernel, "GPU" the time its kernels take, and "host" the time until all are launched.
There are 8 documents of 4,096 tokens unless the row says otherwise. Longformer has a dropout of 0.1 (the attention of
readers has none), ModernBERT none. Prefixes have 8 virtual tokens, LoRA has rank 8. The frozen encoder goes back to
the embeddings. Steps of readers include heads, loss, clipping and AdamW. "Attention alone" is that of one layer, both
ways. GiB are the most that a launched step allocates. `--rows` chooses rows by part of a name.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import methods
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from prefixprop.attention import install
from prefixprop.backbones import find_backbone
from prefixprop.models.gpu import hold_frozen_in_bfloat16
from prefixprop.progress import Progress
from prefixprop.settings.run_settings import RunSettings
from prefixprop.train.bank_trainer import BankTrainer, ReaderPlan
from prefixprop.train.text_states import TextStates
from prefixprop.tuners.reader_bank import ReaderBank, new_reader

import measuring
from measuring import DEVICE, ON_GPU, Run

FROZEN = "frozen encoder"
OF_LONGFORMER = (
    "propagation", "prefix-tuning", "kernel exp", "kernel rbf, α per head", methods.LORA, "propagation and LoRA",
    methods.WHOLE_MODEL, FROZEN,
)  # fmt: skip
OF_MODERNBERT = ("propagation", "prefix-tuning", methods.LORA, methods.WHOLE_MODEL)
BY_HUGGING_FACE = (methods.LORA, methods.WHOLE_MODEL, FROZEN)
READERS, READER_LENGTH, CLASSES = (1, 64, 256), 8, 18
GLOBAL = 9  # tokens in Longformer


class Row(NamedTuple):
    """A step to measure; `build` makes it, and Hugging Face's if there is one."""

    name: str
    build: Callable[[], dict[str, Run]]
    records: bool = True  # whether it is recorded here; readers record for themselves


def rows(options: Any) -> Iterator[Row]:
    for model, names in (("longformer", OF_LONGFORMER), ("modernbert", OF_MODERNBERT)):
        for method in names:
            yield Row(f"{model}, {method}", partial(of_method, model, method, options, options.batch, options.length))
    for batch, length in ((4 * options.batch, options.length // 8), (options.batch // 4 or 1, options.length * 4)):
        name = f"longformer, {FROZEN}, {batch} × {length}"
        yield Row(name, partial(of_method, "longformer", FROZEN, options, batch, length))
    for model in ("longformer", "modernbert"):
        for count in options.readers:
            for what in ("step", "answers"):
                name = f"{model}, {count} reader{'s' * (count > 1)}" + ", answers" * (what == "answers")
                yield Row(name, partial(of_readers, model, count, what, options), records=False)
    if ON_GPU:
        yield Row("attention alone", partial(attention_alone, options))
        yield Row("attention alone, FlexAttention", partial(flex_attention_alone, options))


def of_method(model: str, method: str, options: Any, batch: int, length: int) -> dict[str, Run]:
    dropout = options.dropout if model == "longformer" else 0.0  # as their configurations have it
    config = measuring.encoder_config(model, options.size, length, dropout)
    base = measuring.frozen_encoder(config)
    inputs = measuring.random_inputs(batch, length, GLOBAL if model == "longformer" else 0)
    runs = {}
    for who in (measuring.THEIRS, measuring.OURS):
        if who == measuring.THEIRS and (method not in BY_HUGGING_FACE or not options.hugging_face):
            continue
        own = measuring.twin_of(base)
        own = (own if method == FROZEN else methods.with_method(method, own)).train()
        if who == measuring.OURS:
            install(own, backend=options.backend)
        is_frozen = method == FROZEN
        step = measuring.step_to_embeddings if is_frozen else partial(measuring.step, in_place=True)
        runs[who] = partial(step, own, inputs)
    return runs


def precision() -> Any:
    return torch.autocast(DEVICE, torch.bfloat16) if ON_GPU else contextlib.nullcontext()


def of_readers(model: str, count: int, what: str, options: Any) -> dict[str, Run]:
    """A step or the answers of so many readers, which read the text anew, as where its states are not kept."""
    dropout = options.dropout if model == "longformer" else 0.0
    config = measuring.encoder_config(model, options.size, options.length, dropout, num_labels=CLASSES)
    if model == "longformer":
        config.attention_probs_dropout_prob = 0.0
    torch.manual_seed(0)
    with torch.device(DEVICE):  # where random weights take less time
        encoder = AutoModelForSequenceClassification.from_config(config).requires_grad_(False)
    if ON_GPU:
        hold_frozen_in_bfloat16(encoder)
    install(encoder.to(DEVICE), backend=options.backend)
    backbone = find_backbone(encoder)
    generator = np.random.default_rng(0)
    ids = [generator.integers(5, 5000, options.length).astype(np.int32) for _ in range(options.batch)]
    text = TextStates(backbone, ids, 1, precision, options.batch * options.length, False, options.length)
    bank = ReaderBank(backbone, [new_reader(backbone, READER_LENGTH, CLASSES, seed) for seed in range(count)], 0.1)
    plans = [ReaderPlan(0, 1e-3, seed, None) for seed in range(count)]
    labels, folds = np.zeros((1, options.batch), int), np.full((1, options.batch), -2)
    settings = RunSettings(epochs=100_000, batch_size=options.batch, seed=0)
    trainer = BankTrainer(bank, plans, text, labels, folds, settings, (options.batch, count), Progress())
    if what == "answers":
        return {measuring.OURS: partial(trainer.answer, text, range(options.batch), range(count))}
    return {measuring.OURS: partial(next, trainer.train(trainer.steps))}


def projections(options: Any) -> tuple[int, int, Tensor]:
    """Heads, reach of a window, and queries, keys and values of all rows, [batch * length, 3 width]."""
    hidden, _, heads, window = measuring.SIZES["longformer"][options.size]
    rows = options.batch * options.length
    return heads, window // 2, torch.randn(rows, 3 * hidden, device=DEVICE, dtype=measuring.DTYPE).requires_grad_()


def attention_alone(options: Any) -> dict[str, Run]:
    """Ours, forward and backward: a window and 9 global tokens, which have the projections of all rows."""
    from prefixprop.attention import AttentionPattern
    from prefixprop.attention.triton.block import Attention
    from prefixprop.attention.triton.launch_attention import Setting
    from prefixprop.attention.triton.shared import run

    heads, reach, qkv = projections(options)
    is_masked = torch.zeros(options.batch, options.length, dtype=torch.bool, device=DEVICE)
    is_global = (torch.arange(options.length, device=DEVICE) < GLOBAL).expand_as(is_masked)
    size = qkv.shape[1] // (3 * heads)
    attention = Attention(Setting.of(AttentionPattern(is_masked, is_global), heads, size, reach, 0, 0.0))
    upstream = torch.randn(options.batch, options.length, heads * size, device=DEVICE, dtype=qkv.dtype)

    def both_ways() -> None:
        output = run(attention, qkv, None, None, None)
        torch.autograd.grad(output, qkv, upstream)

    return {measuring.OURS: both_ways}


def flex_attention_alone(options: Any) -> dict[str, Run]:
    """The same with PyTorch's FlexAttention and a mask of window and global tokens, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    heads, reach, qkv = projections(options)

    def visible(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ((query - key).abs() <= reach) | (query < GLOBAL) | (key < GLOBAL)

    mask = create_block_mask(visible, None, None, options.length, options.length, device=DEVICE)
    compiled = torch.compile(flex_attention, dynamic=False)
    by_head = qkv.detach().view(options.batch, options.length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    query, key, value = (part.contiguous().requires_grad_() for part in by_head)
    upstream = torch.randn_like(query)

    def both_ways() -> None:
        output = compiled(query, key, value, block_mask=mask)
        torch.autograd.grad(output, (query, key, value), upstream)

    return {measuring.OURS: both_ways}


def measure(row: Row, options: Any) -> dict[str, Any]:
    runs = row.build()
    launched = runs[measuring.OURS]
    found: dict[str, Any] = {"row": row.name}
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
        launched()
        found["gib"] = torch.cuda.max_memory_allocated() / 2**30
    if ON_GPU and row.records:
        gpu, host = measuring.profile_of(launched)
        runs = {**runs, "launched": launched, measuring.OURS: measuring.cuda_graph(launched)}
    elif ON_GPU:
        for _ in range(3):  # records itself at the second call
            launched()
        gpu, host = measuring.profile_of(launched)
    timings = measuring.measure_in_turns(runs, options.repeats)
    found |= {"step": timings[measuring.OURS], "launched": timings.get("launched")}
    found["hugging_face"] = timings.get(measuring.THEIRS)
    if ON_GPU:
        found |= {"gpu_ms": gpu, "host_ms": host}
    return found


def shown(result: dict[str, Any]) -> dict[str, str]:
    busy, timing = result.get("gpu_ms"), result["step"]
    return {
        "": result["row"],
        measuring.THEIRS: str(result["hugging_face"] or ""),
        "step": str(timing),
        "GPU": f"{busy:.1f} ms" if busy else "",
        "step / GPU": f"{1000 * timing.median / busy:.2f}" if busy and timing.median else "",
        "launched": str(result["launched"] or ""),
        "host": f"{result['host_ms']:.1f} ms" if busy else "",
        "GiB": f"{result['gib']:.1f}" if busy else "",
    }


def main() -> None:
    parser = measuring.make_parser(__doc__, repeats=7, batch=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--readers", type=int, nargs="+", default=list(READERS))
    parser.add_argument(
        "--rows", nargs="+", default=[""], metavar="PART", help="only rows whose name has one of these"
    )
    parser.add_argument("--hugging-face", action="store_true", help="measure Hugging Face's steps too")
    options = parser.parse_args()
    results = []
    for row in rows(options):
        if any(part in row.name for part in options.rows):
            results.append(measure(row, options))
            print(shown(results[-1]), flush=True)
            gc.collect()
            if ON_GPU:
                torch.cuda.empty_cache()
    measuring.publish(options, "steps", [shown(result) for result in results], results=results)


if __name__ == "__main__":
    main()
