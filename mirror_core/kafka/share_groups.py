"""Start offsets of share groups (KIP-932), and records after them that are acknowledged.

A broker stores a start offset only with the next acknowledgement, so the returned one may be too old. The lag tells how
many records after it are acknowledged; `__share_group_state` tells which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.alter_share_group_offsets.v0.request import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kio.schema.alter_share_group_offsets.v0.response import AlterShareGroupOffsetsResponse
from kio.schema.describe_share_group_offsets.v1.request import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from kio.schema.describe_share_group_offsets.v1.response import (
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import fetch_api_versions
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, make_fault
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.errors import RemoteFault
from mirror_core.model.logs import get_logger
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.fields import MalformedResponse
from mirror_core.wire.group_records import (
    SHARE_STATE_TOPIC,
    SharePartition,
    ShareStateRecord,
    decode_share_state,
    find_state_partition,
)

_log = get_logger(__name__)
_DESCRIBE_API_KEY: Final = 90
_LAG_VERSION: Final = 1
"""From here on with the lag (Kafka 4.2)."""


@dataclass(frozen=True, slots=True)
class ShareStart:
    offset: Offset
    """As the broker returns it. All records before it are acknowledged."""
    acknowledged_ahead: int | None
    """Acknowledged records at or after `offset`."""
    acknowledged_until: Offset | None
    """All records before this offset are known to be acknowledged."""


@dataclass(frozen=True, slots=True)
class ShareStarts:
    starts: Mapping[str, Mapping[Partition, ShareStart]]
    faults: Mapping[str, RemoteFault]


@dataclass(frozen=True, slots=True)
class _DescribedStart:
    offset: Offset
    lag: int
    """Unacknowledged records from `offset` to the log end. -1: unknown."""
    share_partition: SharePartition


def can_sync_share_groups(client: ClusterClient) -> bool:
    """With feature `share.version` 0 brokers know the requests and refuse them."""
    return fetch_api_versions(client).get(_DESCRIBE_API_KEY, (0, 0))[1] >= _LAG_VERSION


def describe_start_offsets(client: ClusterClient, broker: int, groups: Collection[str]) -> ShareStarts:
    """One coordinator's groups. Leaves out groups that have moved."""
    if not can_sync_share_groups(client):
        error = RemoteFault(f"cluster {client.name}: share groups are synced with Kafka 4.2 or newer")
        return ShareStarts({}, dict.fromkeys(groups, error))
    try:
        partitions = {p for starts in _describe(client, broker, groups)[0].values() for p in starts}
        # Before and after the lags: the log is at least as long as the first ends, at most as the later ones.
        ends = list_known_offsets(client, partitions, OffsetPoint.HIGH_WATERMARK)
        described, faults = _describe(client, broker, groups)
        later_ends = list_known_offsets(client, partitions, OffsetPoint.HIGH_WATERMARK)
    except RemoteFault as error:
        return ShareStarts({}, dict.fromkeys(groups, error))
    acknowledged_ahead = {
        start.share_partition: None if start.lag < 0 or p not in ends else max(0, ends[p] - start.offset - start.lag)
        for starts in described.values()
        for p, start in starts.items()
    }
    partly_read = {
        start.share_partition: start.offset
        for starts in described.values()
        for p, start in starts.items()
        if start.lag and later_ends.get(p) != start.offset + start.lag
    }
    acknowledged_ends = _find_acknowledged_ends(client, partly_read) if partly_read else {}
    return ShareStarts(
        {
            group: {
                p: _to_share_start(
                    start, acknowledged_ahead[start.share_partition], acknowledged_ends.get(start.share_partition)
                )
                for p, start in starts.items()
            }
            for group, starts in described.items()
        },
        faults,
    )


def _to_share_start(
    start: _DescribedStart, acknowledged_ahead: int | None, acknowledged_end: Offset | None
) -> ShareStart:
    if start.lag == 0 and acknowledged_ahead is not None:
        acknowledged_end = Offset(start.offset + acknowledged_ahead)
    if acknowledged_ahead is not None and acknowledged_end is not None:
        acknowledged_ahead = max(acknowledged_ahead, acknowledged_end - start.offset)
    return ShareStart(start.offset, acknowledged_ahead, acknowledged_end)


