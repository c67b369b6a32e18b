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
from enum import IntEnum
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from mirror_core.model.copying import DriverAt
from mirror_core.model.logs import logger

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
        self._socket = _connected(at) if at else None

    @property
    def open(self) -> bool:
        """Whether there is anybody to talk to."""
        return self._socket is not None

    def tell(self, sort: Sort, body: bytes) -> None:
        """Send one datagram."""
        if self._socket is None or self._at is None:
            return
        try:
            letter = Letter(sort, self._epoch, self._sender, next(self._numbers), body)
            self._socket.send(sealed(self._at.token, letter))
        except OSError:  # no buffer left, or nobody listens any more
            return

    def answers(self) -> Iterator[bytes]:
        """What the driver has answered, once each."""
        while self._socket is not None and self._at is not None:
            try:
                datagram = self._socket.recv(LARGEST + 1)
            except OSError:  # nothing there (yet); or nobody listens any more
                return
            letter = opened(datagram, {self._epoch: self._at.token}.get)
            if letter is None or (letter.sort, letter.sender) != (Sort.GIVEN, self._sender):
                continue
            if letter.number > self._answered:
                self._answered = letter.number
                yield letter.body

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def token_of(key: bytes, epoch: int) -> str:
    """An epoch's token, for who has the key of all of them."""
    return hmac.digest(key, epoch.to_bytes(8, "big"), "sha256").hex()


def bound(host: str, port: int) -> socket.socket:
    """A socket that receives there. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _connected(at: DriverAt) -> socket.socket | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            made.connect(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        _log.warning("the driver at %s:%d is told nothing: %s", at.host, at.port, error)
        return None
    return made


def _mac(token: str, plain: bytes) -> bytes:
    return hmac.digest(token.encode(), plain, "sha256")[:_MAC]
