"""Reading a few batches back from a log's end: does the tail hold what it must, and where does it stop doing so?"""

from __future__ import annotations

from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetching import FetchLink, fetch_once
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Partition
from mirror_core.wire.batch import HEADER_SIZE, SEQUENCE_MASK, BatchHeader, batches

_WINDOW: Final = 1 << 20
_FIRST_STEP: Final = 1_000


def first_foreign(client: ClusterClient, partition: Partition, producer_id: int, log_start: int, log_end: int) -> int:
    """Offset of the first record in the newest part of the log that this producer id did not write where it stands.

    Goes back in growing steps until a batch of ours (this producer id, sequence equal to its offset) is found: whatever
    comes right after the last such run is foreign. Only headers are looked at.
    """
    with _open(client, partition) as link_owner:
        link = _link(link_owner)
        step = _FIRST_STEP
        while True:
            start = max(log_start, log_end - step)
            foreign: int | None = None
            ours_seen = False
            for header in _headers(link, partition, start, log_end):
                ours = header.producer_id == producer_id and header.base_sequence == header.base_offset & SEQUENCE_MASK
                if ours:
                    ours_seen, foreign = True, None
                elif foreign is None:
                    foreign = max(header.base_offset, log_start)
            if ours_seen or start == log_start:
                return foreign if foreign is not None else log_end
            step *= 4


def record_before(client: ClusterClient, partition: Partition, offset: int) -> tuple[int, int, bytes] | None:
    """The batch that ends right before `offset`: base offset, record count and bytes after its header.

    None when no batch ends there, for instance because compaction or retention took it.
    """
    with _open(client, partition) as connection:
        link = _link(connection)
        fetched = fetch_once(link, partition, offset - 1)
        if fetched is None or fetched.error:
            return None
        for header, batch in batches(fetched.records):
            if header.next_offset == offset:
                return header.base_offset, header.record_count, bytes(batch[HEADER_SIZE:])
    return None


def _open(client: ClusterClient, partition: Partition) -> Connection:
    view = client.metadata([partition.topic])
    leader = view.topics[partition.topic].partitions[partition.index].broker
    if leader not in view.brokers:
        raise Unreachable(f"cluster {client.name}: no leader for {partition}")
    return Connection(client.config, client.principal, *view.brokers[leader], timeout_s=client.timeout_s)


def _link(connection: Connection) -> FetchLink:
    return FetchLink(connection, max_bytes=_WINDOW, partition_max_bytes=_WINDOW)


def _headers(link: FetchLink, partition: Partition, start: int, end: int) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    position = start
    while position < end:
        fetched = fetch_once(link, partition, position)
        if fetched is None or fetched.error:
            raise Unreachable(f"{link.connection.where}: {partition} cannot be read at offset {position}")
        headers = [header for header, _ in batches(fetched.records)]
        if not headers:
            break
        found += headers
        position = headers[-1].next_offset
    return found
