"""Checks in few requests whether the last batches of many logs are as they were sent.

When a data plane starts it is unknown whether everything sent before was acknowledged, and one check per partition
would take as long as copying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mirror_core.kafka.at_once import call_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetching import FetchLink
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition
from mirror_core.wire.batch import LOG_APPEND_TIME, MalformedBatch, split_batches
from mirror_core.wire.fetch import FetchedPartition, FetchPosition, IsolationLevel

_MAX_PARTITIONS_PER_FETCH: Final = 512
_FETCH_BYTES: Final = 8 << 20


def find_ends_as_sent(client: ClusterClient, ends_by_leader: Mapping[int, Mapping[Partition, int]]) -> set[Partition]:
    """Partitions whose last batch ends at this offset (next to be written) and has its own time, not the
    broker's.

    `led`: log ends by leader; these responded a moment ago, and get time for responses of many megabytes. Partitions
    left out are unknown: each must be checked alone.
    """
    results = call_brokers(
        client, {broker: _make_end_check(ends) for broker, ends in ends_by_leader.items()}, wait_full_timeout=True
    )
    return {p for result in results.values() if not isinstance(result, RemoteFault) for p in result}


def _make_end_check(ends: Mapping[Partition, int]) -> Callable[[Connection], set[Partition]]:
    return lambda connection: set(_check_ends(connection, ends))


def _check_ends(connection: Connection, ends: Mapping[Partition, int]) -> Iterator[Partition]:
    link = FetchLink(connection, max_bytes=_FETCH_BYTES, partition_max_bytes=_FETCH_BYTES, full_size=True)
    remaining = [FetchPosition(partition, end - 1) for partition, end in ends.items()]
    while remaining:
        link.send_fetch(remaining[:_MAX_PARTITIONS_PER_FETCH], max_wait_ms=0, isolation=IsolationLevel.READ_UNCOMMITTED)
        results = {
            fetched.partition: _is_end_as_sent(fetched, ends[fetched.partition]) for fetched in link.read_response()
        }
        yield from (partition for partition, as_sent in results.items() if as_sent)
        undecided = [
            fetched for fetched in remaining[:_MAX_PARTITIONS_PER_FETCH] if results.get(fetched.partition) is None
        ]
        if len(undecided) == len(remaining[:_MAX_PARTITIONS_PER_FETCH]):
            return  # not even the first one's batch, for which there is always room: a quota
        remaining = undecided + remaining[_MAX_PARTITIONS_PER_FETCH:]


def _is_end_as_sent(fetched: FetchedPartition, end: int) -> bool | None:
    try:
        headers = [header for header, _ in split_batches(fetched.records)]
    except MalformedBatch:
        return False
    if fetched.error or (headers and headers[-1].next_offset != end):
        return False
    return None if not headers else not any(header.attributes & LOG_APPEND_TIME for header in headers)
