"""Metrics of requests, and the outermost layer of the application."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger(__name__)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
# The page: its own script and style, requests to this service, and nothing else.
_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'",
)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics(Collector):
    """Prometheus metrics of one application."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("prefixprop_requests", "Requests.", ["path", "status"], registry=registry)
        self.request_seconds = Histogram(
            "prefixprop_request_seconds", "Time of a request.", ["path"], buckets=_SECONDS, registry=registry
        )
        self.documents_under_way = Gauge(
            "prefixprop_documents_under_way", "Documents that wait or are computed.", registry=registry
        )
        # A request may be for hundreds of runs; a `Counter` for each takes almost half of this process's time.
        self._documents: defaultdict[str, int] = defaultdict(int)
        registry.register(self)
        self._batch_seconds = Histogram(
            "prefixprop_batch_seconds", "Time of a batch.", buckets=_SECONDS, registry=registry
        )
        self._batch_documents = Histogram(
            "prefixprop_batch_documents", "Documents of a batch.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        self._batch_tokens = Counter("prefixprop_batch_tokens", "Tokens of batches, about.", registry=registry)
        self._seconds_per_document = 0.0  # in the last batch

    def observe_documents(self, runs: Sequence[str], count: int) -> None:
        for run in runs:
            self._documents[run] += count

    def collect(self) -> Iterator[Metric]:
        """The counters of documents, for the registry."""
        documents = CounterMetricFamily("prefixprop_documents", "Documents answered.", labels=["run"])
        for run, count in self._documents.items():
            documents.add_metric([run], count)
        yield documents

    def observe_batch(self, documents: int, tokens: int, seconds: float) -> None:
        self._batch_documents.observe(documents)
        self._batch_tokens.inc(tokens)
        self._batch_seconds.observe(seconds)
        self._seconds_per_document = seconds / documents

    def seconds_for(self, documents: int) -> float:
        """How long so many documents will take, if they are like those of the last batch; at least a second."""
        return max(1.0, documents * self._seconds_per_document)

    def exposition(self) -> tuple[bytes, int, None, str]:
        """The arguments of a response."""
        return generate_latest(self._registry), 200, None, CONTENT_TYPE_LATEST


class Monitored:
    """An ASGI application whose requests are counted, and whose errors end here and not in a traceback."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        status, started = 0, time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                policy = () if path == "/docs" else (_POLICY,)  # Swagger's page has a script in it
                message["headers"] = [*message["headers"], *_HEADERS, *policy]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception as error:
            # The application has answered with a 500, or the client is gone.
            _log.error("%s failed: %s.", path, type(error).__name__)
        finally:
            self.metrics.requests.labels(path, status).inc()
            self.metrics.request_seconds.labels(path).observe(time.perf_counter() - started)
