"""What the benchmarks share: encoders of known sizes, timing, tables and JSON files.

Encoders have random weights: how long they take does not depend on them. On a GPU they compute in bfloat16.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
import transformers
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModel, LongformerConfig, ModernBertConfig, PretrainedConfig

from prefixprop.attention import BACKENDS
from prefixprop.models.embedded import load_tokenizer

ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
VOCABULARY, FIRST_WORD = 50_265, 5  # below the first word are special tokens
WARM_UP = 2  # calls that are not counted: kernels are compiled, memory is taken from the device
PROFILED_CALLS = 5
WORDS = ("time", "people", "way", "water", "day", "part", "sound", "work", "place", "year", "name", "form", "line")
OURS, THEIRS = "prefixprop", "Hugging Face"
# Hidden size, layers, heads and window. Tiny tries a script out, mini is the default encoder's size, base is
# longformer-base's or ModernBERT-base's.
SIZES = {
    "longformer": {"tiny": (32, 2, 2, 8), "mini": (384, 6, 12, 512), "base": (768, 12, 12, 512)},
    "modernbert": {"tiny": (32, 3, 2, 8), "mini": (384, 6, 6, 128), "base": (768, 22, 12, 128)},
}

Run = Callable[[], object]
Inputs = Mapping[str, Tensor]
Step = Callable[[Any, Inputs], object]
Model = TypeVar("Model", bound=nn.Module)


def encoder_config(model: str, size: str, longest: int, dropout: float = 0.0, **options: Any) -> PretrainedConfig:
    hidden, layers, heads, window = SIZES[model][size]
    options |= {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    if model == "modernbert":
        options |= dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), dropout)
        options |= {"intermediate_size": 3 * hidden // 2, "max_position_embeddings": longest}
        return ModernBertConfig(local_attention=window, **options)
    options |= dict.fromkeys(("attention_probs_dropout_prob", "hidden_dropout_prob"), dropout)
    options |= {"intermediate_size": 4 * hidden, "max_position_embeddings": longest + 2, "vocab_size": VOCABULARY}
    return LongformerConfig(attention_window=window, pad_token_id=1, type_vocab_size=1, **options)


def frozen_encoder(config: PretrainedConfig) -> Any:
    gc.collect()  # models measured before are in cycles, and would count as memory of this one
    torch.manual_seed(0)
    with torch.device(DEVICE):  # where random weights take less time
        model = AutoModel.from_config(config)
    return model.requires_grad_(False).to(DEVICE, DTYPE)


def trained_run(folder: Path, size: str, longest: int, method: str) -> Path:
    """A run of this method on a Longformer of this size, which lies in `folder`/base."""
    tokenizer = load_tokenizer(longest)
    config = encoder_config("longformer", size, longest)
    config.pad_token_id = tokenizer.pad_token_id
    AutoModel.from_config(config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    rows = [{"text": document(20, seed), "label": "ab"[seed % 2]} for seed in range(24)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    few = ("--method", method, "--max-length", str(longest), "--epochs", "1", "--no-baseline")
    where = ("--model", str(folder / "base"), "--run-dir", str(folder / "run0"))
    command = ("prefixprop", "train", "--train-files", str(folder / "data.jsonl"), *where, *few)
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
    return folder / "run0"


def document(words: int, seed: int) -> str:
    """A text of so many words, each of which is one token."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def twin_of(model: Model) -> Model:
    """Another model on the same weights, so that two can be timed in turns in the memory of one."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def random_inputs(batch: int, length: int, global_tokens: int = 0) -> dict[str, Tensor]:
    """Documents that fill the whole length."""
    inputs = {"input_ids": torch.randint(FIRST_WORD, VOCABULARY, (batch, length), device=DEVICE)}
    if global_tokens:
        inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
        inputs["global_attention_mask"][:, :global_tokens] = 1
    return inputs


@dataclass(frozen=True)
class Timing:
    """Seconds of each measurement, and the peak of memory allocated meanwhile, weights included.

    `peak_gib` is None on a CPU, where it is not counted. No seconds: the device had too little memory.
    """

    seconds: tuple[float, ...]
    peak_gib: float | None

    @property
    def median(self) -> float | None:
        return median(self.seconds) if self.seconds else None

    def over(self, other: Timing | None) -> float | None:
        """How many times as long as the other; None: one of them was not measured."""
        if other is None or self.median is None or other.median is None:
            return None
        return self.median / other.median

    def __str__(self) -> str:
        if self.median is None:
            return "out of memory"
        return f"{self.median:.3g} s" if self.median >= 1 else f"{1000 * self.median:.3g} ms"

    @property
    def record(self) -> dict[str, Any]:
        return {"out_of_memory": not self.seconds, "median_s": self.median, **asdict(self)}


def measure_in_turns(runs: Mapping[str, Run], repeats: int, calls: int = 1) -> dict[str, Timing]:
    """Time several things in turns (A B C, B C A, ...), so that a drift of the machine affects them all alike.

    A measurement is the mean of `calls` calls that do not wait for each other's results. What runs out of the
    device's memory is left out from then on; the others continue.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}  # seconds and peaks
    names = list(runs)
    for turn in range(WARM_UP + repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if name not in found:
                continue
            try:
                measured = _timed(runs[name], calls)
            except torch.OutOfMemoryError:
                del found[name]
                gc.collect()  # the error's traceback holds tensors in cycles
                torch.cuda.empty_cache()
                continue
            if turn >= WARM_UP:
                found[name].append(measured)
    timings = dict.fromkeys(names, Timing((), None))
    for name, measurements in found.items():
        seconds, peaks = zip(*measurements, strict=True)
        timings[name] = Timing(seconds, max(peaks) if ON_GPU else None)
    return timings


def _timed(run: Run, calls: int) -> tuple[float, float]:
    """Mean seconds of a call, and the peak of memory in GiB."""
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        run()
    if ON_GPU:
        torch.cuda.synchronize()
    took = (time.perf_counter() - started) / calls
    return took, torch.cuda.max_memory_allocated() / 2**30 if ON_GPU else 0.0


def forward(model: Any, inputs: Inputs) -> None:
    with torch.no_grad():
        model(**inputs)


def step(model: Any, inputs: Inputs, in_place: bool = False) -> None:
    """Forward and backward of all that is trained; `in_place` leaves gradients where they are, for a CUDA graph."""
    model(**inputs).last_hidden_state.sum().backward()
    model.zero_grad(set_to_none=not in_place)


def step_to_embeddings(model: Any, inputs: Inputs) -> None:
    """Forward and backward through a frozen encoder, as with a prefix."""
    masks = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}
    embedded = model.get_input_embeddings()(inputs["input_ids"]).requires_grad_()
    model(inputs_embeds=embedded, **masks).last_hidden_state.sum().backward()


