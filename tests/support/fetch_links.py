"""Fetch links, shared by tests."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from mirror_core.kafka.connection import Connection

NEAR_S, FAR_S = 0.001, 0.08


class Wire(Connection):
    """A connection that leads nowhere: what is asked stays unanswered."""

    def __init__(self, round_trip_s: float, connect: Callable[[], Connection] | None = None) -> None:
        self.open_another = connect or (lambda: Wire(round_trip_s))  # type: ignore[method-assign]
        self.where, self.round_trip_s, self.timeout_s = "nowhere", round_trip_s, 1.0
        self.sock, self._other = socket.socketpair()
        self._ids = iter(range(1, 1000))  # type: ignore[assignment]

    def call(self, request: object, response_type: object, timeout_s: float | None = None) -> Any:
        """It is let in."""

    def close(self) -> None:
        self.sock.close()
        self._other.close()
