"""How many documents a second `prefixprop serve` answers, and how long a client waits.

    python benchmarks/serving.py --size base --runs 1 20 200 --json serving.json
    python benchmarks/serving.py --requests 100000    # does its memory grow?

Every client sends one document a request, and the next one when it is answered. Clients and services are processes of
their own. The ways take turns on the same documents:

- `served`: over HTTP, in batches of all clients' documents;
- `one by one`: the same number of threads, with a lock around `predict` of one document, without HTTP;
- `pipeline`: transformers' text classification pipeline behind FastAPI, one request after the other, for one run;
- `predict`: one call with many documents;
- `forward`: the same documents as tokens, through the model alone.

The runs are of one reader each, on one Longformer with random weights; how long they take does not depend on those.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from transformers import pipeline

from prefixprop.data import encode_documents
from prefixprop.models.gpu import default_batch_tokens
from prefixprop.predict import PredictionOptions, TrainedModel
from prefixprop.predict.loading import load_runs
from prefixprop.predict.trained_model import logits_of_each, predict_with_each

from measuring import DEVICE, DTYPE, ON_GPU, document, show, trained_run

LONGEST, MOST_SECONDS = 4096, 600
SPAWN = multiprocessing.get_context("spawn")
Measured = tuple[float, list[float]]  # seconds in all, and of every request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "mini", "base"), default="mini", help="tiny tries the script out")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, LONGEST], help="tokens of a document")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--seconds", type=float, default=2, help="of a measurement; requests under way are finished")
    parser.add_argument("--batch-tokens", type=int, default=default_batch_tokens(torch.device(DEVICE)))
    parser.add_argument("--load-processes", type=int, default=max(1, (os.cpu_count() or 1) // 4), help="for clients")
    parser.add_argument("--only", nargs="+", metavar="WAY", help="only these ways, beside predict and forward")
    parser.add_argument("--requests", type=int, help="send so many short requests, and show the memory instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SPAWN.Pool(options.load_processes) as pool:
        folders = reader_runs(Path(folder), 1 if options.requests else max(options.runs), options.size)
        if options.requests:
            show("memory of the service", list(endurance(folders, pool, options)))
            return
        results: list[dict[str, Any]] = []
        for count in options.runs:
            for row in measure(folders[:count], Path(folder, "base"), pool, options):
                results.append(row)
                write(results, options)  # at once: a run that is stopped keeps what it measured
    show(f"serving: {options.size} size, {device()}", [shown(row) for row in results])


def device() -> str:
    return torch.cuda.get_device_name() if ON_GPU else f"CPU, {torch.get_num_threads()} threads"


def write(results: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    if options.json is not None:
        given = {name: value for name, value in vars(options).items() if name != "json"}
        record = {"benchmark": "serving", "device": device(), "torch": torch.__version__, **given, "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def shown(row: dict[str, Any]) -> dict[str, str]:
    cells = {name: str(row[name]) for name in ("length", "runs", "clients", "way")}
    cells["documents/s"] = f"{row['documents_per_s']:.2f}"
    for share in (50, 95, 99):
        cells[f"p{share} ms"] = f"{row[f'p{share}_ms']:,.0f}" if f"p{share}_ms" in row else ""
    return cells | {f"of {way}": f"{row[f'of_{way}']:.0%}" for way in ("predict", "forward")}


def reader_runs(folder: Path, count: int, size: str) -> list[Path]:
    """So many runs of one reader, all alike, on an encoder of this size in `folder`/base."""
    first = trained_run(folder, size, LONGEST, "prefix-reading")
    others = (folder / f"run{number}" for number in range(1, count))
    return [first, *(shutil.copytree(first, other, copy_function=os.link) for other in others)]


# --- services, each in a process of its own -----------------------------------------------------------------------


@contextmanager
def service(work: Callable[..., None], *given: Any) -> Iterator[tuple[int, int]]:
    """A process that does this work, which is told how to say its port; its id and port."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(theirs, *given))
    process.start()
    theirs.close()
    try:
        yield process.pid or 0, ours.recv()
    finally:
        process.terminate()
        process.join()


def serve(told: Any, folders: Sequence[Path], batch_tokens: int) -> None:
    from prefixprop.serve.app import Limits, create_app
    from prefixprop.serve.encoder import EncoderProcess

    encoder = EncoderProcess({folder.name: folder for folder in folders}, batch_tokens)
    listen(told, create_app(encoder, Limits(seconds=MOST_SECONDS)))


def serve_pipeline(told: Any, folder: Path) -> None:
    transformers.logging.set_verbosity_error()
    settings = {"tokenizer": str(folder), "device": DEVICE, "dtype": DTYPE}
    classify = pipeline("text-classification", model=str(folder), **settings)
    app, lock = FastAPI(), threading.Lock()

    def answer(texts: list[str]) -> Any:
        with lock:
            return classify(texts, truncation=True, max_length=LONGEST)

    @app.post("/v1/predict")
    async def predict(request: Request) -> Any:
        return await run_in_threadpool(answer, (await request.json())["texts"])

    listen(told, app)


def listen(told: Any, app: Any) -> None:
    from prefixprop.serve.app import bound_socket, new_server

    bound = bound_socket("127.0.0.1", 0)
    bound.listen()
    told.send(bound.getsockname()[1])
    new_server(app, finish_seconds=1).run(sockets=[bound])


