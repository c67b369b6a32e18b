"""One connection of a client for a while, for what is more than a request and its answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection


@contextmanager
def lent(client: ClusterClient, address: tuple[str, int]) -> Iterator[Connection]:
    """Given back at the end. Closed where anything goes wrong, also an interruption: answers may come at any time."""
    connection = client.lend(address) or client.open(address)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    client.give_back(address, connection)
