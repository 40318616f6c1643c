"""`prefixprop serve` as a process: killed, started again, without its folders, and ended while it works."""

from __future__ import annotations

import gc
import multiprocessing
import shutil
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from command_line import call, wait_until
from prefixprop.cli import main
from prefixprop.serve import encoder
from prefixprop.serve.encoder import EncoderProcess

from serving import make_runs, served
from tiny_runs import make_results


def start(folder: Path, runs: list[Path], *options: object) -> Any:
    """A process that is forked, which saves it the imports."""

    def work() -> None:
        sys.stderr = (folder / "log").open("a", encoding="utf-8")
        sys.argv = ["prefixprop", "serve", *map(str, runs), *map(str, options)]
        main()

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_ready(service: Any, client: httpx.Client) -> bool:
    assert service.is_alive()
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_service_is_killed_started_again_loses_its_folders_and_finishes_its_work(tmp_path: Path) -> None:
    runs = list(make_runs(tmp_path / "runs").values())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "key").write_text("a-key\n", encoding="utf-8")
    options = ("--port", port, "--api-key-file", tmp_path / "key", "--wait-ms", 700)
    question = {"texts": ["w4 w5", "w6"]}
    headers = {"Authorization": "Bearer a-key"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers=headers) as client:
        service = start(tmp_path, runs, *options)
        wait_until(lambda: is_ready(service, client), 120)
        before = client.post("/v1/predict", json=question).json()
        assert list(before["predictions"][0]) == ["tone", "topic", "tuned"]
        encoders = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
        service.kill()
        service.join(30)
        wait_until(lambda: not any(map(is_running, encoders)))  # none is left over
        assert service.exitcode == -signal.SIGKILL

        service = start(tmp_path, runs, *options)
        wait_until(lambda: is_ready(service, client), 120)
        shutil.rmtree(tmp_path / "runs")
        explained = client.post("/v1/predict", json=question | {"runs": ["tuned"], "reasons": True}).json()
        assert explained["predictions"][0]["tuned"]["reasons"][0]["passages"][0]["text"] == "w4 w5"
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.post, "/v1/predict", json=question)  # which waits for others
            wait_until(lambda: "documents_under_way 2.0" in client.get("/metrics").text)
            service.terminate()
            assert answer.result().status_code == 200
        assert answer.result().json()["predictions"] == before["predictions"]
        service.join(30)
        assert service.exitcode == 0
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert log.splitlines() == [f"tone, topic, tuned at http://127.0.0.1:{port} (Ctrl-C ends it)"] * 2


def test_an_encoder_that_is_killed_or_has_no_run_is_told(tmp_path: Path) -> None:
    folders = make_runs(tmp_path / "runs")
    encoder = EncoderProcess({"tone": folders["tone"]})
    (process,) = [child for child in multiprocessing.active_children() if child.name == "encoder"]
    with served(encoder) as client:
        assert client.post("/v1/predict", json={"texts": ["w4"]}).status_code == 200
        process.kill()
        process.join(30)
        for answer in (
            client.get("/healthz"),
            client.get("/readyz"),
            client.post("/v1/predict", json={"texts": ["w4"]}),
        ):
            assert answer.status_code == 503 and "encoder has stopped" in answer.json()["detail"]
    with pytest.raises(ValueError, match="none"):
        EncoderProcess({"none": tmp_path / "none"})


def test_mistakes_are_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_results(tmp_path / "run")
    empty = tmp_path / "key"
    empty.write_text(" \n", encoding="utf-8")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, words in [
            ((tmp_path / "none",), "none"),
            ((run, run), "this run is given twice"),
            ((run, "--api-key-file", tmp_path / "none"), "No such file"),
            ((run, "--api-key-file", empty), "has one key"),
            ((run, "--queue", "3"), "raise --queue"),
            ((run, "--port", taken.getsockname()[1]), "Address already in use"),
            ((run, "--host", "no.such.host.invalid"), "--host no.such.host.invalid"),
        ]:
            assert words in call("serve", *arguments, status=1)[1]
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'prefixprop[serve]'" in call("serve", run, status=1)[1]


def test_an_encoder_ends_quietly_if_its_service_is_gone(tmp_path: Path) -> None:
    """A service that is stopped while it starts."""
    runs = make_runs(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    try:
        encoder._work([theirs], {"tone": runs["tone"]}, None)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert gc.get_freeze_count() == 0
