"""Exclusive use of one of a client's connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection


@contextmanager
def borrowed_connection(client: ClusterClient, address: tuple[str, int]) -> Iterator[Connection]:
    """Closed on any error or interruption: responses could still arrive."""
    connection = client.borrow_connection(address) or client.open(address)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    client.return_connection(address, connection)
