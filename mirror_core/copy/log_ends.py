"""Requests leaders and log ends of both clusters in a background thread.

Checks many logs' last batches in few requests: after a start all are in doubt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from mirror_core.decide.gaps_and_resume import NO_KNOWN_OFFSET, BothLogBounds, OwnProducerState
from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fan_out import BrokerResponsePending, call_brokers
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.leader_epochs import list_epoch_ends
from mirror_core.kafka.log_offsets import OffsetPoint, PartitionProducer
from mirror_core.kafka.log_snapshot import LogSnapshot, list_offset_pairs, snapshot_logs
from mirror_core.kafka.reassignment import TopicIds, fetch_topic_ids
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.model.names import ClusterName, Partition
from mirror_core.wire.batch import (
    CONTROL,
    CURRENT_MAGIC,
    LOG_APPEND_TIME,
    SEQUENCE_MASK,
    BatchHeader,
    MalformedBatch,
    compute_batch_digest,
    split_batches,
)
from mirror_core.wire.fetch import FetchPosition, IsolationLevel
from mirror_core.wire.records import decode_records

_MAX_PARTITIONS_PER_FETCH: Final = 512
_FETCH_BYTES: Final = 8 << 20
_MAX_COMPARED_TOGETHER: Final = 128
"""Their last batches are in memory."""
_MAX_CONTROL_BATCHES: Final = 2
"""At a log's end. Behind more of them a partition is compared alone."""
_PlacedBatch = tuple[BatchHeader, memoryview]
Inspection = TypeVar("Inspection")


def find_ends_as_sent(client: ClusterClient, ends_by_leader: Mapping[int, Mapping[Partition, int]]) -> set[Partition]:
    """Partitions whose last batch ends at this offset (next to be written) with its own time, not the broker's.

    `ends_by_leader`: those leaders responded a moment ago, and get time for megabytes. Partitions left out are unknown:
    each must be checked alone.
    """
    results = _inspect_batches(
        client,
        {broker: {p: end - 1 for p, end in ends.items()} for broker, ends in ends_by_leader.items()},
        _is_end_as_sent,
    )
    return {partition for partition, as_sent in results.items() if as_sent}


def _inspect_batches(
    client: ClusterClient,
    offsets_by_leader: Mapping[int, Mapping[Partition, int]],
    inspect: Callable[[int, Sequence[_PlacedBatch]], Inspection],
) -> dict[Partition, Inspection]:
    """Uncommitted batches included.

    The views that `inspect` gets are void afterwards. Leaves out what cannot be read.
    """
    calls = {
        broker: partial(_fetch_and_inspect, offsets=offsets, inspect=inspect)
        for broker, offsets in offsets_by_leader.items()
    }
    results = call_brokers(client, calls, wait_full_timeout=True)
    return {p: row for result in results.values() if not isinstance(result, RemoteFault) for p, row in result.items()}


def _fetch_and_inspect(
    connection: Connection,
    offsets: Mapping[Partition, int],
    inspect: Callable[[int, Sequence[_PlacedBatch]], Inspection],
) -> dict[Partition, Inspection]:
    link = FetchLink(connection, max_bytes=_FETCH_BYTES, partition_max_bytes=_FETCH_BYTES, full_size=True)
    remaining = [FetchPosition(partition, offset) for partition, offset in offsets.items()]
    results, unreadable = dict[Partition, Inspection](), set[Partition]()
    while remaining:
        requested, rest = remaining[:_MAX_PARTITIONS_PER_FETCH], remaining[_MAX_PARTITIONS_PER_FETCH:]
        link.send_fetch(requested, max_wait_ms=0, isolation=IsolationLevel.READ_UNCOMMITTED)
        for fetched in link.read_response():
            try:
                if fetched.error:
                    unreadable.add(fetched.partition)
                elif batches := list(split_batches(fetched.records)):
                    results[fetched.partition] = inspect(offsets[fetched.partition], batches)
            except MalformedBatch:
                unreadable.add(fetched.partition)
        undecided = [item for item in requested if item.partition not in results.keys() | unreadable]
        if len(undecided) == len(requested):
            break  # not even the first one's batch, for which there is always room: a quota
        remaining = undecided + rest
    return results


def _is_end_as_sent(last_offset: int, batches: Sequence[_PlacedBatch]) -> bool:
    headers = [header for header, _ in batches]
    return headers[-1].last_offset == last_offset and not any(h.attributes & LOG_APPEND_TIME for h in headers)


class LogTail(NamedTuple):
    source_broker: int
    destination_broker: int
    start: int
    """First offset that both logs may hold."""
    end: int
    """Next offset to be copied."""


