"""Loopback ports for brokers."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from mirrorbook_tools.sandbox.errors import SandboxFailed

HOST: Final = "127.0.0.1"
LOWEST: Final = 15_000
EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
EPHEMERAL_START_ELSEWHERE: Final = 32_768


def choose_ports(count: int) -> tuple[int, ...]:
    """Different ports that are free now and lie below the range from which the kernel serves outgoing connections.

    A port of that range could be taken while a broker is down, even by a client that reconnects to it and so
    ends up talking to itself.
    """
    top = _ephemeral_start()
    candidates = random.sample(range(LOWEST, top), k=min(top - LOWEST, 200 * count))
    chosen: list[int] = []
    with ExitStack() as held:
        for port in candidates:
            listener = held.enter_context(socket.socket())
            if _bind(listener, port):
                chosen.append(port)
            if len(chosen) == count:
                return tuple(chosen)
    raise SandboxFailed(f"no {count} free ports between {LOWEST} and {top} on {HOST}: stop what holds them")


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        return _bind(listener, port)


def _bind(listener: socket.socket, port: int) -> bool:
    # As Java's server sockets do: connections of an earlier broker that still linger don't make its port taken.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(1)
    except OSError:
        return False
    return True


def _ephemeral_start() -> int:
    try:
        start = int(EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_START_ELSEWHERE
    # Some hosts open the whole range to clients; then there is no better place than the usual one.
    return start if start > LOWEST + 1_000 else EPHEMERAL_START_ELSEWHERE
