"""How many documents a second `prefixprop serve` answers, and how long a client waits.

    python benchmarks/serving.py --length 512 --clients 1 8 64 --runs 1 20

Every client sends one document a request, and the next one when it is answered. Clients are a process of their own.
Three ways take turns on the same documents, so that whatever else the machine does affects them alike:

- `served`: over HTTP, in batches of all clients' documents;
- `one by one`: the same number of threads, with a lock around `predict` of one document, without HTTP;
- `predict`: one call with all documents, which no service can pass.

The runs are of one reader each, on the default encoder; what they answer does not change how long it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import torch

from prefixprop.predict import PredictionOptions, TrainedModel
from prefixprop.predict.loading import load_runs
from prefixprop.predict.trained_model import predict_with_each
from prefixprop.serve.app import Limits, create_app
from prefixprop.serve.server import bound_socket, new_server

from measuring import show

WORDS = ("time", "people", "way", "water", "day", "part", "sound", "work", "place", "year", "name", "form", "line")
MOST_SECONDS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--length", type=int, default=512, help="tokens of a document")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--documents", type=int, default=128, help="of a measurement; at most 16 for each client")
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--repeats", type=int, default=3, help="measurements; their median is shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        trained = load_runs(reader_runs(Path(folder), max(options.runs)))
    for count in options.runs:
        runs = {f"run{place}": replace(run, max_length=options.length) for place, run in enumerate(trained[:count])}
        results += measure(runs, options)
    rows = []
    for row in results:
        cells = {name: str(row[name]) for name in ("runs", "clients", "way")}
        cells["documents/s"] = f"{row['documents_per_s']:.2f}"
        for share in (50, 95, 99):
            cells[f"p{share} ms"] = f"{1000 * row[f'p{share}_s']:,.0f}" if f"p{share}_s" in row else ""
        rows.append(cells | {"of predict": f"{row['of_predict']:.0%}"})
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    show(f"serving: documents of {options.length} tokens, {device}", rows)
    if options.json is not None:
        given = {name: value for name, value in vars(options).items() if name != "json"}
        record = {"benchmark": "serving", "device": device, "torch": torch.__version__, **given, "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def reader_runs(folder: Path, count: int) -> list[Path]:
    """So many copies of a run, on a few short documents."""
    rows = [{"text": document(20, seed), "label": "ab"[seed % 2]} for seed in range(24)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    few = ("--method", "prefix-reading", "--max-length", "32", "--epochs", "1", "--no-baseline")
    command = ("prefixprop", "train", "--train-files", str(folder / "data.jsonl"), "--run-dir", str(folder / "0"))
    subprocess.run([sys.executable, "-m", *command, *few], check=True, stdout=subprocess.DEVNULL)
    return [folder / "0", *(shutil.copytree(folder / "0", folder / str(number)) for number in range(1, count))]


def document(words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def measure(runs: dict[str, TrainedModel], options: argparse.Namespace) -> list[dict[str, Any]]:
    bound = bound_socket("127.0.0.1", 0)
    app = create_app(runs, Limits(seconds=MOST_SECONDS), batch_tokens=options.batch_tokens)
    server = new_server(app, finish_seconds=1)
    threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
    address = f"http://127.0.0.1:{bound.getsockname()[1]}"
    results = []
    with multiprocessing.get_context("spawn").Pool(1) as clients:
        for count in options.clients:
            texts = [document(options.length, seed) for seed in range(min(options.documents, 16 * count))]
            ways: dict[str, Callable[[], tuple[float, list[float]]]] = {
                "served": lambda texts=texts, count=count: clients.apply(ask_all, (address, texts, count)),
                "one by one": lambda texts=texts, count=count: one_by_one(list(runs.values()), texts, count),
                "predict": lambda texts=texts: together(list(runs.values()), texts, options.batch_tokens),
            }
            for way in ways.values() if count == options.clients[0] else ():  # once without being counted
                way()
            rounds = [{name: way() for name, way in ways.items()} for _ in range(options.repeats)]
            for name in ways:
                rates = [len(texts) / each[name][0] for each in rounds]
                shares = [len(texts) / each[name][0] / (len(texts) / each["predict"][0]) for each in rounds]
                waited = np.concatenate([each[name][1] for each in rounds])
                row = {"runs": len(runs), "clients": count, "way": name, "documents": len(texts)}
                row |= {"documents_per_s": median(rates), "of_predict": median(shares), "of_predict_each": shares}
                row |= {f"p{share}_s": float(np.percentile(waited, share)) for share in (50, 95, 99) if len(waited)}
                results.append(row)
    server.should_exit = True
    return results


def ask_all(address: str, texts: Sequence[str], clients: int) -> tuple[float, list[float]]:
    """Seconds for all documents, and for each."""

    async def run() -> tuple[float, list[float]]:
        limits = httpx.Limits(max_connections=clients)
        async with httpx.AsyncClient(base_url=address, timeout=MOST_SECONDS, limits=limits) as client:
            left, waited = iter(texts), []

            async def one_client() -> None:
                for text in left:
                    started = time.perf_counter()
                    (await client.post("/v1/predict", json={"texts": [text]})).raise_for_status()
                    waited.append(time.perf_counter() - started)

            started = time.perf_counter()
            await asyncio.gather(*(one_client() for _ in range(clients)))
            return time.perf_counter() - started, waited

    return asyncio.run(run())


def one_by_one(runs: list[TrainedModel], texts: Sequence[str], clients: int) -> tuple[float, list[float]]:
    lock, options = threading.Lock(), PredictionOptions()

    def one(text: str) -> float:
        started = time.perf_counter()
        with lock:
            predict_with_each(runs, [text], options)
        return time.perf_counter() - started

    with ThreadPoolExecutor(clients) as pool:
        started = time.perf_counter()
        waited = list(pool.map(one, texts))
        return time.perf_counter() - started, waited


def together(runs: list[TrainedModel], texts: list[str], batch_tokens: int) -> tuple[float, list[float]]:
    started = time.perf_counter()
    predict_with_each(runs, texts, PredictionOptions(batch_tokens=batch_tokens))
    return time.perf_counter() - started, []


if __name__ == "__main__":
    main()
