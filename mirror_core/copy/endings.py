"""Checks in few requests whether the last batches of many logs are as they were sent.

When a data plane starts it is unknown whether everything sent before was acknowledged, and one check per partition
would take as long as copying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mirror_core.kafka.at_once import ask_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetching import FetchLink
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition
from mirror_core.wire.batch import LOG_APPEND_TIME, MalformedBatch, batches
from mirror_core.wire.fetch import Fetched, Isolation, Wanted

_AT_ONCE: Final = 512
_BYTES: Final = 8 << 20


def ending_as_sent(client: ClusterClient, led: Mapping[int, Mapping[Partition, int]]) -> set[Partition]:
    """Partitions whose last batch ends at this offset (next to be written) and has its own time, not the
    broker's.

    `led`: log ends by leader; these responded a moment ago, and get time for responses of many megabytes. Partitions
    left out are unknown: each must be checked alone.
    """
    answers = ask_brokers(client, {broker: _question(ends) for broker, ends in led.items()}, at_leisure=True)
    return {p for found in answers.values() if not isinstance(found, RemoteFault) for p in found}


def _question(ends: Mapping[Partition, int]) -> Callable[[Connection], set[Partition]]:
    return lambda connection: set(_as_sent(connection, ends))


def _as_sent(connection: Connection, ends: Mapping[Partition, int]) -> Iterator[Partition]:
    link = FetchLink(connection, max_bytes=_BYTES, partition_max_bytes=_BYTES, at_once=True)
    left = [Wanted(partition, end - 1) for partition, end in ends.items()]
    while left:
        link.ask(left[:_AT_ONCE], max_wait_ms=0, isolation=Isolation.READ_UNCOMMITTED)
        told = {one.partition: _ends_as_sent(one, ends[one.partition]) for one in link.take()}
        yield from (partition for partition, fine in told.items() if fine)
        beyond = [one for one in left[:_AT_ONCE] if told.get(one.partition) is None]
        if len(beyond) == len(left[:_AT_ONCE]):
            return  # not even the first one's batch, for which there is always room: a quota
        left = beyond + left[_AT_ONCE:]


def _ends_as_sent(fetched: Fetched, end: int) -> bool | None:
    try:
        headers = [header for header, _ in batches(fetched.records)]
    except MalformedBatch:
        return False
    if fetched.error or (headers and headers[-1].next_offset != end):
        return False
    return None if not headers else not any(header.attributes & LOG_APPEND_TIME for header in headers)