def compare_passes(
    models: Mapping[str, Any], inputs: Inputs, step: Step, repeats: int, recorded: bool = False
) -> Iterator[dict[str, Any]]:
    """Time a forward and a training step of ours, and of Hugging Face's if it is among the models, in turns.

    `recorded` plays ours as a CUDA graph, as `train` does with short documents.
    """
    for name, work in (("forward", forward), ("step", step)):
        runs: dict[str, Run] = {who: partial(work, model, inputs) for who, model in models.items()}
        if recorded:
            runs[OURS] = cuda_graph(runs[OURS])
        timings = measure_in_turns(runs, repeats)
        ours, theirs = timings[OURS], timings.get(THEIRS)
        ratio = None if theirs is None else theirs.over(ours)
        yield {"pass": name, "hugging_face": theirs, "prefixprop": ours, "ratio": ratio}


def cuda_graph(run: Run) -> Run:
    for _ in range(2):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def compared_cells(result: Mapping[str, Any]) -> dict[str, str]:
    """What a table shows of a result of `compare_passes`."""
    timings = [timing for timing in (result["hugging_face"], result["prefixprop"]) if timing is not None]
    return {
        "pass": result["pass"],
        THEIRS: str(result["hugging_face"] or ""),
        OURS: str(result["prefixprop"]),
        "ratio": f"{result['ratio']:.1f}×" if result["ratio"] else "",
        "peak GiB": " → ".join(f"{timing.peak_gib:.1f}" for timing in timings if timing.peak_gib is not None),
    }


def profile_of(run: Run) -> tuple[float, float]:
    """Milliseconds of one call: of the GPU's kernels, and of the host until it has started all of them.

    The first is the mean of several calls after a warm-up.
    """
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    host = time.perf_counter() - started
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED_CALLS):
            run()
        torch.cuda.synchronize()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(kernel.self_device_time_total for kernel in kernels) / 1000 / PROFILED_CALLS, 1000 * host


def make_parser(
    description: str | None, repeats: int, batch: int | None = None, models: Sequence[str] = tuple(SIZES)
) -> argparse.ArgumentParser:
    """A parser with the options that the benchmarks have in common; `batch` is the usual number of documents."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=models, default=models[0])
    parser.add_argument("--size", choices=("tiny", "mini", "base"), default="mini", help="tiny tries the script out")
    parser.add_argument("--backend", choices=("auto", *BACKENDS), default="auto", help="computes our attention")
    parser.add_argument("--repeats", type=int, default=repeats, help="measurements; their median is shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    if batch is not None:
        parser.add_argument("--batch", type=int, default=batch, help="documents in a batch")
        parser.add_argument("--length", type=int, default=4096, help="tokens of each")
    transformers.logging.set_verbosity_error()  # Longformer logs at every call that it pads
    return parser


def show(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table; the keys are its columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(rows[0]):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row.values())
    Console(width=120).print(table)


def publish(options: argparse.Namespace, benchmark: str, rows: Sequence[Mapping[str, str]], **numbers: Any) -> None:
    """Print the table, and write all numbers and what they were measured with, if a file was given."""
    device = torch.cuda.get_device_name() if ON_GPU else f"CPU, {torch.get_num_threads()} threads"
    dtype = str(DTYPE).removeprefix("torch.")
    show(f"{benchmark}: {options.model}, {options.size} size, {dtype}, {device}", rows)
    if options.json is not None:
        record = {"benchmark": benchmark, "device": device, "dtype": dtype}
        record |= {"torch": torch.__version__, "transformers": transformers.__version__}
        given = {name: value for name, value in vars(options).items() if name != "json" and value is not None}
        text = json.dumps(record | given | numbers, indent=2, default=lambda timing: timing.record)
        options.json.write_text(text + "\n", encoding="utf-8")


def add_line(path: Path, line: Mapping[str, Any]) -> None:
    """Print a result, and append it to a file of JSON lines."""
    text = json.dumps(line)
    print(text, flush=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