# --- clients ------------------------------------------------------------------------------------------------------


def ask_for(port: int, texts: Sequence[str], clients: int, end: float, requests: int) -> list[float]:
    """Ask with so many clients until a time, or for so many requests; the seconds of each."""
    head = "POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    bodies = [json.dumps({"texts": [text]}).encode() for text in texts]
    questions = [head.format(len(body)).encode() + body for body in bodies]
    waited: list[float] = []
    left = iter(range(requests))

    async def one_client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.time() < end and (place := next(left, None)) is not None:
            started = time.perf_counter()
            writer.write(questions[(number + place) % len(questions)])
            answered = await reader.readuntil(b"\r\n\r\n")
            assert answered.startswith(b"HTTP/1.1 200"), answered
            size = int(answered.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(size)
            waited.append(time.perf_counter() - started)
        writer.close()

    async def all_clients() -> None:
        await asyncio.gather(*map(one_client, range(clients)))

    asyncio.run(all_clients())
    return waited


def over_http(
    port: int, pool: Any, texts: Sequence[str], clients: int, seconds: float, requests: int = 10**9
) -> Measured:
    count = min(clients, pool._processes)
    shares = [clients // count + (number < clients % count) for number in range(count)]
    started = time.time()
    work = [
        (port, texts[number::count] or texts, own, started + seconds, requests // count)
        for number, own in enumerate(shares)
    ]
    waited = [one for each in pool.starmap(ask_for, work, chunksize=1) for one in each]
    return time.time() - started, waited


def one_by_one(runs: list[TrainedModel], texts: Sequence[str], clients: int, seconds: float) -> Measured:
    lock, options, waited = threading.Lock(), PredictionOptions(), []
    started = time.perf_counter()

    def client(number: int) -> None:
        while time.perf_counter() < started + seconds:
            asked = time.perf_counter()
            with lock:
                predict_with_each(runs, [texts[number % len(texts)]], options)
            waited.append(time.perf_counter() - asked)

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(client, range(clients)))
    return time.perf_counter() - started, waited


# --- measurements -------------------------------------------------------------------------------------------------


def measure(folders: Sequence[Path], base: Path, pool: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    runs = load_runs(folders)
    with ExitStack() as stack:
        (_, port) = stack.enter_context(service(serve, folders, options.batch_tokens))
        ways: dict[str, Callable[..., Measured]] = {"served": partial(over_http, port, pool)}
        ways["one by one"] = partial(one_by_one, runs)
        if len(folders) == 1:
            ways["pipeline"] = partial(over_http, stack.enter_context(service(serve_pipeline, base))[1], pool)
        ways = {name: way for name, way in ways.items() if not options.only or name in options.only}
        for length in options.lengths:
            texts = [document(length - 2, seed) for seed in range(64)]
            rates = own_rates(runs, texts, options)
            for clients in options.clients:
                measured = {}
                for way in ways.values():  # without being counted; a GPU meets all shapes of batches
                    few = (texts, clients, options.seconds) if ON_GPU else (texts[:8], min(clients, 8), 0.5)
                    way(*few)
                for name, way in ways.items():
                    seconds, waited = way(texts, clients, options.seconds)
                    quantiles = {f"p{share}_ms": 1000 * float(np.percentile(waited, share)) for share in (50, 95, 99)}
                    measured[name] = {"documents_per_s": len(waited) / seconds, **quantiles}
                for name, found in (
                    measured | {way: {"documents_per_s": rate} for way, rate in rates.items()}
                ).items():
                    shares = {f"of_{way}": found["documents_per_s"] / rate for way, rate in rates.items()}
                    yield {"length": length, "runs": len(runs), "clients": clients, "way": name, **found, **shares}
                    print(length, len(runs), clients, name, found, flush=True)


def own_rates(runs: list[TrainedModel], texts: list[str], options: argparse.Namespace) -> dict[str, float]:
    """Documents a second of `predict`, and of the model alone."""
    how = PredictionOptions(batch_tokens=options.batch_tokens)
    pieces = encode_documents(texts, runs[0].tokenizer, runs[0].max_length)
    ways = {
        "predict": lambda: predict_with_each(runs, texts, how),
        "forward": lambda: logits_of_each(runs, pieces, how),
    }
    rates = {}
    for name, way in ways.items():
        if ON_GPU:
            way()
        started, count = time.perf_counter(), 0
        while not count or time.perf_counter() < started + options.seconds:
            way()
            count += len(texts)
        rates[name] = count / (time.perf_counter() - started)
    return rates


def endurance(folders: Sequence[Path], pool: Any, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Megabytes of the service's processes after each tenth of the requests."""
    with service(serve, folders, options.batch_tokens) as (pid, port):
        for tenth in range(11):
            if tenth:
                over_http(port, pool, [document(10, 1)], 16, MOST_SECONDS * 10, options.requests // 10)
            row = {"requests": f"{tenth * options.requests // 10:,}"}
            yield row | {name: f"{resident_mb(process):.0f} MB" for name, process in processes_of(pid).items()}


def processes_of(pid: int) -> dict[str, int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    sizes = sorted(map(int, children), key=resident_mb)
    return {"service": pid} | ({"encoder": sizes[-1]} if sizes else {})


def resident_mb(pid: int) -> float:
    with suppress(FileNotFoundError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
    return 0.0


if __name__ == "__main__":
    main()
