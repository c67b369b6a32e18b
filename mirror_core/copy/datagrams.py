"""Datagrams (UDP) between tasks and their driver. Losing one is always harmless.

    "MB" | kind: 1 byte | epoch: 8 | sender: 8 | number: 8 | body: JSON | HMAC-SHA256 over all before: 16

One packet of any network, because firewalls drop fragments. Each epoch has its own key, never sent, so a task of an
older epoch cannot forge a newer one. A sender's numbers must grow, so replays are ignored. Bodies are not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from mirror_core.model.copying import DriverAt
from mirror_core.model.logs import logger
from mirror_core.model.text import format_address

LARGEST: Final = 1_200
"""IPv6's minimum packet (1,280 bytes) without headers."""
_MAGIC: Final = b"MB"
_HEADER: Final = struct.Struct(">2sBQ8sQ")
_MAC: Final = 16
ROOM: Final = LARGEST - _HEADER.size - _MAC - 80

_log = logger(__name__)


class Sort(IntEnum):
    PROGRESS = 1
    CLAIMS = 2
    GIVEN = 3


class Letter(NamedTuple):
    sort: int
    epoch: int
    sender: bytes
    """Random, one per attempt of a task. A response repeats it, and the number."""
    number: int
    body: bytes


def sealed(token: str, letter: Letter) -> bytes:
    plain = _HEADER.pack(_MAGIC, *letter[:4]) + letter.body
    return plain + _mac(token, plain)


def opened(datagram: bytes, token_of: Callable[[int], str | None]) -> Letter | None:
    """None when the packet is not authentic, whatever bytes it holds."""
    if len(datagram) < _HEADER.size + _MAC or len(datagram) > LARGEST or not datagram.startswith(_MAGIC):
        return None
    _, sort, epoch, sender, number = _HEADER.unpack_from(datagram)
    token = token_of(epoch)
    if token is None or not hmac.compare_digest(_mac(token, datagram[:-_MAC]), datagram[-_MAC:]):
        return None
    return Letter(sort, epoch, sender, number, datagram[_HEADER.size : -_MAC])


def portions(rows: Iterable[Any], spare: int = 0) -> Iterator[bytes]:
    line, size = list[bytes](), 0
    for row in rows:
        one = msgspec.json.encode(row)
        if line and size + len(one) + 1 + spare > ROOM:
            yield b"[" + b",".join(line) + b"]"
            line, size = [], 0
        line.append(one)
        size += len(one) + 1 + spare
    if line:
        yield b"[" + b",".join(line) + b"]"


class Line:
    """A task's socket to its driver. Never blocks and never raises: nothing sent here is essential."""

    def __init__(self, epoch: int, at: DriverAt | None) -> None:
        self._epoch = epoch
        self._at = at
        self._sender = secrets.token_bytes(8)
        self._numbers = count(1)
        self._answered = 0
        self._sockets = _connected(at) if at else []
        """One for each address of the driver, until it responds on one of them."""

    @property
    def open(self) -> bool:
        return bool(self._sockets)

    def tell(self, sort: Sort, body: bytes) -> None:
        if not self._sockets or self._at is None:
            return
        datagram = sealed(self._at.token, Letter(sort, self._epoch, self._sender, next(self._numbers), body))
        for one in self._sockets:
            with suppress(OSError):  # no buffer left, or nobody listens there (any more)
                one.send(datagram)

    def answers(self) -> Iterator[bytes]:
        for one in list(self._sockets):
            yield from self._answers_on(one)

    def _answers_on(self, one: socket.socket) -> Iterator[bytes]:
        while one in self._sockets and self._at is not None:
            try:
                datagram = one.recv(LARGEST + 1)
            except OSError:  # nothing there (yet); or nobody listens any more
                return
            letter = opened(datagram, {self._epoch: self._at.token}.get)
            if letter is None or (letter.sort, letter.sender) != (Sort.GIVEN, self._sender):
                continue
            self._keep(one)
            if letter.number > self._answered:
                self._answered = letter.number
                yield letter.body

    def _keep(self, answered: socket.socket) -> None:
        for other in self._sockets:
            if other is not answered:
                other.close()
        self._sockets = [answered]

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets = []


def token_of(key: bytes, epoch: int) -> str:
    return hmac.digest(key, epoch.to_bytes(8, "big"), "sha256").hex()


def bound(host: str, port: int) -> socket.socket:
    reason = OSError("the host has no address")
    for made in _open_each(host, port, socket.socket.bind):
        if isinstance(made, socket.socket):
            return made
        reason = made
    raise reason


def _connected(at: DriverAt) -> list[socket.socket]:
    found = list(_open_each(at.host, at.port, socket.socket.connect))
    made = [one for one in found if isinstance(one, socket.socket)]
    for one in made:
        one.setblocking(False)
    if not made:
        why = found[-1] if found else "the host has no address"
        _log.warning("the driver at %s is told nothing: %s", format_address(at.host, at.port), why)
    return made


def _open_each(host: str, port: int, act: Callable[[socket.socket, Any], None]) -> Iterator[socket.socket | OSError]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        yield error
        return
    except UnicodeError:
        yield OSError(f"{host!r} can be no host's name")
        return
    for family, kind, protocol, _, address in found:
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:  # unsupported address family
            yield error
            continue
        try:
            act(made, address)
        except OSError as error:
            made.close()
            yield error
        else:
            yield made


def _mac(token: str, plain: bytes) -> bytes:
    return hmac.digest(token.encode(), plain, "sha256")[:_MAC]
