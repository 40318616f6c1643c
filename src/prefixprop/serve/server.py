"""The process that listens: an address that is taken early, and an end that finishes what is under way."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn


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
