"""Finds where each lost partition resumes; handles partitions that no longer exist."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from mirror_core.copy.background import BackgroundThreads
from mirror_core.copy.log_comparisons import (
    MAX_SHORT_COMPARISONS,
    ComparisonCase,
    ComparisonResult,
    LogComparisons,
    handle_unreadable,
)
from mirror_core.copy.log_ends import (
    BothMetadata,
    ExpectedTopicIds,
    LogEndRequest,
    LogEndRequests,
    LogEndsResponse,
    VerifiedMetadata,
    has_expected_topic,
)
from mirror_core.copy.messages import ClusterSide, format_denied
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.resume_decision import ResumeDecision, apply_decision
from mirror_core.decide.task_assignment import rotate_partitions
from mirror_core.kafka.client import ClusterClient, ClusterMetadata, Leader, group_by_leader
from mirror_core.kafka.fan_out import BrokerResponsePending
from mirror_core.model.acl import Operation
from mirror_core.model.errors import RemoteFault
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition

_NO_TOPIC_ID: Final = "0" * 32


def resolve_leaders(
    replicator: PartitionReplicator, metadata: BothMetadata, requests: LogEndRequests
) -> LogEndRequest | None:
    partition, assigned, replaced = replicator.partition, replicator.assigned, FailureKind.REPLACED
    for side, client, expected, gone, recreated in (
        (metadata.source, requests.source, assigned.source_topic_id, FailureKind.GONE, FailureKind.RECREATED),
        (metadata.destination, requests.destination, assigned.destination_topic_id, replaced, replaced),
    ):
        if not _check_topic(replicator, side, client, expected, gone, recreated):
            return None
    from_leader = metadata.source.cluster.topics[partition.topic].partitions[partition.index]
    to_leader = metadata.destination.cluster.topics[partition.topic].partitions[partition.index]
    _distrust_stale_broker(replicator, requests, from_leader, to_leader)
    replicator.set_leaders(from_leader.broker, from_leader.epoch, to_leader.broker)
    offline = [
        client.name
        for broker, client in ((from_leader.broker, requests.source), (to_leader.broker, requests.destination))
        if broker < 0
    ]
    if offline:
        replicator.mark_lost(f"cluster {offline[0]}: no leader for {partition}: bring the brokers of its replicas back")
        return None
    same_leader = assigned.verified_epoch == to_leader.epoch
    return LogEndRequest(
        partition,
        from_leader.broker,
        from_leader.epoch,
        replicator.agreed_epoch,
        to_leader.broker,
        end_unverified=replicator.aligned is None and not assigned.all_answered,
        is_interrupted=replicator.source.is_interrupted,
        verified_end=assigned.verified_end if same_leader else None,
    )


def _check_topic(
    replicator: PartitionReplicator,
    side: VerifiedMetadata,
    client: ClusterClient,
    expected: str,
    gone: FailureKind,
    recreated: FailureKind,
) -> bool:
    """On False the replicator has the reason."""
    partition = replicator.partition
    cluster, topic = client.name, side.cluster.topics.get(partition.topic)
    if partition.topic in side.cluster.denied:
        replicator.fail(
            format_denied(ClusterSide.from_client(client), partition, Operation.DESCRIBE), None, FailureKind.DENIED
        )
        return False
    if reason := _explain_dispute(side, partition, expected):
        replicator.mark_lost(f"cluster {cluster}: {reason}")
        return False
    if topic is None or partition.index not in topic.partitions:
        replicator.fail(f"cluster {cluster}: {partition} does not exist (any more); was the topic deleted?", None, gone)
        return False
    if topic.id != expected:
        replicator.fail(
            f"cluster {cluster}, topic {partition.topic}: it was deleted and created anew under the same name "
            f"(topic id {topic.id}, was {expected})",
            None,
            recreated,
        )
        return False
    return True


def _distrust_stale_broker(
    replicator: PartitionReplicator, requests: LogEndRequests, source: Leader, destination: Leader
) -> None:
    """A stale broker names an older epoch, or a leader that was none before."""
    misleading = replicator.misleading_cluster if replicator.loss_count > 1 else None
    known_leader = replicator.source_broker, replicator.source_epoch
    if source.epoch < replicator.source_epoch or (
        misleading == requests.source.name and known_leader == (source.broker, source.epoch)
    ):
        requests.source.mark_metadata_stale()
    if misleading == requests.destination.name and replicator.destination_broker == destination.broker:
        requests.destination.mark_metadata_stale()


def _explain_dispute(side: VerifiedMetadata, partition: Partition, expected: str) -> str:
    """Empty when the topic is certainly gone.

    A broker that does not respond, or any other one, may still know it. One that misses only the partition is stale:
    topics never lose partitions while they keep their id.
    """
    if has_expected_topic(side.cluster, partition, expected):
        return ""
    name, topic = partition.topic, side.cluster.topics.get(partition.topic)
    has_same_id = topic is not None and topic.id == expected
    if has_same_id and expected == _NO_TOPIC_ID:
        return ""
    if has_same_id or expected in side.topic_ids.ids.get(name, ()):
        return f"its brokers do not all say the same of topic {name}"
    return side.topic_ids.format_undecided(name) if side.topic_ids.unreachable_brokers else ""


_MAX_ROUNDS: Final = 4
_SLOW_ROUND_S: Final = 0.5
_ROUND_INTERVAL_S: Final = 0.1
_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 2.0
_CONNECT_INTERVAL_S: Final = 0.5
_RESUME_VALID_S: Final = 10.0
"""How long a decision, which may have taken minutes, waits for connections and for the driver."""
_SHIFT_PER_EPOCH: Final = MAX_SHORT_COMPARISONS // 2


class _PendingResume(NamedTuple):
    decision: ResumeDecision
    expires_at: float


class _AlignmentRound:
    def __init__(
        self,
        replicators: Mapping[Partition, PartitionReplicator],
        requests: LogEndRequests,
        future: Future[BothMetadata],
        hurry: bool,
    ) -> None:
        self.replicators = replicators
        self.requests = requests
        self.hurry = hurry
        self.future: Future[BothMetadata] | Future[LogEndsResponse] = future
        self.started_at = time.monotonic()

    @property
    def unaligned(self) -> list[PartitionReplicator]:
        return [replicator for replicator in self.replicators.values() if replicator.state is CopyState.LOST]

    def continue_with(self, replicators: Iterable[PartitionReplicator], future: Future[LogEndsResponse]) -> None:
        self.mark_ended()
        self.replicators, self.future = {replicator.partition: replicator for replicator in replicators}, future
        self.mark_started()

    def mark_started(self) -> None:
        for replicator in self.replicators.values():
            replicator.set_in_background(in_background=True)

    def mark_ended(self) -> None:
        for replicator in self.replicators.values():
            replicator.set_in_background(in_background=False)


class ResumeFinder:
    """Control requests only, in background threads; the lost partitions have nothing in flight. A hung broker's round
    does not hold up the next one.
    """

    def __init__(
        self,
        source: ClusterClient,
        destination: ClusterClient,
        producer_id: int,
        set_brokers: Callable[[ClusterMetadata, ClusterMetadata], None],
        filter_connected: Callable[[list[PartitionReplicator]], list[PartitionReplicator]],
        threads: BackgroundThreads,
        epoch: int = 0,
        cluster_ids: tuple[str, str] | None = None,
    ) -> None:
        """`filter_connected` returns partitions whose leaders are connected on both sides and records why the others
        wait. `epoch` decides which comparisons start first.
        """
        self.source = source
        self.destination = destination
        self.producer_id = producer_id
        self._cluster_ids = cluster_ids
        self._set_brokers = set_brokers
        self._filter_connected = filter_connected
        self._threads = threads
        self._rounds: list[_AlignmentRound] = []
        self._idle_requests: list[LogEndRequests] = []
        self._failed_rounds = 0
        self._next_round_at = 0.0
        self._comparisons = LogComparisons(source, destination, producer_id, threads)
        self._pending_resumes: dict[PartitionReplicator, _PendingResume] = {}
        self._next_connect_at = 0.0
        self._shift = epoch * _SHIFT_PER_EPOCH

    @property
    def can_start(self) -> bool:
        now = time.monotonic()
        if now < self._next_round_at or len(self._rounds) >= _MAX_ROUNDS:
            return False
        return all(now - round_.started_at >= _SLOW_ROUND_S for round_ in self._rounds)

    def start(self, replicators: Iterable[PartitionReplicator], *, hurry: bool = True) -> None:
        """Each partition ends READY, DONE or FAILED, or stays LOST while its leader is away or its logs are compared.

        `hurry`: partitions of brokers that respond late move to a slow round of their own.
        """
        self._next_round_at = time.monotonic() + _ROUND_INTERVAL_S
        by_partition = {replicator.partition: replicator for replicator in replicators}
        expected = [
            ExpectedTopicIds(
                replicator.partition, replicator.assigned.source_topic_id, replicator.assigned.destination_topic_id
            )
            for replicator in by_partition.values()
        ]
        requests = self._idle_requests.pop() if self._idle_requests else self._new_requests()
        requests.set_hurry(hurry)
        round_ = _AlignmentRound(
            by_partition, requests, self._threads.submit(partial(requests.fetch_metadata, expected)), hurry
        )
        round_.mark_started()
        self._rounds.append(round_)

    def find_leaders(self, partitions: Collection[Partition]) -> tuple[set[int], set[int]]:
        """On both sides. Blocks. Raises RemoteFault when a cluster does not respond."""
        requests = self._new_requests()
        self._idle_requests.append(requests)
        metadata = requests.fetch_metadata([ExpectedTopicIds(partition, None, None) for partition in partitions])
        self._set_brokers(metadata.source.cluster, metadata.destination.cluster)
        return _find_leading_brokers(partitions, metadata.source.cluster), _find_leading_brokers(
            partitions, metadata.destination.cluster
        )

    def _new_requests(self) -> LogEndRequests:
        return LogEndRequests(self.source.clone(), self.destination.clone(), self.producer_id, self._cluster_ids)

    def _advance_rounds(self, now: float) -> None:
        for round_ in [round_ for round_ in self._rounds if round_.future.done()]:
            self._rounds.remove(round_)
            try:
                result = round_.future.result()
            except RemoteFault as error:
                self._handle_no_response(round_, str(error), now)
                continue
            self._failed_rounds = 0
            if isinstance(result, BothMetadata):
                self._request_log_ends(round_, result)
            else:
                self._start_comparisons(round_, result)

    def _handle_no_response(self, round_: _AlignmentRound, reason: str, now: float) -> None:
        # Jitter: a recovering cluster must not meet all tasks at once.
        pause_s = min(_BACKOFF_S * 2.0**self._failed_rounds, _MAX_BACKOFF_S) * random.uniform(0.5, 1.5)
        self._failed_rounds, self._next_round_at = min(self._failed_rounds + 1, 10), now + pause_s
        self._release_requests(round_)
        for replicator in round_.unaligned:
            replicator.mark_lost(reason)

    def _request_log_ends(self, round_: _AlignmentRound, metadata: BothMetadata) -> None:
        self._set_brokers(metadata.source.cluster, metadata.destination.cluster)
        unaligned = round_.unaligned
        routed = {
            r: request for r in unaligned if (request := resolve_leaders(r, metadata, round_.requests)) is not None
        }
        if connected := self._filter_connected(list(routed)):
            requests = [routed[replicator] for replicator in connected]
            round_.continue_with(connected, self._threads.submit(partial(round_.requests.fetch_log_ends, requests)))
            self._rounds.append(round_)
        else:
            self._release_requests(round_)
        if round_.hurry:
            undecided = {
                r.partition.topic for r in unaligned if any(side.is_undecided(r.partition.topic) for side in metadata)
            }
            self._start_slow_round([r for r in unaligned if r not in routed and r.partition.topic in undecided])

    def _start_comparisons(self, round_: _AlignmentRound, log_ends: LogEndsResponse) -> None:
        self._release_requests(round_)
        slow = []
        for replicator in round_.unaligned:
            if (unknown := log_ends.unknown.get(replicator.partition)) is None:
                continue
            if isinstance(unknown.reason, BrokerResponsePending):
                replicator.mark_lost(str(unknown.reason))
                slow.append(replicator)
            elif isinstance(unknown.reason, RemoteFault):
                handle_unreadable(replicator, unknown.reason, unknown.misleading_cluster)
            else:
                replicator.mark_lost(unknown.reason, unknown.misleading_cluster)
        self._start_slow_round(slow)
        # Connections may be lost meanwhile.
        by_partition = {
            r.partition: r
            for r in self._filter_connected([r for r in round_.unaligned if r.partition in log_ends.bounds])
        }
        # Largest lag first; the rest waits for the next round.
        behind = sorted(by_partition, key=lambda p: log_ends.bounds[p].log_end - log_ends.bounds[p].source_end)
        cases = [
            ComparisonCase(by_partition[p], log_ends.bounds[p], log_ends.agreed_ends.get(p), log_ends.requested_at)
            for p in rotate_partitions(behind, self._shift)
        ]
        self._apply_decisions(self._comparisons.start(cases))

    def _start_slow_round(self, slow: list[PartitionReplicator]) -> None:
        if (slow := [replicator for replicator in slow if replicator.state is CopyState.LOST]) and len(
            self._rounds
        ) < _MAX_ROUNDS - 1:
            self.start(slow, hurry=False)

    def _release_requests(self, round_: _AlignmentRound) -> None:
        round_.mark_ended()
        if len(self._idle_requests) < _MAX_ROUNDS:
            self._idle_requests.append(round_.requests)
        else:
            round_.requests.close()

    @property
    def is_busy(self) -> bool:
        return self._comparisons.is_busy or bool(self._rounds)

    def apply_results(self) -> None:
        now = time.monotonic()
        self._advance_rounds(now)
        for replicator, result in self._collect_decisions():
            if isinstance(result, ResumeDecision):
                self._pending_resumes[replicator], self._next_connect_at = (
                    _PendingResume(result, now + _RESUME_VALID_S),
                    now,
                )
            else:
                self._apply_decisions([(replicator, result)])
        if self._pending_resumes and now >= self._next_connect_at:
            self._next_connect_at = now + _CONNECT_INTERVAL_S
            self._resume_connected(now)

    def _resume_connected(self, now: float) -> None:
        pending = self._release_pending()
        for replicator in self._filter_connected([replicator for replicator in pending if not replicator.is_ended]):
            self._apply_decisions([(replicator, pending[replicator].decision)])
        self._pending_resumes = {
            replicator: resume
            for replicator, resume in pending.items()
            if replicator.state is CopyState.LOST and now < resume.expires_at
        }
        for replicator in self._pending_resumes:
            replicator.postpone(replicator.lost_reason, in_background=True)

    def finish(self, limit_s: float, cancelled: Callable[[], bool]) -> int:
        """Running comparisons get at most `limit_s`; their decisions count although nothing is sent. Returns how
        many the limit interrupted.
        """
        end = time.monotonic() + limit_s
        self._apply_decisions(
            (replicator, pending.decision)
            for replicator, pending in self._release_pending().items()
            if not replicator.is_ended
        )
        self._apply_decisions(self._collect_decisions())
        while self._comparisons.is_busy and not cancelled() and (rest_s := end - time.monotonic()) > 0:
            self._comparisons.wait_for_any(min(rest_s, _CONNECT_INTERVAL_S))
            self._apply_decisions(self._collect_decisions())
        cut_short = 0 if cancelled() else self._comparisons.active_count
        self.close()
        return cut_short

    def _release_pending(self) -> dict[PartitionReplicator, _PendingResume]:
        pending, self._pending_resumes = self._pending_resumes, {}
        for replicator in pending:
            replicator.postpone(replicator.lost_reason)
        return pending

    def _collect_decisions(self) -> Iterator[ComparisonResult]:
        return ((replicator, result) for replicator, result in self._comparisons.collect() if not replicator.is_ended)

    def _apply_decisions(self, results: Iterable[ComparisonResult]) -> None:
        for replicator, result in results:
            if isinstance(result, RemoteFault):
                handle_unreadable(replicator, result)
            else:
                apply_decision(replicator, result, self.source.name)

    def close(self) -> None:
        self._comparisons.close()
        self._release_pending()
        for round_ in self._rounds:
            round_.mark_ended()
            round_.requests.close_when_done(round_.future)
        for requests in self._idle_requests:
            requests.close()
        self._rounds, self._idle_requests = [], []


def _find_leading_brokers(partitions: Iterable[Partition], cluster: ClusterMetadata) -> set[int]:
    return {broker for broker in group_by_leader(partitions, cluster.topics) if broker >= 0}
