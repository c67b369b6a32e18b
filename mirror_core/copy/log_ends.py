"""Requests leaders and log ends of both clusters in a background thread.

Checks many logs' last batches in few requests: after a start all are in doubt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, NamedTuple

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
from mirror_core.wire.batch import LOG_APPEND_TIME, SEQUENCE_MASK, MalformedBatch, split_batches
from mirror_core.wire.fetch import FetchedPartition, FetchPosition, IsolationLevel

_MAX_PARTITIONS_PER_FETCH: Final = 512
_FETCH_BYTES: Final = 8 << 20


def find_ends_as_sent(client: ClusterClient, ends_by_leader: Mapping[int, Mapping[Partition, int]]) -> set[Partition]:
    """Partitions whose last batch ends at this offset (next to be written) and has its own time, not the broker's.

    `ends_by_leader`: the leaders responded a moment ago, and get time for responses of many megabytes. Partitions left
    out are unknown: each must be checked alone.
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
        """End of the known epoch in the new leader's log; NO_KNOWN_OFFSET where that leader does not know the epoch.

        A cluster that was restored from a backup starts again with older epochs.
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

        A predecessor's last requests may still arrive; they cannot do harm (`decide.gaps_and_resume`). A log that keeps
        moving becomes unknown, and does not hold up the others.
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
        return {
            p: BothLogBounds(
                log_start=stable[p].start,
                log_end=stable[p].end_after,
                producer=find_own_producer(stable[p].producers, self._producer_id),
                source_start=start,
                source_end=end,
                ends_as_sent=p in ends_as_sent,
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
    """Asks all brokers for topic ids where one broker's metadata is unexpected: it may be stale."""
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
    """Why a snapshot of the destination's log is inconclusive; "" when it is conclusive.

    Conclusive: the log end is the same before and after the producer state was read, and all in-sync replicas have it.
    What only the leader has, it may lose (KIP-966).
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
