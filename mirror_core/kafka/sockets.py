"""Waiting for several sockets at a time, and sending on one without waiting for long."""

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
"""Of one call: half of what Linux takes (IOV_MAX)."""
_LEAST_CONNECT_S: Final = 0.001
_PIECE: Final = 64 << 10
"""Bytes that TLS is given at a time: four records."""


def readable(
    sockets: Iterable[socket.socket], limit_s: float, *, until_writable: Iterable[socket.socket] = ()
) -> set[socket.socket]:
    """Those with something to read, or with an error to be found by reading; waits for the first one so long, and no
    longer than until one of the others takes something again.

    By poll: select takes no file descriptor from 1024 on, and the process may be an application's with many open.
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
    """A TCP connection to the first of the host's addresses that takes one. An address that is silent uses up only its
    share of the time limit. Raises OSError, and UnicodeError for what can be no host's name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    deadline = time.monotonic() + timeout_s
    reason = OSError("the host has no address")
    for number, (family, kind, protocol, _, address) in enumerate(found):
        share_s = (deadline - time.monotonic()) / (len(found) - number)
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:  # a family that this machine does not have
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
    """A frame of these parts: its length goes first."""
    return [struct.pack(">i", sum(len(part) for part in parts)), *parts]


def receive(sock: socket.socket, view: memoryview, *, whole: bool, wait: bool) -> int:
    """Bytes that have come into the view; 0: there will be no more. As for `push`, OSError; among them those that say
    that nothing has come within the socket's time limit, or without `wait` now.

    Under TLS a part of a record may be there, which nobody can read yet.
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
    """Send these parts; what the system has not taken within so long is given back, as a copy.

    Nothing else may be sent before that was pushed on: under TLS a part of it may be on its way already. OSError as
    from any socket.
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
    """In pieces of some records, however short the parts are. OpenSSL takes all of a piece, or remembers how far it has
    come, and wants the same bytes again."""
    usual = sock.gettimeout()
    sock.settimeout(0.0)
    try:
        while frame:
            try:
                frame = frame[sock.send(frame[:_PIECE]) :]
            except ssl.SSLWantWriteError:
                if not _writable(sock, until):
                    break
            except ssl.SSLWantReadError:  # it speaks about keys first
                if not readable([sock], max(0.0, until - time.monotonic())):
                    break
    finally:
        sock.settimeout(usual)
    return frame


def _writable(sock: socket.socket, until: float) -> bool:
    """Whether it takes something, or tells an error, by that monotonic time."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLOUT)
    rest_s = until - time.monotonic()
    return rest_s > 0 and bool(poll.poll(1000 * rest_s))
