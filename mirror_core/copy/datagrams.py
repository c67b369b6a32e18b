"""What a task and its driver tell each other by datagram (UDP), on one machine or between two: nothing that may not
get lost.

    "MB" | sort: 1 byte | epoch: 8 | sender: 8 | number: 8 | body: JSON | 16 bytes of HMAC-SHA256 over all before them

All of it fits into one packet of any network: fragments are what firewalls drop. The key is an epoch's own and never
on the way, so a task of an older epoch can't speak for a newer one. Of one sender each number is taken once, and only
growing ones are; so a repetition, be it a network's or somebody's who listened, says nothing. Bodies can be read.
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
"""Bytes: what IPv6's least packet (1,280) holds behind its headers."""
_MAGIC: Final = b"MB"
_HEADER: Final = struct.Struct(">2sBQ8sQ")
_MAC: Final = 16
ROOM: Final = LARGEST - _HEADER.size - _MAC - 80
"""For the rows of one body, when all else in it takes 80 bytes."""

_log = logger(__name__)


class Sort(IntEnum):
    """What a datagram is about."""

    PROGRESS = 1
    """A task's positions."""
    CLAIMS = 2
    """What a task leaves to the next one, and what it waits for."""
    GIVEN = 3
    """The driver's answer to that."""


class Letter(NamedTuple):
    """A datagram's content."""

    sort: int
    epoch: int
    sender: bytes
    """Random, of one attempt of a task. An answer repeats it, and the number."""
    number: int
    body: bytes


def sealed(token: str, letter: Letter) -> bytes:
    """The datagram."""
    plain = _HEADER.pack(_MAGIC, *letter[:4]) + letter.body
    return plain + _mac(token, plain)


def opened(datagram: bytes, token_of: Callable[[int], str | None]) -> Letter | None:
    """The letter, if whoever wrote it knows its epoch's token; None for anything else, whatever bytes it is made of."""
    if len(datagram) < _HEADER.size + _MAC or len(datagram) > LARGEST or not datagram.startswith(_MAGIC):
        return None
    _, sort, epoch, sender, number = _HEADER.unpack_from(datagram)
    token = token_of(epoch)
    if token is None or not hmac.compare_digest(_mac(token, datagram[:-_MAC]), datagram[-_MAC:]):
        return None
    return Letter(sort, epoch, sender, number, datagram[_HEADER.size : -_MAC])


def portions(rows: Iterable[Any], spare: int = 0) -> Iterator[bytes]:
    """The rows as JSON lists, each small enough for one datagram; `spare` bytes are added to each row."""
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
    """A task's way to its driver, and back. Never waits, and never raises: nothing that is said here is needed."""

    def __init__(self, epoch: int, at: DriverAt | None) -> None:
        self._epoch = epoch
        self._at = at
        self._sender = secrets.token_bytes(8)
        self._numbers = count(1)
        self._answered = 0
        self._sockets = _connected(at) if at else []
        """One for each of the driver's addresses, until it has answered on one of them."""

    @property
    def open(self) -> bool:
        """Whether there is anybody to talk to."""
        return bool(self._sockets)

    def tell(self, sort: Sort, body: bytes) -> None:
        """Send one datagram."""
        if not self._sockets or self._at is None:
            return
        datagram = sealed(self._at.token, Letter(sort, self._epoch, self._sender, next(self._numbers), body))
        for one in self._sockets:
            with suppress(OSError):  # no buffer left, or nobody listens there (any more)
                one.send(datagram)

    def answers(self) -> Iterator[bytes]:
        """What the driver has answered, once each."""
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
    """An epoch's token, for who has the key of all of them."""
    return hmac.digest(key, epoch.to_bytes(8, "big"), "sha256").hex()


def bound(host: str, port: int) -> socket.socket:
    """A socket that receives there. Raises OSError."""
    reason = OSError("the host has no address")
    for made in _open_each(host, port, socket.socket.bind):
        if isinstance(made, socket.socket):
            return made
        reason = made
    raise reason


def _connected(at: DriverAt) -> list[socket.socket]:
    """One for each of the driver's addresses: which of them it listens on, only an answer tells."""
    found = list(_open_each(at.host, at.port, socket.socket.connect))
    made = [one for one in found if isinstance(one, socket.socket)]
    for one in made:
        one.setblocking(False)
    if not made:
        why = found[-1] if found else "the host has no address"
        _log.warning("the driver at %s is told nothing: %s", format_address(at.host, at.port), why)
    return made


def _open_each(host: str, port: int, act: Callable[[socket.socket, Any], None]) -> Iterator[socket.socket | OSError]:
    """For each of the host's addresses a socket, for which this went well, or why not."""
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
        except OSError as error:  # a family that this machine does not have
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
