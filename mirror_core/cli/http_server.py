"""Serves metrics and pages in threads that copying never waits for."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import typer
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from mirror_core.model.errors import BadRequest
from mirror_core.model.text import format_address

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

METRICS_OPTION: Final = "--metrics"
_LOOPBACK: Final = "127.0.0.1"
MAX_CONNECTIONS: Final = 16
"""One thread each. Another one closes the oldest, so silent clients cannot block Prometheus."""
IDLE_LIMIT_S: Final = 5.0


def parse_address(text: str, option: str = METRICS_OPTION) -> tuple[str, int]:
    """Default host: loopback. Raises BadParameter."""
    match = re.fullmatch(r"(?:(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):)?([0-9]{1,5})", text)
    if not match or int(match[2]) > 65_535:
        raise typer.BadParameter(
            f"{text!r} is not [HOST:]PORT, such as 9465, 0.0.0.0:9465 or [::1]:9465", param_hint=option
        )
    return (match[1] or _LOOPBACK).strip("[]"), int(match[2])


@contextmanager
def serve_metrics(
    address: tuple[str, int] | None, source: Collector, print_line: Callable[[str], None]
) -> Iterator[None]:
    """BadRequest if the address cannot be bound."""
    if address is None:
        yield
        return
    registry = CollectorRegistry()  # without the default one's Python metrics
    registry.register(source)
    advice = f"give {METRICS_OPTION} another address, or leave it out; nothing was copied"
    with serve_app(address, make_wsgi_app(registry), "metrics", advice) as url:
        print_line(f"metrics: {url}/metrics")
        yield


@contextmanager
def serve_app(address: tuple[str, int], app: WSGIApplication, what: str, advice: str) -> Iterator[str]:
    """The URL without a path. BadRequest if the address cannot be bound."""
    host, port = address
    try:
        server = _listen_on(host, port)
    except OSError as error:
        text = f"{what} cannot be served on {format_address(host, port)}: {error.strerror or error}"
        raise BadRequest(f"{text}: {advice}") from None
    server.set_app(app)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{format_address(host, server.server_port)}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _QuietHandler(WSGIRequestHandler):
    timeout = IDLE_LIMIT_S

    def log_message(self, format: str, *args: Any) -> None: ...


class _BoundedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, family: socket.AddressFamily) -> None:
        self.address_family = family
        self._connections = dict[int, Any]()
        """By id(), oldest first."""
        self._changing = threading.Lock()
        super().__init__((host, port), _QuietHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            if len(self._connections) >= MAX_CONNECTIONS:
                oldest = self._connections.pop(next(iter(self._connections)))
                with suppress(OSError):  # its thread closes it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._connections[id(request)] = request
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None: ...

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._connections.pop(id(request), None)
        super().shutdown_request(request)


def _listen_on(host: str, port: int) -> _BoundedServer:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _BoundedServer(str(address[0]), port, family)
