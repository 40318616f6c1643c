"""The HTTP interface: requests, answers, and every limit in the order in which it is checked.

Answers and logs never have a path, a stack trace or a piece of a document.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import math
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline  # its /docs loads nothing from elsewhere
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.types import ASGIApp, Receive, Scope, Send

from prefixprop import __version__
from prefixprop.predict import Prediction
from prefixprop.progress import collect_only_new_objects
from prefixprop.serve.batching import BatchingQueue, QueuedDocument
from prefixprop.serve.encoder import MOST_PASSAGES, Encoder, EncoderProcess, Reason, RunDescription
from prefixprop.serve.monitoring import Metrics, Monitored

_PAGE = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_BEARER = HTTPBearer(auto_error=False, description="The key in the file of --api-key-file.")
_CHARACTERS_WITH_REASONS = 200_000  # TF-IDF reads all of a text, without each of its passages
_FAILED = "This document could not be computed; the log of the service says where."
_HUNG_UP = 499  # nginx's status for a client that is gone; only the metrics see it


@dataclass(frozen=True)
class Limits:
    """Megabytes of a body, texts of a request, documents that wait or are computed, seconds of an answer; at most."""

    body_mb: float = 4
    texts: int = 256
    queue: int = 1024
    seconds: float = 60

    def __post_init__(self) -> None:
        if self.queue < self.texts:
            raise ValueError(
                f"--queue {self.queue} is shorter than a request of --max-texts {self.texts}, which would never be "
                "answered; raise --queue, or lower --max-texts."
            )


class PredictRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    texts: Annotated[list[str], Field(min_length=1, description="The documents.")]
    runs: Annotated[list[str] | None, Field(min_length=1, description="Names of runs; all if left out.")] = None
    long: Annotated[
        Literal["truncate", "chunk-average"],
        Field(description="A document over the limit is cut, or read on in chunks whose probabilities are averaged."),
    ] = "truncate"
    reasons: Annotated[
        bool, Field(description="Whether to say how much each passage of a document speaks for its label.")
    ] = False


@dataclass(frozen=True)
class PredictionWithReasons(Prediction):
    reasons: tuple[Reason, ...] | None = None


class Failure(BaseModel):
    error: Annotated[str, Field(description="Why this document has no answer.")]


class PredictResponse(BaseModel):
    predictions: Annotated[
        list[dict[str, PredictionWithReasons | Failure]],
        Field(description="For each text, in order, the prediction of each run, by name."),
    ]


class RunsResponse(BaseModel):
    runs: list[RunDescription]
    limits: Limits


class Problem(BaseModel):
    detail: str


def create_app(
    encoder: Encoder | EncoderProcess,
    limits: Limits | None = None,
    api_key: str | None = None,
    wait_seconds: float = 0.005,
) -> Monitored:
    """An ASGI application that answers with the runs of an encoder, which it closes at its end."""
    limits, metrics = limits or Limits(), Metrics()
    queue = BatchingQueue(encoder, wait_seconds, metrics.observe_batch)
    service = _Service(queue, limits, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with collect_only_new_objects():
            yield
            await queue.close()

    app: FastAPI = FastAPIOffline(title="prefixprop", version=__version__, lifespan=lifespan, redoc_url=None)
    check_key = _key_check(api_key) if api_key else None
    known = [Depends(check_key)] if check_key else []
    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem} for status in (400, 408, 413, 415, 422, 503, 504)
    }
    body = {"content": {"application/json": {"schema": PredictRequest.model_json_schema()}}, "required": True}

    @app.post(
        "/v1/predict",
        dependencies=known,
        responses=problems,
        openapi_extra={"requestBody": body},
        response_model=PredictResponse,
    )
    async def predict(request: Request) -> Response:
        """What runs predict of texts, as `prefixprop predict` does."""
        if check_key:
            check_key(await _BEARER(request))
        return await service.predict(request)

    @app.get("/v1/runs", dependencies=known)
    async def list_runs() -> RunsResponse:
        """The runs that answer, and the limits of a request."""
        return RunsResponse(runs=[run.description for run in encoder.runs.values()], limits=limits)

    @app.get("/healthz")
    @app.head("/healthz", include_in_schema=False)
    async def health() -> dict[str, str]:
        """Whether the process works; restart it if not."""
        if not queue.is_working:
            raise HTTPException(503, "the encoder has stopped")
        return {"status": "ok"}

    @app.get("/readyz")
    @app.head("/readyz", include_in_schema=False)
    async def readiness() -> dict[str, str]:
        """Whether a request would be taken now."""
        if not queue.is_working or service.documents >= limits.queue:
            raise HTTPException(503, "the queue is full" if queue.is_working else "the encoder has stopped")
        return {"status": "ok"}

    @app.get("/metrics", dependencies=known)
    async def prometheus() -> Response:
        """Prometheus metrics."""
        return Response(*metrics.exposition())

    for name, media_type in _PAGE.items():
        content = importlib.resources.files(__package__).joinpath("page", name).read_bytes()
        path = "/" if name == "page.html" else f"/{name}"
        app.get(path, include_in_schema=False)(_constant(content, media_type))
    paths = {getattr(route, "path", "") for route in app.routes}
    return Monitored(_shortcut(app, "/v1/predict", predict), metrics, paths)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at this address, which does not listen yet; `OSError` if the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise OSError(f"--host {host} --port {port} cannot be used ({error.strerror}).") from error
    return bound


def new_server(app: Any, finish_seconds: float) -> uvicorn.Server:
    """A server for `run(sockets=[...])`; after SIGTERM it takes `finish_seconds` at most for what is under way."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(finish_seconds) + 1,
        )
    )


