"""Datagrams (UDP) between tasks and their driver. Losing one is always harmless.

    "MB" | kind: 1 byte | epoch: 8 | sender: 8 | number: 8 | body: JSON | HMAC-SHA256 over all before: 16

One packet, because firewalls drop fragments. Each epoch has its own key, never sent, so a task of an older epoch cannot
forge a newer one. A sender's numbers must grow, so replays are ignored. A driver that stops responds with STOP, which
ends its tasks; otherwise with the epoch's TIME, for machines whose clock is behind.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from mirror_core.model.logs import get_logger
from mirror_core.model.task_messages import DriverAddress
from mirror_core.model.text import format_address

MAX_DATAGRAM_BYTES: Final = 1_200
"""IPv6's minimum packet (1,280 bytes) without headers."""
_MAGIC: Final = b"MB"
_HEADER: Final = struct.Struct(">2sBQ8sQ")
_MAC_BYTES: Final = 16
MAX_BODY_BYTES: Final = MAX_DATAGRAM_BYTES - _HEADER.size - _MAC_BYTES - 80

_log = get_logger(__name__)


class DatagramKind(IntEnum):
    PROGRESS = 1
    CLAIMS = 2
    RESPONSE = 3
    STOP = 4
    TIME = 5


class Datagram(NamedTuple):
    kind: int
    epoch: int
    sender: bytes
    """Random, one per attempt of a task. A response repeats it, and the number."""
    number: int
    body: bytes


def seal_datagram(token: str, datagram: Datagram) -> bytes:
    unsigned = _HEADER.pack(_MAGIC, *datagram[:4]) + datagram.body
    return unsigned + _compute_mac(token, unsigned)


def open_datagram(packet: bytes, find_token: Callable[[int], str | None]) -> Datagram | None:
    """Returns None unless it is authentic, whatever bytes it holds."""
    if len(packet) < _HEADER.size + _MAC_BYTES or len(packet) > MAX_DATAGRAM_BYTES or not packet.startswith(_MAGIC):
        return None
    _, kind, epoch, sender, number = _HEADER.unpack_from(packet)
    token = find_token(epoch)
    if token is None or not hmac.compare_digest(_compute_mac(token, packet[:-_MAC_BYTES]), packet[-_MAC_BYTES:]):
        return None
    return Datagram(kind, epoch, sender, number, packet[_HEADER.size : -_MAC_BYTES])


def encode_bodies(rows: Iterable[Any], spare: int = 0) -> Iterator[bytes]:
    encoded_rows, size = list[bytes](), 0
    for row in rows:
        encoded = msgspec.json.encode(row)
        if encoded_rows and size + len(encoded) + 1 + spare > MAX_BODY_BYTES:
            yield b"[" + b",".join(encoded_rows) + b"]"
            encoded_rows, size = [], 0
        encoded_rows.append(encoded)
        size += len(encoded) + 1 + spare
    if encoded_rows:
        yield b"[" + b",".join(encoded_rows) + b"]"


class DriverChannel:
    """Never blocks and never raises: nothing sent here is essential."""

    def __init__(self, epoch: int, driver: DriverAddress | None) -> None:
        self._epoch = epoch
        self._driver = driver
        self._sender = secrets.token_bytes(8)
        self._numbers = count(1)
        self._newest_response = 0
        self._responses = deque[bytes]()
        self._must_stop = False
        self.driver_ms = 0
        """The driver's clock when it sent its newest answer; 0: unknown."""
        self._sockets = _connect_sockets(driver) if driver else []
        """One for each address of the driver, until it responds on one of them."""

    @property
    def is_open(self) -> bool:
        return bool(self._sockets)

    def send(self, kind: DatagramKind, body: bytes) -> None:
        if not self._sockets or self._driver is None:
            return
        packet = seal_datagram(self._driver.token, Datagram(kind, self._epoch, self._sender, next(self._numbers), body))
        for sock in self._sockets:
            with suppress(OSError):  # no buffer left, or nobody listens there (any more)
                sock.send(packet)

    def must_stop(self) -> bool:
        self._receive()
        return self._must_stop

    def receive_responses(self) -> Iterator[bytes]:
        self._receive()
        while self._responses:
            yield self._responses.popleft()

    def _receive(self) -> None:
        for sock in list(self._sockets):
            self._receive_on(sock)

    def _receive_on(self, sock: socket.socket) -> None:
        while sock in self._sockets and self._driver is not None:
            try:
                packet = sock.recv(MAX_DATAGRAM_BYTES + 1)
            except OSError:  # nothing there (yet); or nobody listens any more
                return
            datagram = open_datagram(packet, {self._epoch: self._driver.token}.get)
            if datagram is None or datagram.sender != self._sender:
                continue
            if datagram.kind == DatagramKind.STOP:
                self._must_stop = True
            elif datagram.kind == DatagramKind.TIME:
                self.driver_ms = max(self.driver_ms, int.from_bytes(datagram.body))
            elif datagram.kind != DatagramKind.RESPONSE:
                continue
            elif datagram.number > self._newest_response:
                self._newest_response = datagram.number
                self._responses.append(datagram.body)
            self._keep_only(sock)

    def _keep_only(self, answering: socket.socket) -> None:
        for other in self._sockets:
            if other is not answering:
                other.close()
        self._sockets = [answering]

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets = []


def derive_token(key: bytes, epoch: int) -> str:
    return hmac.digest(key, epoch.to_bytes(8, "big"), "sha256").hex()


def bind_socket(host: str, port: int) -> socket.socket:
    error = OSError("the host has no address")
    for result in _open_sockets(host, port, socket.socket.bind):
        if isinstance(result, socket.socket):
            return result
        error = result
    raise error


def _connect_sockets(driver: DriverAddress) -> list[socket.socket]:
    results = list(_open_sockets(driver.host, driver.port, socket.socket.connect))
    sockets = [item for item in results if isinstance(item, socket.socket)]
    for item in sockets:
        item.setblocking(False)
    if not sockets:
        reason = results[-1] if results else "the host has no address"
        _log.warning("the driver at %s is told nothing: %s", format_address(driver.host, driver.port), reason)
    return sockets


def _open_sockets(
    host: str, port: int, prepare: Callable[[socket.socket, Any], None]
) -> Iterator[socket.socket | OSError]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        yield error
        return
    except UnicodeError:
        yield OSError(f"{host!r} can be no host's name")
        return
    for family, socket_type, protocol, _, address in addresses:
        try:
            sock = socket.socket(family, socket_type, protocol)
        except OSError as error:  # unsupported address family
            yield error
            continue
        try:
            prepare(sock, address)
        except OSError as error:
            sock.close()
            yield error
        else:
            yield sock


def _compute_mac(token: str, unsigned: bytes) -> bytes:
    return hmac.digest(token.encode(), unsigned, "sha256")[:_MAC_BYTES]
