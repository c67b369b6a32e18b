"""A copier's wait for whichever connection has something to read."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from mirror_core.kafka.sockets import wait_readable

MANY = 1100
"""More file descriptors than select can tell apart."""


@pytest.fixture
def far() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection; the first one's file descriptor is beyond what select takes."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], MANY + 10), limits[1]))
    near, other = socket.socketpair()
    one = socket.socket(fileno=fcntl.fcntl(near.fileno(), fcntl.F_DUPFD, MANY))
    near.close()
    yield one, other
    one.close()
    other.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_connections_of_a_process_with_very_many_open_files_are_waited_for(
    far: tuple[socket.socket, socket.socket],
) -> None:
    one, other = far
    assert wait_readable([one, other], 0.0) == set()
    other.sendall(b"x")
    assert wait_readable([one, other], 1.0) == {one}
    assert one.recv(1) == b"x"
    other.shutdown(socket.SHUT_WR)
    assert wait_readable([one], 1.0) == {one}, "an end is something to be read"
