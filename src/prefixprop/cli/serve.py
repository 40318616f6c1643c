"""`prefixprop serve`: answers over HTTP."""

from __future__ import annotations

import ipaddress
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prefixprop.cli.messages import clean_errors, printable
from prefixprop.cli.predict import BatchTokensOption, names_of
from prefixprop.lazy_imports import import_optional


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Directories of finished runs; those on the same encoder share it in memory."
        ),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one.")] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answer only requests with the key in this file, as a bearer token."),
    ] = None,
    max_body_mb: Annotated[float, typer.Option(min=0.001, metavar="N", help="Largest request, in megabytes.")] = 4,
    max_texts: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of texts in a request.")] = 256,
    queue: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Maximum number of documents waiting or in progress; then status 503."),
    ] = 1024,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="N", help="Seconds for a request to arrive, and for its answer.")
    ] = 60,
    wait_ms: Annotated[
        float, typer.Option(min=0, metavar="N", help="Milliseconds a document waits for others to share its batch.")
    ] = 5,
    batch_tokens: BatchTokensOption = None,
) -> None:
    """Serve the predictions of any number of runs over HTTP, with a page.

    Requests of all clients are computed together. Runs of readers on one encoder share its pass over a document.

    Example: prefixprop serve runs/letters runs/tone --port 8000
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with clean_errors(), ExitStack() as stack:
        for package in ("fastapi", "fastapi_offline", "prometheus_client", "uvicorn"):
            import_optional(package, "Services", extra="serve")
        names = names_of(runs)
        api_key = None if api_key_file is None else _read_key(api_key_file)
        with console.status("loading the models"):
            from prefixprop.serve.app import Limits, bound_socket, create_app, new_server
            from prefixprop.serve.encoder import EncoderProcess

            limits = Limits(max_body_mb, max_texts, queue, timeout)
            bound = bound_socket(host, port)
            encoder = EncoderProcess(dict(zip(names, runs, strict=True)), batch_tokens)
            stack.callback(encoder.close)
        server = new_server(create_app(encoder, limits, api_key, wait_ms / 1000), timeout)
        address, number = bound.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        console.print(printable(f"{', '.join(names)} at http://{shown}:{number} (Ctrl-C ends it)"), markup=False)
        if api_key is None and not ipaddress.ip_address(address).is_loopback:
            console.print(
                "Warning: anyone who reaches this address can use the service; --api-key-file requires a key."
            )
        with suppress(KeyboardInterrupt):  # raised after the server has ended in an orderly way
            server.run(sockets=[bound])


def _read_key(path: Path) -> str:
    key = path.read_text(encoding="utf-8").strip()
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise ValueError(f"{path}: the file of --api-key-file has one key of ASCII letters, without spaces.")
    return key
