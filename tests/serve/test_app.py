"""The service at a real socket: its answers, its limits, and clients that misbehave."""

from __future__ import annotations

import gc
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import httpx
import numpy as np
import pytest

from command_line import wait_until
from prefixprop.evaluate import Mix
from prefixprop.evaluate.baseline import fit_tfidf
from prefixprop.evaluate.mixing import READERS, WORDS
from prefixprop.predict import TrainedModel
from prefixprop.predict.loading import load_runs
from prefixprop.serve import encoder
from prefixprop.serve.app import Limits
from prefixprop.serve.encoder import Encoder

from serving import make_runs, served
from tiny_runs import texts

DOCUMENTS = [*texts(10, seed=3), "", "w4 " * 70, "w5 <b>😀</b>"]
LONG, SECRET = "w4 " * 70, "w6 an unusual word"
Runs = dict[str, TrainedModel]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folders = make_runs(tmp_path_factory.mktemp("runs"))
    return dict(zip(folders, load_runs(list(folders.values())), strict=True))


@pytest.fixture(scope="module")
def client(runs: Runs) -> Iterator[httpx.Client]:
    with served(Encoder(runs)) as client:
        yield client


class Gate:
    """Holds every batch until it is opened, and records which runs and how many texts each has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.batches, self.original = threading.Event(), [], encoder.predict_with_each
        monkeypatch.setattr(encoder, "predict_with_each", self)

    def __call__(self, runs: Any, texts: list[str], options: Any) -> Any:
        self.batches.append(({run.run_dir.name for run in runs}, texts))
        assert self.open.wait(30)
        return self.original(runs, texts, options)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


def ask(client: httpx.Client, texts: list[str], **options: Any) -> httpx.Response:
    return client.post("/v1/predict", json={"texts": texts, **options})


def alike(one: dict[str, Any], other: dict[str, Any], apart: float = 1e-5) -> bool:
    """Whether they are equal but for the last digits of numbers."""
    return one.keys() == other.keys() and all(
        value == (pytest.approx(other[name], abs=apart) if isinstance(value, float | dict) else other[name])
        for name, value in one.items()
    )


def under_way(client: httpx.Client) -> float:
    return float(client.get("/metrics").text.partition("\nprefixprop_documents_under_way ")[2].partition("\n")[0])


@pytest.mark.parametrize("long", ["truncate", "chunk-average"])
def test_answers_are_those_of_predict_whoever_asks_beside(client: httpx.Client, runs: Runs, long: str) -> None:
    expected = {name: list(run.predict_stream(DOCUMENTS, long=long)) for name, run in runs.items()}
    questions = [([document], [name]) for document in DOCUMENTS for name in runs]
    questions += [(DOCUMENTS, list(runs)[::-1]), (DOCUMENTS[:2], ["tone", "tuned"]), (DOCUMENTS, None)]

    def answer(question: Any) -> Any:
        return ask(client, question[0], long=long, runs=question[1]).json()["predictions"]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(answer, questions))
    for (asked, names), found in zip(questions, answers, strict=True):
        assert len(found) == len(asked)
        for text, by_run in zip(asked, found, strict=True):
            assert list(by_run) == (names or list(runs))
            for name, one in by_run.items():
                own = vars(expected[name][DOCUMENTS.index(text)])
                assert alike(one, {key: value for key, value in own.items() if value is not None})


def test_reasons_are_those_of_explain_for_every_method(runs: Runs) -> None:
    text = " ".join(f"w{4 + number % 20}." for number in range(200))
    (words,) = fit_tfidf(texts(60, seed=9), np.arange(60) % 3, 3, [1.0])
    tfidf = replace(runs["tone"], model=None, mix=Mix({WORDS: 0}, {WORDS: 0.7}), words=words)
    mix = replace(runs["tone"], mix=Mix({READERS: 0, WORDS: 0}, {READERS: 0.5, WORDS: 0.8}), words=words)
    every = {**runs, "tfidf": tfidf, "mix": mix}
    with served(Encoder(every)) as client:
        for (name, run), long in product(every.items(), ("truncate", "chunk-average")):
            answer = ask(client, [text], runs=[name], long=long, reasons=True).json()["predictions"][0][name]
            plain = ask(client, [text], runs=[name], long=long).json()["predictions"][0][name]
            (reason,), ((expected,)) = answer.pop("reasons"), run.explain([text], long=long)[0]
            assert reason["label"] == expected.label and alike(answer, plain)
            assert len(reason["passages"]) == len(expected.passages) > 0
            for found, passage in zip(reason["passages"], expected.passages, strict=True):
                assert alike(found, vars(passage), apart=1e-4)  # log-odds, which are larger
        assert ask(client, [""], runs=["mix"], reasons=True).json()["predictions"][0]["mix"]["reasons"]


def test_what_reasons_may_cost(runs: Runs) -> None:
    with served(Encoder(runs), Limits(texts=2, queue=3)) as client:
        assert ask(client, ["w4 w5"], runs=["tone"], reasons=True).status_code == 200
        refused = ask(client, ["w4", "w5"], runs=["tone"], reasons=True)
        assert refused.status_code == 413 and "at most 1 texts times runs" in refused.json()["detail"]
        refused = ask(client, ["w4 " * 70_000], runs=["tone"], reasons=True)
        assert refused.status_code == 413 and "at most 200,000 characters" in refused.json()["detail"]


def test_predictions_do_not_wait_for_reasons(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, original = threading.Event(), encoder.explain

    def slow(*arguments: Any, **options: Any) -> Any:
        assert opened.wait(30)
        return original(*arguments, **options)

    monkeypatch.setattr(encoder, "explain", slow)
    with ThreadPoolExecutor(1) as pool:
        explained = pool.submit(ask, client, ["w4 w5"], runs=["tone"], reasons=True)
        wait_until(lambda: under_way(client) > 1)
        assert ask(client, DOCUMENTS).status_code == 200 and not explained.done()
        opened.set()
        assert explained.result().json()["predictions"][0]["tone"]["reasons"]


def test_a_document_that_fails_fails_alone_and_no_word_of_it_is_told(
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    original = encoder.predict_with_each

    def fail(runs: Any, texts: list[str], options: Any) -> Any:
        if SECRET in texts:
            raise RuntimeError(SECRET)
        return original(runs, texts, options)

    monkeypatch.setattr(encoder, "predict_with_each", fail)
    *others, failed = ask(client, ["w4", "w5 w6", "w7", SECRET], runs=["tone"]).json()["predictions"]
    assert "could not be computed" in failed["tone"]["error"]
    assert [one["tone"]["label"] for one in others] == [
        one["tone"]["label"] for one in ask(client, ["w4", "w5 w6", "w7"], runs=["tone"]).json()["predictions"]
    ]
    alone = ask(client, [SECRET])
    assert alone.status_code == 500 and "could not be computed" in alone.json()["detail"]
    assert "A document failed: RuntimeError in test_app.py, line" in caplog.text
    told = str(failed) + alone.text + caplog.text + "".join(capfd.readouterr())
    assert SECRET not in told and "Traceback" not in told and __file__ not in told


def test_readers_of_all_clients_share_a_pass(client: httpx.Client, gate: Gate) -> None:
    asked = [([LONG], ["tuned"]), (["w5 w6"], ["tone"]), (["w7 w8"], ["topic"]), (["w9 w4 " * 20], ["topic"])]
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, client, asked[0][0], runs=asked[0][1])
        wait_until(lambda: len(gate.batches) == 1)
        others = [pool.submit(ask, client, each, runs=names) for each, names in asked[1:]]
        wait_until(lambda: under_way(client) == 4)
        gate.open.set()
        found = [each.result().json()["predictions"][0] for each in (first, *others)]
    assert [list(one) for one in found] == [names for _, names in asked]
    batches = [(names, sorted(each)) for names, each in gate.batches]
    assert sorted(batches[1:], key=str) == sorted(
        [({"tone", "topic"}, ["w5 w6", "w7 w8"]), ({"topic"}, asked[3][0])], key=str
    )  # and a much longer document is not padded with


def test_texts_of_a_request_share_a_batch_whatever_is_under_way(client: httpx.Client, gate: Gate) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, client, [LONG], runs=["tone"])]
        wait_until(lambda: len(gate.batches) == 1)
        answers.append(pool.submit(ask, client, [LONG] * 3, runs=["tone"]))
        wait_until(lambda: len(gate.batches) == 2)
        gate.open.set()
        assert all(answer.result().status_code == 200 for answer in answers)
    assert [len(each) for _, each in gate.batches] == [1, 3]


@pytest.mark.parametrize(("batches_at_once", "sizes"), [(2, [4, 4]), (3, [4, 2, 3])])
def test_batches_are_taken_while_others_are_under_way(
    runs: Runs, gate: Gate, batches_at_once: int, sizes: list[int]
) -> None:
    answering = Encoder(runs)
    assert answering.batches_at_once == 2  # on a CPU
    answering.batches_at_once = batches_at_once
    with served(answering) as client, ThreadPoolExecutor(sum(sizes)) as pool:
        answers = [pool.submit(ask, client, [LONG] * sizes[0], runs=["tone"])]
        wait_until(lambda: len(gate.batches) == 1)
        for number, size in enumerate(sizes[1:], start=2):
            for _ in range(size):
                assert len(gate.batches) < number  # too few wait
                answers.append(pool.submit(ask, client, [LONG], runs=["tone"]))
                wait_until(lambda: under_way(client) == sizes[0] + len(answers) - 1)
            wait_until(lambda number=number: len(gate.batches) == number)
        gate.open.set()
        assert all(answer.result().status_code == 200 for answer in answers)
    assert [len(each) for _, each in gate.batches] == sizes


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"texts": ["' + SECRET.encode(), 400, "Invalid JSON"),
        (b"", 400, "Invalid JSON"),
        (b'{"texts": "' + SECRET.encode() + b'"}', 422, "texts: Input should be a valid array"),
        ({"texts": [SECRET, 5]}, 422, "texts.1: Input should be a valid string"),
        ({"texts": []}, 422, "texts: List should have at least 1 item"),
        ({"texts": [SECRET], SECRET: 1}, 422, "unknown; choose among texts, runs, long, reasons"),
        ({"texts": [SECRET], "runs": [SECRET]}, 422, "one is unknown; choose among tone, topic, tuned"),
        ({"texts": [SECRET], "long": SECRET}, 422, "long: Input should be 'truncate' or 'chunk-average'"),
        ([SECRET], 422, "should be an object"),
        ({"texts": [SECRET] * 10_000}, 413, "10,000 texts; a request has at most 256"),
        (b" " * 50_000_000, 413, "at most 4 MB"),
        ([b" " * 1_000_000] * 50, 413, "at most 4 MB"),  # without a Content-Length
    ],
    ids=range(12),
)
def test_what_is_refused_is_said_without_a_word_of_the_document(
    client: httpx.Client, capfd: pytest.CaptureFixture[str], body: Any, status: int, words: str
) -> None:
    in_pieces = isinstance(body, list) and isinstance(body[0], bytes)
    content = iter(body) if in_pieces else body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/v1/predict", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status and words in answer.json()["detail"]
    assert SECRET not in answer.text + "".join(capfd.readouterr())
    assert ask(client, ["w4"]).status_code == 200


def test_other_content_is_refused(client: httpx.Client) -> None:
    """A form of a page elsewhere could send any other type without being asked."""
    assert client.post("/v1/predict", content=b'{"texts": ["w4"]}').status_code == 415


def test_a_full_queue_says_when_to_come_again(runs: Runs, gate: Gate) -> None:
    with served(Encoder(runs), Limits(texts=2, queue=3)) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, ["w4", "w5"])
        wait_until(lambda: under_way(client) == 2)
        refused = ask(client, ["w6", "w7"])
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
        assert "3 documents" in refused.json()["detail"]
        second = pool.submit(ask, client, ["w6"])
        wait_until(lambda: client.get("/readyz").status_code == 503)
        assert client.get("/healthz").status_code == 200
        gate.open.set()
        assert first.result().status_code == second.result().status_code == 200
        assert client.get("/readyz").status_code == client.head("/readyz").status_code == 200  # monitors send HEAD


def test_clients_that_hang_up_leave_the_queue(
    client: httpx.Client, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"texts": ["w9 w9"], "runs": ["tone"]}).encode()
    head = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(ask, client, [LONG], runs=["tuned"])
        wait_until(lambda: len(gate.batches) == 1)
        with socket.create_connection((client.base_url.host, client.base_url.port)) as hasty:
            hasty.sendall(head % len(body) + body)
            wait_until(lambda: under_way(client) == 2)
        wait_until(lambda: under_way(client) == 1)
        gate.open.set()
        assert kept.result().status_code == 200
    assert ask(client, ["w4"], runs=["tone"]).status_code == 200
    assert all(each != ["w9 w9"] for _, each in gate.batches)
    gc.collect()  # asyncio would log now what nobody has asked for
    assert not caplog.records


def test_slow_clients_and_slow_answers_end_at_the_limit(runs: Runs, gate: Gate) -> None:
    with served(Encoder(runs), Limits(seconds=0.5)) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port)) as slow:
            slow.sendall(
                b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b'Content-Length: 99\r\n\r\n{"texts": ['
            )
            late = ask(client, ["w4"])  # is taken meanwhile
            assert late.status_code == 504 and "within 0.5 seconds" in late.json()["detail"]
            assert b"408" in slow.recv(100)
            while slow.recv(1000):  # and the connection ends
                pass
        gate.open.set()
        wait_until(lambda: under_way(client) == 0)


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic key", "Bearer ké"])
def test_the_api_key(runs: Runs, given: str | None) -> None:
    with served(Encoder(runs), api_key="a-key") as client:
        headers = {} if given is None else {"Authorization": given.encode()}
        for path in ("/v1/runs", "/metrics"):
            assert client.get(path, headers=headers).status_code == 401
        answer = client.post("/v1/predict", json={"texts": ["w4"]}, headers=headers)
        assert answer.status_code == 401 and "API key" in answer.json()["detail"]
        assert client.get("/healthz").status_code == client.get("/").status_code == 200
        assert client.get("/v1/runs", headers={"Authorization": "Bearer a-key"}).status_code == 200


def test_runs_metrics_and_docs(client: httpx.Client, runs: Runs) -> None:
    listed = client.get("/v1/runs").json()
    assert [run["name"] for run in listed["runs"]] == list(runs) and listed["limits"]["texts"] == 256
    assert listed["runs"][1] == {
        "name": "topic", "method": "prefix-reading", "labels": ["no", "yes"], "several_labels": False,
        "max_length": 32, "target_precision": None, "accept_from": None,
    }  # fmt: skip
    assert str(runs["topic"].run_dir.parent) not in client.get("/v1/runs").text

    def answered() -> float:
        return float(client.get("/metrics").text.partition('prefixprop_documents_total{run="tone"} ')[2].split()[0])

    ask(client, ["w4"])
    before = answered()
    ask(client, ["w4", "w5"], runs=["tone"])
    assert answered() == before + 2
    schema = client.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]
    assert set(schema["requestBody"]["content"]["application/json"]["schema"]["properties"]) == {
        "texts", "runs", "long", "reasons",
    }  # fmt: skip
    assert "//" not in client.get("/docs").text.replace("window.location.origin", "").replace("http://", "")
    assert client.get("/nowhere").status_code == 404
