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

_MAX_PARTS: Final = 512
_MIN_CONNECT_S: Final = 0.001
_TLS_PIECE_BYTES: Final = 64 << 10


def wait_readable(
    sockets: Iterable[socket.socket], limit_s: float, *, until_writable: Iterable[socket.socket] = ()
) -> set[socket.socket]:
    """With data or errors; waits for one, or until `until_writable` accepts bytes.

    By poll: select rejects descriptors from 1024 on.
    """
    by_fd = {sock.fileno(): sock for sock in sockets}
    events = dict.fromkeys(by_fd, select.POLLIN)
    for fd in [sock.fileno() for sock in until_writable]:
        events[fd] = events.get(fd, 0) | select.POLLOUT
    poll = select.poll()
    for fd, mask in events.items():
        poll.register(fd, mask)
    return {by_fd[fd] for fd, revents in poll.poll(1000 * limit_s) if fd in by_fd and revents & ~select.POLLOUT}


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Each address gets its share of the time.

    Raises OSError; UnicodeError for an impossible host name.
    """
    address_infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    deadline = time.monotonic() + timeout_s
    reason = OSError("the host has no address")
    for number, (family, kind, protocol, _, address) in enumerate(address_infos):
        share_s = (deadline - time.monotonic()) / (len(address_infos) - number)
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # unsupported address family
            reason = error
            continue
        try:
            sock.settimeout(max(_MIN_CONNECT_S, share_s))
            sock.connect(address)
        except OSError as error:
            sock.close()
            reason = error
        else:
            return sock
    raise reason


def to_frame(parts: Sequence[Buffer]) -> list[Buffer]:
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


def push(sock: socket.socket, parts: Sequence[Buffer], timeout_s: float) -> memoryview:
    """Returns a copy of what was not accepted in time. Raises OSError.

    Send that first: TLS may have sent a part of it.
    """
    deadline = time.monotonic() + timeout_s
    if isinstance(sock, ssl.SSLSocket):
        return _push_through_tls(sock, memoryview(b"".join(parts)), deadline)
    unsent = [memoryview(part) for part in parts]
    while unsent:
        try:
            sent = sock.sendmsg(unsent[:_MAX_PARTS], (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            if not _wait_writable(sock, deadline):
                break
            continue
        sent_parts = 0
        while sent_parts < len(unsent) and sent >= len(unsent[sent_parts]):
            sent -= len(unsent[sent_parts])
            sent_parts += 1
        del unsent[:sent_parts]
        if sent:
            unsent[0] = unsent[0][sent:]
    return memoryview(b"".join(unsent))


def _push_through_tls(sock: ssl.SSLSocket, frame: memoryview, deadline: float) -> memoryview:
    """OpenSSL accepts a piece completely, or wants the same bytes again."""
    usual = sock.gettimeout()
    sock.settimeout(0.0)
    try:
        while frame:
            try:
                frame = frame[sock.send(frame[:_TLS_PIECE_BYTES]) :]
            except ssl.SSLWantWriteError:
                if not _wait_writable(sock, deadline):
                    break
            except ssl.SSLWantReadError:  # renegotiation
                if not wait_readable([sock], max(0.0, deadline - time.monotonic())):
                    break
    finally:
        sock.settimeout(usual)
    return frame


def _wait_writable(sock: socket.socket, deadline: float) -> bool:
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLOUT)
    rest_s = deadline - time.monotonic()
    return rest_s > 0 and bool(poll.poll(1000 * rest_s))