def _describe(
    client: ClusterClient, broker: int, groups: Collection[str]
) -> tuple[dict[str, dict[Partition, _DescribedStart]], dict[str, RemoteFault]]:
    wanted = tuple(DescribeShareGroupOffsetsRequestGroup(group_id=GroupId(g), topics=None) for g in groups)
    request = DescribeShareGroupOffsetsRequest(groups=wanted)
    starts, faults = dict[str, dict[Partition, _DescribedStart]](), dict[str, RemoteFault]()
    for row in client.call(request, DescribeShareGroupOffsetsResponse, broker).groups:
        group, codes = str(row.group_id), _list_codes(row)
        if not RETRIABLE_CODES.isdisjoint(codes):
            continue
        if codes:
            where, code = f"share group {group}", min(codes, key=lambda code: code.value)
            faults[group] = make_fault(client, where, "DescribeShareGroupOffsets", code)
        else:
            starts[group] = dict(_list_starts(group, row))
    return starts, faults


def _list_codes(row: DescribeShareGroupOffsetsResponseGroup) -> frozenset[ErrorCode]:
    codes = {row.error_code, *(p.error_code for topic in row.topics for p in topic.partitions)}
    return frozenset(codes - {ErrorCode.none})


def _list_starts(
    group: str, row: DescribeShareGroupOffsetsResponseGroup
) -> Iterator[tuple[Partition, _DescribedStart]]:
    for topic in row.topics:
        for p in topic.partitions:
            if topic.topic_id is not None and p.start_offset >= 0:
                share_partition = SharePartition(group, topic.topic_id, int(p.partition_index))
                start = _DescribedStart(Offset(int(p.start_offset)), int(p.lag), share_partition)
                yield Partition(str(topic.topic_name), int(p.partition_index)), start


def _find_acknowledged_ends(
    client: ClusterClient, starts: Mapping[SharePartition, Offset]
) -> dict[SharePartition, Offset]:
    """Where the acknowledged records after each start end, up to a gap. Empty if the state topic cannot be read."""
    try:
        states = _read_share_states(client, starts)
    except (RemoteFault, MalformedResponse) as error:
        _log.info(
            "share groups continue at their stored start offsets: the state topic cannot be read: %s",
            error,
            cluster=client.name,
        )
        return {}
    return {
        share_partition: find_acknowledged_end(starts[share_partition], records)
        for share_partition, records in states.items()
    }


def find_acknowledged_end(start: Offset, records: Iterable[ShareStateRecord]) -> Offset:
    """`records`: the newest snapshot, then later updates."""
    end = start
    for first, following in sorted(r for record in records for r in record.acknowledged):
        if first > end:
            break
        end = max(end, following)
    return end


def _read_share_states(
    client: ClusterClient, wanted: Collection[SharePartition]
) -> dict[SharePartition, list[ShareStateRecord]]:
    topic = client.metadata([SHARE_STATE_TOPIC]).topics.get(SHARE_STATE_TOPIC)
    by_partition = defaultdict[Partition, set[SharePartition]](set)
    for share_partition in wanted if topic else ():
        index = find_state_partition(share_partition, len(topic.partitions) if topic else 1)
        by_partition[Partition(SHARE_STATE_TOPIC, index)].add(share_partition)
    states = dict[SharePartition, list[ShareStateRecord]]()
    with LogReader(client.config, client.principal, timeout_s=client.timeout_s) as reader:
        for partition, share_partitions in by_partition.items():
            start, end = reader.log_start(partition), reader.stable_end(partition)
            for _, record in reader.records(partition, start, end):
                state = decode_share_state(record.key, record.value)
                if state is None or state.share_partition not in share_partitions:
                    continue
                if state.is_snapshot:
                    states[state.share_partition] = [state]
                elif state.share_partition in states:  # without its snapshot an update says nothing
                    states[state.share_partition].append(state)
    return states


def alter_start_offsets(
    client: ClusterClient, broker: int, group: str, starts: Mapping[Partition, Offset]
) -> dict[Partition, str]:
    """Error names (`none` on success), without partitions to retry.

    For groups without members; creates a group that does not exist. The broker forgets acknowledgements after the new
    start offset.
    """
    by_topic = defaultdict[str, list[AlterShareGroupOffsetsRequestPartition]](list)
    for partition, offset in sorted(starts.items()):
        by_topic[partition.topic].append(
            AlterShareGroupOffsetsRequestPartition(partition_index=i32(partition.index), start_offset=i64(offset))
        )
    topics = tuple(
        AlterShareGroupOffsetsRequestTopic(topic_name=TopicName(topic), partitions=tuple(partitions))
        for topic, partitions in by_topic.items()
    )
    request = AlterShareGroupOffsetsRequest(group_id=GroupId(group), topics=topics)
    response = client.call(request, AlterShareGroupOffsetsResponse, broker)
    codes = {
        Partition(str(topic.topic_name), int(row.partition_index)): row.error_code
        for topic in response.responses
        for row in topic.partitions
    }
    if response.error_code is not ErrorCode.none:
        codes = dict.fromkeys(starts, response.error_code)
    return {p: code.name for p, code in codes.items() if code not in RETRIABLE_CODES}