class _LastBatch(NamedTuple):
    offset: int
    """The last one that counts: later ones are not copied yet."""
    header: BatchHeader
    batch: memoryview


def find_equal_tails(
    source: ClusterClient, destination: ClusterClient, tails: Mapping[Partition, LogTail]
) -> set[Partition]:
    """Partitions where the source's last record below the end is on the destination, at its offset.

    Others are unknown: each must be compared alone.
    """
    equal, partitions = set[Partition](), list(tails)
    for first in range(0, len(partitions), _MAX_COMPARED_TOGETHER):
        chunk = {p: tails[p] for p in partitions[first : first + _MAX_COMPARED_TOGETHER]}
        last_batches = _find_last_batches(source, chunk)
        offsets = _group_offsets({p: last.offset for p, last in last_batches.items()}, chunk, is_source=False)
        copies = _inspect_batches(destination, offsets, _copy_first_batch)
        equal |= {p for p, copy in copies.items() if copy is not None and _has_equal_record(last_batches[p], copy)}
    return equal


def _find_last_batches(source: ClusterClient, tails: Mapping[Partition, LogTail]) -> dict[Partition, _LastBatch]:
    last_batches, offsets = dict[Partition, _LastBatch](), {p: tail.end - 1 for p, tail in tails.items()}
    for _ in range(_MAX_CONTROL_BATCHES + 1):
        batches = _inspect_batches(source, _group_offsets(offsets, tails, is_source=True), _copy_first_batch)
        offsets = {}
        for partition, last in batches.items():
            if last is not None and not last.header.attributes & CONTROL:
                last_batches[partition] = last
            elif last is not None and last.header.base_offset > tails[partition].start:
                offsets[partition] = last.header.base_offset - 1
        if not offsets:
            break
    return last_batches


def _group_offsets(
    offsets: Mapping[Partition, int], tails: Mapping[Partition, LogTail], *, is_source: bool
) -> dict[int, dict[Partition, int]]:
    by_leader: dict[int, dict[Partition, int]] = {}
    for partition, offset in offsets.items():
        tail = tails[partition]
        broker = tail.source_broker if is_source else tail.destination_broker
        by_leader.setdefault(broker, {})[partition] = offset
    return by_leader


def _copy_first_batch(offset: int, batches: Sequence[_PlacedBatch]) -> _LastBatch | None:
    """Returns None where compaction has removed what was there, and for old formats."""
    header, batch = batches[0]
    is_there = header.base_offset <= offset and header.magic == CURRENT_MAGIC
    return _LastBatch(min(offset, header.last_offset), header, memoryview(bytes(batch))) if is_there else None


def _has_equal_record(last: _LastBatch, copy: _LastBatch) -> bool:
    digests = [compute_batch_digest(item.header.base_offset, item.batch) for item in (last, copy)]
    if digests[0] == digests[1]:
        return True
    if copy.header.attributes & CONTROL:
        return False
    try:
        records, copied = (list(decode_records(item.header, item.batch)) for item in (last, copy))
    except MalformedBatch:
        return False
    counted = [record for record in records if record.offset <= last.offset]
    return bool(counted) and counted[-1] in copied


_STABLE_END_TRIES: Final = 10
_STABLE_END_WAIT_S: Final = 0.02


class ExpectedTopicIds(NamedTuple):
    partition: Partition
    source_topic_id: str | None
    destination_topic_id: str | None


@dataclass(frozen=True, slots=True)
class VerifiedMetadata:
    cluster: ClusterMetadata
    topic_ids: TopicIds
    """From all brokers, for topics that this broker reports as deleted or replaced."""

    def is_undecided(self, topic: str) -> bool:
        return bool(self.topic_ids.unreachable_brokers) and topic in self.topic_ids.ids


class BothMetadata(NamedTuple):
    source: VerifiedMetadata
    destination: VerifiedMetadata


class LogEndRequest(NamedTuple):
    partition: Partition
    source_broker: int
    source_epoch: int
    agreed_epoch: int | None
    destination_broker: int
    end_unverified: bool
    """Nothing confirms the end of the destination's log, and this is its first check."""
    is_interrupted: bool
    """As `SourceLogState.is_interrupted`."""
    verified_end: int | None


class UnknownLogEnd(NamedTuple):
    reason: RemoteFault | str
    """`BrokerResponsePending`: the partition moves to a slow round."""
    misleading_cluster: ClusterName | None


