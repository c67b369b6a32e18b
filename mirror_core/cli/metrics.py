"""The data plane's endpoint for Prometheus: threads of this process that only read; copying never waits for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import typer
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from mirror_core.model.errors import BadRequest
from mirror_core.model.text import format_address

OPTION: Final = "--metrics"
_LOOPBACK: Final = "127.0.0.1"


def address(text: str) -> tuple[str, int]:
    """Host and port of `[HOST:]PORT`; without a host only this machine may ask. BadParameter for anything else."""
    found = re.fullmatch(r"(?:(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):)?([0-9]{1,5})", text)
    if not found or int(found[2]) > 65_535:
        raise typer.BadParameter(
            f"{text!r} is not [HOST:]PORT, such as 9465, 0.0.0.0:9465 or [::1]:9465", param_hint=OPTION
        )
    return (found[1] or _LOOPBACK).strip("[]"), int(found[2])


@contextmanager
def served(where: tuple[str, int] | None, source: Collector, say: Callable[[str], None]) -> Iterator[None]:
    """Serve /metrics while entered; nothing without an address. BadRequest when the address cannot be listened on."""
    if where is None:
        yield
        return
    host, port = where
    registry = CollectorRegistry()  # not the library's own: that one tells of Python, not of mirrors
    registry.register(source)
    shown = format_address(host, port)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise BadRequest(
            f"metrics cannot be served on {shown}: {error.strerror or error}: give {OPTION} another "
            "address, or leave it out; nothing was copied"
        ) from None
    try:
        say(f"metrics: http://{format_address(host, server.server_port)}/metrics")
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
