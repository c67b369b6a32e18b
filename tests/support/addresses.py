"""Names that stand for several addresses, and IPv6, where a machine has it."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import pytest


def has_ipv6() -> bool:
    """Whether this machine listens on ::1."""
    with suppress(OSError), socket.socket(socket.AF_INET6) as made:
        made.bind(("::1", 0))
        return True
    return False


IPV6 = pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"))


def resolve_to(monkeypatch: pytest.MonkeyPatch, name: str, *hosts: str) -> None:
    """Let a name stand for all of these addresses, in this order."""
    real = socket.getaddrinfo

    def resolve(host: str, *more: Any, **named: Any) -> list[Any]:
        return [one for each in (hosts if host == name else [host]) for one in real(each, *more, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