@dataclass(frozen=True, slots=True)
class LogEndsResponse:
    requested_at: float
    agreed_ends: Mapping[Partition, int]
    """Offset up to which both sides agreed, where the source's leader changed since (KIP-101)."""
    bounds: Mapping[Partition, BothLogBounds]
    unknown: Mapping[Partition, UnknownLogEnd]


def _require_recorded_clusters(cluster_ids: tuple[str, str], *sides: tuple[ClusterName, ClusterMetadata]) -> None:
    """Else another cluster's topics would seem recreated, and be FAILED."""
    for (name, metadata), recorded_id in zip(sides, cluster_ids, strict=True):
        if metadata.cluster_id != recorded_id:
            raise RemoteFault(
                f"cluster {name} is {metadata.cluster_id} now, and was {recorded_id} when the mirror was created:"
                " nothing is copied until its address is corrected"
            )


class LogEndRequests:
    def __init__(
        self,
        source: ClusterClient,
        destination: ClusterClient,
        producer_id: int,
        cluster_ids: tuple[str, str] | None = None,
    ) -> None:
        self.source = source
        self.destination = destination
        self._producer_id = producer_id
        self._cluster_ids = cluster_ids

    def set_hurry(self, hurry: bool) -> None:
        for client in (self.source, self.destination):
            client.set_fail_fast(hurry)

    def fetch_metadata(self, expected: Sequence[ExpectedTopicIds]) -> BothMetadata:
        topics = {item.partition.topic for item in expected}
        source, destination = (client.metadata(topics) for client in (self.source, self.destination))
        if self._cluster_ids is not None:
            _require_recorded_clusters(
                self._cluster_ids, (self.source.name, source), (self.destination.name, destination)
            )
        source_ids = {item.partition: item.source_topic_id for item in expected}
        destination_ids = {item.partition: item.destination_topic_id for item in expected}
        return BothMetadata(
            _verify_metadata(self.source, source, source_ids),
            _verify_metadata(self.destination, destination, destination_ids),
        )

    def fetch_log_ends(self, requests: Sequence[LogEndRequest]) -> LogEndsResponse:
        by_partition = {request.partition: request for request in requests}
        unknown: dict[Partition, UnknownLogEnd] = {}
        agreed_ends = self._fetch_agreed_ends(by_partition, unknown)
        remaining = {p: request for p, request in by_partition.items() if p not in unknown}
        requested_at = time.monotonic()
        bounds = self._fetch_stable_ends(remaining, unknown)
        return LogEndsResponse(requested_at, agreed_ends, bounds, unknown)

    def _fetch_agreed_ends(
        self, requests: Mapping[Partition, LogEndRequest], unknown: dict[Partition, UnknownLogEnd]
    ) -> dict[Partition, int]:
        """End of the known epoch in the new leader's log; NO_KNOWN_OFFSET where it does not know the epoch.

        A restored cluster starts again with older epochs.
        """
        changed = {
            p: request.agreed_epoch for p, request in requests.items() if request.agreed_epoch != request.source_epoch
        }
        older_epochs = {
            p: epoch for p, epoch in changed.items() if epoch is not None and epoch < requests[p].source_epoch
        }
        ends = list_epoch_ends(
            self.source, older_epochs, _group_by_leader(older_epochs, lambda p: requests[p].source_broker)
        )
        unknown.update({p: UnknownLogEnd(error, self.source.name) for p, error in ends.unknown.items()})
        return {p: ends.offsets.get(p, NO_KNOWN_OFFSET) for p in changed if p not in unknown}

    def _fetch_stable_ends(
        self, requests: Mapping[Partition, LogEndRequest], unknown: dict[Partition, UnknownLogEnd]
    ) -> dict[Partition, BothLogBounds]:
        """Both logs at a moment when nobody appends (`explain_unstable_end`).

        A log that keeps moving becomes unknown, and does not hold up the others.
        """
        stable: dict[Partition, LogSnapshot] = {}
        waiting, reasons, growing = list(requests), dict[Partition, RemoteFault | str](), set[Partition]()
        for _ in range(_STABLE_END_TRIES):
            probe = snapshot_logs(self.destination, _group_by_leader(waiting, lambda p: requests[p].destination_broker))
            reasons |= probe.unknown
            for p, error in probe.unknown.items():
                if isinstance(error, MissingPermission):
                    unknown[p] = UnknownLogEnd(error, None)
            waiting = [p for p in waiting if p in probe.logs]
            for p in waiting:
                log = probe.logs[p]
                reasons[p] = explain_unstable_end(
                    self.destination.name, p, log.end_before, log.end_after, log.high_watermark
                )
                if not reasons[p]:
                    stable[p] = log
                elif log.end_before != log.end_after:
                    growing.add(p)
            waiting = [p for p in waiting if p not in stable]
            if not waiting:
                break
            time.sleep(_STABLE_END_WAIT_S)
        # The source's end is read last. It only grows, so a position beyond it never existed.
        by_leader = _group_by_leader(stable, lambda p: requests[p].source_broker)
        ends = list_offset_pairs(self.source, by_leader, OffsetPoint.START, OffsetPoint.LOG_END)
        reasons |= ends.unknown
        for p in requests.keys() - ends.pairs.keys() - unknown.keys():
            # A leader without followers may be an outdated one.
            misleading = self.source.name if p in stable else None if p in growing else self.destination.name
            reason = reasons.get(p) or f"{p}: a leader does not say now where its log begins and ends"
            unknown[p] = UnknownLogEnd(reason if isinstance(reason, BrokerResponsePending) else str(reason), misleading)
        ends_as_sent = self._find_ends_as_sent(requests, {p: stable[p] for p in ends.pairs})
        tails = {
            p: LogTail(requests[p].source_broker, requests[p].destination_broker, start, stable[p].end_after)
            for p, (source_start, source_end) in ends.pairs.items()
            if requests[p].is_interrupted
            and (start := max(source_start, stable[p].start)) < stable[p].end_after <= source_end
        }
        equal_tails = find_equal_tails(self.source, self.destination, tails) if tails else set[Partition]()
        return {
            p: BothLogBounds(
                log_start=stable[p].start,
                log_end=stable[p].end_after,
                producer=find_own_producer(stable[p].producers, self._producer_id),
                source_start=start,
                source_end=end,
                ends_as_sent=p in ends_as_sent,
                has_equal_tails=p in equal_tails,
                verified_end=requests[p].verified_end,
            )
            for p, (start, end) in ends.pairs.items()
        }

    def _find_ends_as_sent(
        self, requests: Mapping[Partition, LogEndRequest], logs: Mapping[Partition, LogSnapshot]
    ) -> set[Partition]:
        by_leader: dict[int, dict[Partition, int]] = {}
        for p, log in logs.items():
            if requests[p].end_unverified and log.start < log.end_after:
                by_leader.setdefault(requests[p].destination_broker, {})[p] = log.end_after
        return find_ends_as_sent(self.destination, by_leader) if by_leader else set()

    def close_when_done(self, future: Future[BothMetadata] | Future[LogEndsResponse]) -> None:
        future.add_done_callback(lambda _: self.close())

    def close(self) -> None:
        self.source.close()
        self.destination.close()


