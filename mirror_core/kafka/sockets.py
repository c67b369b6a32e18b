"""Polling, connecting, and sending with short waits."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

_MOST_PARTS: Final = 512
_LEAST_CONNECT_S: Final = 0.001
_PIECE: Final = 64 << 10


def readable(
    sockets: Iterable[socket.socket], limit_s: float, *, until_writable: Iterable[socket.socket] = ()
) -> set[socket.socket]:
    """With data or errors; waits for one, or until `until_writable` accepts bytes.

    By poll: select rejects descriptors from 1024 on.
    """
    by_fd = {one.fileno(): one for one in sockets}
    events = dict.fromkeys(by_fd, select.POLLIN)
    for fd in [one.fileno() for one in until_writable]:
        events[fd] = events.get(fd, 0) | select.POLLOUT
    poll = select.poll()
    for fd, wanted in events.items():
        poll.register(fd, wanted)
    return {by_fd[fd] for fd, found in poll.poll(1000 * limit_s) if fd in by_fd and found & ~select.POLLOUT}


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """To the first address that accepts; each gets its share of the time.

    Raises OSError; UnicodeError for an impossible host name.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    deadline = time.monotonic() + timeout_s
    reason = OSError("the host has no address")
    for number, (family, kind, protocol, _, address) in enumerate(found):
        share_s = (deadline - time.monotonic()) / (len(found) - number)
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:  # unsupported address family
            reason = error
            continue
        try:
            made.settimeout(max(_LEAST_CONNECT_S, share_s))
            made.connect(address)
        except OSError as error:
            made.close()
            reason = error
        else:
            return made
    raise reason


def framed(parts: Sequence[Buffer]) -> list[Buffer]:
    """Prepends the length."""
    return [struct.pack(">i", sum(len(part) for part in parts)), *parts]


def receive(sock: socket.socket, view: memoryview, *, whole: bool, wait: bool) -> int:
    """0: end of stream. TimeoutError or BlockingIOError: nothing in time.

    Under TLS an incomplete record may be there.
    """
    if not isinstance(sock, ssl.SSLSocket):
        return sock.recv_into(view, 0, (socket.MSG_WAITALL if whole else 0) | (0 if wait else socket.MSG_DONTWAIT))
    if wait:
        return sock.recv_into(view)
    usual = sock.gettimeout()
    sock.settimeout(0.0)
    try:
        return sock.recv_into(view)
    finally:
        sock.settimeout(usual)


def push(sock: socket.socket, parts: Sequence[Buffer], patience_s: float) -> memoryview:
    """Returns a copy of what was not accepted in time. Raises OSError.

    Send that first: TLS may have sent a part of it.
    """
    until = time.monotonic() + patience_s
    if isinstance(sock, ssl.SSLSocket):
        return _push_through_tls(sock, memoryview(b"".join(parts)), until)
    rest = [memoryview(part) for part in parts]
    while rest:
        try:
            sent = sock.sendmsg(rest[:_MOST_PARTS], (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            if not _writable(sock, until):
                break
            continue
        done = 0
        while done < len(rest) and sent >= len(rest[done]):
            sent -= len(rest[done])
            done += 1
        del rest[:done]
        if sent:
            rest[0] = rest[0][sent:]
    return memoryview(b"".join(rest))


def _push_through_tls(sock: ssl.SSLSocket, frame: memoryview, until: float) -> memoryview:
    """OpenSSL accepts a piece completely, or wants the same bytes again."""
    usual = sock.gettimeout()
    sock.settimeout(0.0)
    try:
        while frame:
            try:
                frame = frame[sock.send(frame[:_PIECE]) :]
            except ssl.SSLWantWriteError:
                if not _writable(sock, until):
                    break
            except ssl.SSLWantReadError:  # renegotiation
                if not readable([sock], max(0.0, until - time.monotonic())):
                    break
    finally:
        sock.settimeout(usual)
    return frame


def _writable(sock: socket.socket, until: float) -> bool:
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLOUT)
    rest_s = until - time.monotonic()
    return rest_s > 0 and bool(poll.poll(1000 * rest_s))