class _Service:
    """`/v1/predict`; `documents` counts those that wait or are computed."""

    def __init__(self, queue: BatchingQueue, limits: Limits, metrics: Metrics) -> None:
        self.queue, self.limits, self.metrics = queue, limits, metrics
        self.documents = 0

    async def predict(self, request: Request) -> Response:
        asked = _parsed(await self._body(request))
        known = self.queue.encoder.runs
        names = list(dict.fromkeys(known if asked.runs is None else asked.runs))
        if any(name not in known for name in names):
            raise HTTPException(422, f"runs: one is unknown; choose among {', '.join(known)}.")
        count = self._documents_of(asked, len(names))
        if self.documents + count > self.limits.queue:
            retry = {"Retry-After": str(math.ceil(self.metrics.seconds_for(self.documents)))}
            raise HTTPException(503, f"The queue is full ({self.limits.queue:,} documents); try again later.", retry)
        self._count(count)
        queued = [self.queue.add(text, names, asked.long) for text in asked.texts]
        explained = [self.queue.add_reasons(text, names, asked.long) for text in asked.texts if asked.reasons]
        parts = [part for document in (*queued, *explained) for part in document]
        try:
            await self._answered(request, parts)
        finally:
            self.queue.withdraw(parts)
            self._count(-count)
        self.metrics.observe_documents(names, len(queued))
        predictions, reasons = ([_joined(document) for document in each] for each in (queued, explained))
        answers = [
            _answer(names, prediction, own)
            for prediction, own in zip(predictions, reasons or [{} for _ in predictions], strict=True)
        ]
        if all("error" in one for answer in answers for one in answer.values()):
            raise HTTPException(500, _FAILED)
        return Response(to_json({"predictions": answers}), media_type="application/json")

    def _documents_of(self, asked: PredictRequest, runs: int) -> int:
        """What a request costs, in documents; it is refused if that is too much for any request."""
        count, reasons = len(asked.texts), len(asked.texts) * runs * asked.reasons
        if count > self.limits.texts:
            raise HTTPException(413, f"{count:,} texts; a request has at most {self.limits.texts:,}.")
        if reasons > (most := max(1, self.limits.texts // MOST_PASSAGES)):
            raise HTTPException(
                413, f"Reasons of {count:,} texts and {runs:,} runs; a request has at most {most:,} texts times runs."
            )
        if reasons and max(map(len, asked.texts)) > _CHARACTERS_WITH_REASONS:
            told = f"A text with reasons has at most {_CHARACTERS_WITH_REASONS:,} characters; ask without reasons."
            raise HTTPException(413, told)
        return min(count + reasons * MOST_PASSAGES, self.limits.queue)

    def _count(self, change: int) -> None:
        self.documents += change
        self.metrics.documents_under_way.set(self.documents)

    async def _body(self, request: Request) -> bytes:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "Send JSON, with the header Content-Type: application/json.")
        most = int(self.limits.body_mb * 1_000_000)
        too_large = HTTPException(413, f"The body is too large; a request has at most {self.limits.body_mb:g} MB.")
        if int(request.headers.get("content-length") or 0) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            told = f"The body did not arrive within {self.limits.seconds:g} seconds."
            raise HTTPException(408, told, {"Connection": "close"}) from None
        return bytes(body)

    async def _answered(self, request: Request, parts: Sequence[QueuedDocument]) -> None:
        """Wait for the answers, as long as the client does and no longer than the limit."""
        answers: asyncio.Future[Any] = asyncio.gather(*(part.answer for part in parts))
        hung_up: asyncio.Future[Any] = asyncio.create_task(_hung_up(request))
        try:
            done, _ = await asyncio.wait(
                {answers, hung_up}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            hung_up.cancel()
        if answers not in done:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)  # or asyncio logs that nobody did
            if hung_up in done:
                raise HTTPException(_HUNG_UP)
            raise HTTPException(504, f"There was no answer within {self.limits.seconds:g} seconds; send fewer texts.")
        if answers.exception() is not None:
            raise HTTPException(503, "The encoder has stopped; the service must be started again.")


def _joined(parts: Sequence[QueuedDocument]) -> dict[str, Any]:
    """The answers of all runs to a document; None of those that failed."""
    answers = [(part, part.answer.result()) for part in parts]
    return {name: answer[name] if answer else None for part, answer in answers for name in part.runs}


def _answer(names: Sequence[str], predictions: dict[str, Any], reasons: dict[str, Any]) -> dict[str, Any]:
    """What a document is answered, by run; one that failed with a run is told so there."""
    has_failed = {name for found in (predictions, reasons) for name, one in found.items() if one is None}
    answers = {}
    for name in names:
        found = {"error": _FAILED} if name in has_failed else vars(predictions[name]) | {"reasons": reasons.get(name)}
        answers[name] = {field: value for field, value in found.items() if value is not None}
    return answers


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _parsed(body: bytes) -> PredictRequest:
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        status = 400 if problem["type"] == "json_invalid" else 422
        if problem["type"] == "extra_forbidden":
            raise HTTPException(
                422, f"A field is unknown; choose among {', '.join(PredictRequest.model_fields)}."
            ) from None
        # Names of fields and numbers alone: any other part of a place is the client's own words.
        place = ".".join(
            str(part) for part in problem["loc"] if part in PredictRequest.model_fields or type(part) is int
        )
        raise HTTPException(status, f"{place}: {problem['msg']}" if place else problem["msg"]) from None


def _key_check(api_key: str) -> Any:
    def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if given is None or not secrets.compare_digest(given.credentials.encode(), api_key.encode()):
            told = "The API key is missing or wrong; send the header Authorization: Bearer KEY."
            raise HTTPException(401, told, {"WWW-Authenticate": "Bearer"})

    return check


def _shortcut(app: ASGIApp, path: str, answer: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """Answer posts to this path without FastAPI's layers, which take a third of a short request's time."""

    async def shortened(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", path):
            await app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await answer(request)
        except HTTPException as error:
            response = await http_exception_handler(request, error)
        await response(scope, receive, send)

    return shortened


def _constant(content: bytes, media_type: str) -> Any:
    async def answer() -> Response:
        return Response(content, media_type=media_type)

    return answer