def find_own_producer(producers: Iterable[PartitionProducer], producer_id: int) -> OwnProducerState | None:
    for producer in producers:
        if producer.producer_id == producer_id:
            return OwnProducerState(
                (producer.last_sequence + 1) & SEQUENCE_MASK, producer.coordinator_epoch, producer.newest_ms
            )
    return None


def _verify_metadata(
    client: ClusterClient, cluster: ClusterMetadata, expected: Mapping[Partition, str | None]
) -> VerifiedMetadata:
    doubtful = {
        p.topic
        for p, topic_id in expected.items()
        if topic_id is not None and not has_expected_topic(cluster, p, topic_id)
    }
    doubtful -= cluster.denied
    return VerifiedMetadata(cluster, fetch_topic_ids(client, doubtful) if doubtful else TopicIds({}, ()))


def has_expected_topic(cluster: ClusterMetadata, partition: Partition, topic_id: str) -> bool:
    topic = cluster.topics.get(partition.topic)
    return topic is not None and topic.id == topic_id and partition.index in topic.partitions


def _group_by_leader(
    partitions: Iterable[Partition], leader_of: Callable[[Partition], int]
) -> dict[int, list[Partition]]:
    by_leader: dict[int, list[Partition]] = {}
    for partition in sorted(partitions):
        by_leader.setdefault(leader_of(partition), []).append(partition)
    return by_leader


def explain_unstable_end(
    cluster: ClusterName, partition: Partition, before: int, after: int, replicated: int | None
) -> str:
    """Empty when a snapshot of the destination's log is conclusive.

    The log end is the same before and after the producer state was read, and all in-sync replicas have it. What only
    the leader has, it may lose (KIP-966).
    """
    subject = f"cluster {cluster}, {partition}"
    if before != after:
        return f"{subject} keeps growing: another copier of this mirror is at work"
    if replicated is not None and replicated >= after:
        return ""
    return (
        f"{subject}: the log ends at {after}, and its replicas have it up to "
        f"{'nobody knows where' if replicated is None else f'{replicated} only'}: they are behind, or fewer than "
        "min.insync.replicas are in sync"
    )
