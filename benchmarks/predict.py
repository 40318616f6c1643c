"""How many documents and tokens a second `prefixprop predict` reads, and what many of them cost.

    python benchmarks/predict.py --size base --json predict.json
    RAYON_NUM_THREADS=2 python benchmarks/predict.py --size tiny --lengths 4096 --texts articles.jsonl  # tokenize

The ways take turns on the same documents:

- `predict`: as the command does it, from a file of JSON lines to another;
- `pipeline`: transformers' text classification pipeline with the same encoder, in Hugging Face's attention, on a
  GPU with an eighth of the documents;
- `forward`: the same documents as tokens, through our model alone;
- `tokenize`: their tokens alone. Beside the rate are those of a core, and of the one thread that calls the tokenizer:
  the latter is the most that one process could tokenize with any number of cores.

On a GPU, `busy` is the share of the time of `predict` in which it computes. The second table divides the work among
GPUs, or machines like this one where there is none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import pipeline

from prefixprop.cli.predict import Job
from prefixprop.data import encode_documents
from prefixprop.data.files import Columns
from prefixprop.models.gpu import default_batch_tokens
from prefixprop.predict import PredictionOptions, TrainedModel, load_run
from prefixprop.predict.inputs import read_inputs
from prefixprop.predict.outputs import Origin
from prefixprop.predict.trained_model import logits_of_each

from measuring import DEVICE, DTYPE, ON_GPU, document, show, trained_run

MACHINES, ARCHIVES = (1, 8, 64), {"a million": 10**6, "a billion": 10**9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "mini", "base"), default="mini", help="tiny tries the script out")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 4096], help="tokens of a document")
    parser.add_argument("--documents", type=int, nargs="+", help="of a measurement, or of each length")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="a table with texts, in place of random words")
    parser.add_argument("--batch-tokens", type=int, default=default_batch_tokens(torch.device(DEVICE)))
    parser.add_argument("--method", default="prefix-propagation")
    parser.add_argument("--repeats", type=int, default=3, help="measurements; their median is shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    options = parser.parse_args()
    options.documents = options.documents or [(2**24 if ON_GPU else 2**16) // length for length in options.lengths]
    options.documents *= len(options.lengths) // len(options.documents)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # or the pipeline turns it off, for predict too
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        run = load_run(trained_run(Path(folder), options.size, max(options.lengths), options.method))
        results: list[dict[str, Any]] = []
        for length, count in zip(options.lengths, options.documents, strict=True):
            results += measure(run, Path(folder), length, count, options)
            for row in results[-4:]:  # whoever stops it later has these
                print(row["length"], row["way"], f"{row['documents_per_s']:.2f} documents/s", flush=True)
    device = torch.cuda.get_device_name() if ON_GPU else f"CPU, {torch.get_num_threads()} threads"
    show(f"predict: {options.size} size, {device}", [shown(row) for row in results])
    costs = [cost(row) for row in results if row["way"] == "predict"]
    show(f"hours on so many {'GPUs' if ON_GPU else 'machines'}", [shown_cost(row) for row in costs])
    if options.json is not None:
        given = {name: value for name, value in vars(options).items() if name not in ("json", "texts")}
        record = {"benchmark": "predict", "device": device, "dtype": str(DTYPE), "torch": torch.__version__, **given}
        text = json.dumps(record | {"results": results, "costs": costs}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


def measure(
    run: TrainedModel, folder: Path, length: int, count: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    texts = [document(length - 2, seed) for seed in range(count)]
    if options.texts is not None:
        found = read_inputs(options.texts, Columns(text="text"))
        texts = [each.text for each in itertools.islice(found, count)]
    source, output = folder / f"{length}.jsonl", folder / "output.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    how = PredictionOptions(batch_tokens=options.batch_tokens)
    pieces = encode_documents(texts, run.tokenizer, length)
    settings = {"tokenizer": str(folder / "base"), "device": DEVICE, "dtype": DTYPE}
    classify = pipeline("text-classification", model=str(folder / "base"), **settings)
    batch = max(1, options.batch_tokens // length)
    few = texts[: max(1, len(texts) // 8)] if ON_GPU else texts

    def predict() -> None:
        job = Job({"run": run}, "jsonl", how, output, Origin("run", "", "truncate", "text", None))
        job.console.quiet = True
        job.run(read_inputs(source, Columns(text="text")), len(texts))
        output.unlink()

    ways: dict[str, Callable[[], Any]] = {
        "predict": predict,
        "pipeline": lambda: classify(few, truncation=True, max_length=length, batch_size=batch),
        "forward": lambda: logits_of_each([run], pieces, how),
        "tokenize": lambda: encode_documents(texts, run.tokenizer, length),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(-ON_GPU, options.repeats):  # on a GPU the first turn, which compiles kernels, is not counted
        for way, work in ways.items():
            took = timed(work)
            seconds[way] += [took] if turn >= 0 else []
    tokens = sum(map(len, pieces.input_ids))
    rates = {way: len(few if way == "pipeline" else texts) / median(times) for way, times in seconds.items()}
    rows = [
        {
            "length": length,
            "way": way,
            "documents_per_s": rate,
            "tokens_per_s": rate * tokens / len(texts),
            "of_forward": rate / rates["forward"],
            "seconds": seconds[way],
        }
        for way, rate in rates.items()
    ]
    if ON_GPU:
        rows[0]["busy"] = busy(predict)
    process, thread = time.process_time(), time.thread_time()
    ways["tokenize"]()
    rows[-1]["tokens_per_core_s"] = tokens / (time.process_time() - process)
    rows[-1]["tokens_per_calling_thread_s"] = tokens / (time.thread_time() - thread)
    return rows


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def busy(work: Callable[[], Any]) -> float:
    """The share of the time in which the GPU computes."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        took = timed(work)
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    microseconds, end = 0.0, 0.0
    for start, stop in sorted((kernel.time_range.start, kernel.time_range.end) for kernel in kernels):
        microseconds += max(0.0, stop - max(start, end))  # copies and kernels may overlap
        end = max(end, stop)
    return microseconds / 1e6 / took


def shown(row: dict[str, Any]) -> dict[str, str]:
    cells = {"length": str(row["length"]), "way": row["way"]}
    cells |= {"documents/s": f"{row['documents_per_s']:,.2f}", "tokens/s": f"{row['tokens_per_s']:,.0f}"}
    cells |= {"of forward": f"{row['of_forward']:.0%}", "busy": f"{row['busy']:.0%}" if "busy" in row else ""}
    for name in ("core", "calling_thread"):
        rate = row.get(f"tokens_per_{name}_s")
        cells[f"tokens/s of a {name.replace('_', ' ')}"] = "" if rate is None else f"{rate:,.0f}"
    return cells


def cost(row: dict[str, Any]) -> dict[str, Any]:
    """Documents in an hour of one GPU, and hours of archives on several."""
    an_hour = 3600 * row["documents_per_s"]
    hours = {name: {count: size / an_hour / count for count in MACHINES} for name, size in ARCHIVES.items()}
    return {"length": row["length"], "documents_per_hour": an_hour, "hours": hours}


def shown_cost(row: dict[str, Any]) -> dict[str, str]:
    cells = {"length": str(row["length"]), "documents/hour of one": f"{row['documents_per_hour']:,.0f}"}
    for name, hours in row["hours"].items():
        cells |= {f"{name}, {count}": f"{value:,.3g}" for count, value in hours.items()}
    return cells


if __name__ == "__main__":
    main()
