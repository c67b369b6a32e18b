"""Observes the source each second, in its own thread, for the day on which it does not respond.

Observations are stored in the state topic, at a bounded rate.

The driver's heartbeats and observations of its source, for an unplanned failover.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from mirror_core.dataplane.heartbeat_writer import HeartbeatWriter
from mirror_core.dataplane.progress import ReportedEnds
from mirror_core.dataplane.recovery_point import RecoveryPoints
from mirror_core.decide.clock_skew import to_local_clock_ms
from mirror_core.decide.filters import build_topic_filter
from mirror_core.decide.forecast_accuracy import select_application_partitions
from mirror_core.decide.mirror_snapshot import is_healthy
from mirror_core.kafka.client import ClusterClient, Leader, TopicMetadata
from mirror_core.kafka.leader_epochs import list_epoch_ends
from mirror_core.kafka.log_offsets import OffsetPoint, describe_producers, list_available_offsets
from mirror_core.kafka.transactions import OpenTransaction, list_open_transactions
from mirror_core.model.errors import MirrorError, RemoteFault, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import FailureKind, Mirror, NameFilters, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.source_observation import (
    TRANSACTION_OVER,
    ObservedEnd,
    ObservedTopic,
    ObservedTransaction,
    PartitionTransaction,
    SourceObservation,
)
from mirror_core.model.timing import TIMEOUTS, SteadyClock, now_ms
from mirror_core.state.lease import HeldLease
from mirror_core.state.mirror_link import MirrorLink

_log = get_logger(__name__)
OBSERVE_INTERVAL_S: Final = 1.0
MAX_OBSERVATION_BYTES_PER_S: Final = 32 << 10
"""A mirror of 50,000 partitions is stored every quarter of a minute."""
MAX_LISTED_TRANSACTIONS: Final = 200
_TRANSACTIONS_PAUSE_FACTOR: Final = 10
"""Pause after a slow request for transactions, times its duration: each broker lists all producers of
each partition."""
_LISTING_PAUSE_FACTOR: Final = 10
"""Times the duration of a listing: at most a tenth of a processor. Measured: 50,000 partitions take 2
to 4 MB, and 0.1 to 0.25 s to parse."""
_MAX_LISTING_PAUSE_S: Final = 30.0
_MAX_TRANSACTIONS_PAUSE_S: Final = 300.0
_MAX_ENDED_TRANSACTIONS: Final = 2_000
_RATE_WINDOW_MS: Final = 60_000
TransactionKey = tuple[str, int, int]
"""Id, producer id, start: an id has one transaction at a time."""


@dataclass(slots=True)
class AppendRate:
    """Offsets per second that all partitions took together, over the last minute."""

    growths: deque[tuple[int, int, int]] = field(default_factory=deque)
    """(from, to, offsets) of consecutive observations."""

    def add_growth(self, from_ms: int, to_ms: int, offsets: int) -> None:
        self.growths.append((from_ms, to_ms, offsets))
        while self.growths[0][1] <= to_ms - _RATE_WINDOW_MS:
            self.growths.popleft()

    def compute_offsets_per_s(self) -> float | None:
        if not self.growths:
            return None
        seconds = (self.growths[-1][1] - self.growths[0][0]) / 1000
        return sum(offsets for *_, offsets in self.growths) / seconds if seconds > 0 else None


@dataclass(slots=True)
class ObservedSource:
    """What was observed so far; what cannot be observed now stays. No client, no clock."""

    mirror: MirrorName
    observed_ends: dict[Partition, ObservedEnd]
    offline: frozenset[Partition] = frozenset()
    transactions: dict[TransactionKey, ObservedTransaction] | None = None
    transactions_ms: int | None = None
    at_ms: int = 0
    recovery_points: RecoveryPoints = field(default_factory=RecoveryPoints)
    recorded: Mapping[Partition, PartitionStatus] = field(default_factory=dict)
    unrecorded: frozenset[Partition] = frozenset()
    topic_ids: dict[str, str] = field(default_factory=dict)
    log_starts: dict[Partition, Offset] = field(default_factory=dict)
    end_epochs: dict[Partition, tuple[int, Offset]] = field(default_factory=dict)
    """Leader epoch, and the newest end that was observed under it; of copies."""
    rewritten: dict[Partition, tuple[int, Offset]] = field(default_factory=dict)
    """Leader epoch under which the copy last agreed, and the offset from which on the source has other records."""
    listed_ms: int | None = None
    listed_by: NameFilters | None = None
    append_rate: AppendRate = field(default_factory=AppendRate)

    def update_topics(
        self,
        described: Mapping[str, TopicMetadata],
        listed_ms: int | None,
        listed_by: NameFilters | None = None,
    ) -> None:
        """`listed_ms`: when all matching topics were listed, by these filters; None: only some were described."""
        for name, description in described.items():
            first_status = self.recorded.get(Partition(name, 0))
            previous_id = self.topic_ids.get(name) or (first_status.source_topic_id if first_status else description.id)
            if previous_id != description.id:  # another topic's ends
                self.observed_ends = {p: observed for p, observed in self.observed_ends.items() if p.topic != name}
                self.log_starts = {p: start for p, start in self.log_starts.items() if p.topic != name}
                self.end_epochs = {p: row for p, row in self.end_epochs.items() if p.topic != name}
                self.rewritten = {p: row for p, row in self.rewritten.items() if p.topic != name}
            self.topic_ids[name] = description.id
        new = {
            p
            for name, description in described.items()
            for index in description.partitions
            if (p := Partition(name, index)) not in self.recorded
        }
        if listed_ms is None:
            self.unrecorded |= new
        else:
            self.unrecorded, self.listed_ms, self.listed_by = frozenset(new), listed_ms, listed_by

    def get_known_partitions(self) -> frozenset[Partition]:
        return self.unrecorded | self.recorded.keys()

    def get_uncopied_partitions(self) -> frozenset[Partition]:
        """Partitions that are not (or no longer) copied: their whole log may be lost."""
        return self.unrecorded | {p for p, s in self.recorded.items() if not is_healthy(s) or not self._is_copy(p, s)}

    def _is_copy(self, partition: Partition, recorded_status: PartitionStatus) -> bool:
        """Whether the destination may hold the source's current log."""
        return (
            partition not in self.rewritten
            and bool(recorded_status.destination_topic_id)
            and self._find_changed_id(partition.topic, recorded_status) in ("", recorded_status.source_topic_id)
        )

    def _is_deleted(self, partition: Partition) -> bool:
        """Known from a plan, which asks every broker."""
        status = self.recorded.get(partition)
        is_gone = status is not None and status.kind is FailureKind.GONE
        return is_gone and not self._find_changed_id(partition.topic, status)

    def _find_changed_id(self, topic: str, status: PartitionStatus | None) -> str:
        topic_id = self.topic_ids.get(topic, "")
        return "" if status is not None and topic_id == status.source_topic_id else topic_id

    def list_ended_epochs(self, leaders: Mapping[Partition, Leader]) -> dict[Partition, int]:
        """Leader epochs under which ends were observed, of partitions that have a newer one."""
        return {p: epoch for p, (epoch, _) in self.end_epochs.items() if p in leaders and leaders[p].epoch > epoch}

    def update_ended_epochs(self, epoch_ends: Mapping[Partition, Offset]) -> None:
        """Where they end now. Below an observed end, the source has lost what it had acknowledged by then."""
        for partition, end in epoch_ends.items():
            _, observed_end = self.end_epochs.pop(partition)
            agreed_epoch = self.recorded[partition].source_epoch
            if end < observed_end and agreed_epoch is not None:
                self.rewritten[partition] = agreed_epoch, end

    def update_end_epochs(self, leader_epochs: Mapping[Partition, int], ends: Mapping[Partition, Offset]) -> None:
        """`leader_epochs`: those under which leaders told the ends; -1: unknown."""
        for partition, epoch in leader_epochs.items():
            status = self.recorded.get(partition)
            if epoch < 0 or status is None or not self._is_copy(partition, status):
                self.end_epochs.pop(partition, None)
            elif self.end_epochs.get(partition, (epoch,))[0] == epoch:
                self.end_epochs[partition] = epoch, ends[partition]

    def update_ends(self, at_ms: int, ends: Mapping[Partition, Offset], offline: Collection[Partition]) -> None:
        if self.at_ms:
            known_ends = self.observed_ends
            partitions = select_application_partitions(known_ends.keys() & ends.keys())
            offsets = sum(max(0, ends[p] - known_ends[p].end) for p in partitions)
            self.append_rate.add_growth(self.at_ms, at_ms, offsets)
        self.at_ms = at_ms
        self.offline = frozenset(p for p in offline if not self._is_deleted(p))
        observed = {p: ObservedEnd(end, at_ms) for p, end in ends.items()}
        self.observed_ends |= observed
        copies = {p for p, status in self.recorded.items() if self._is_copy(p, status)}
        self.recovery_points.keep_only(copies)
        self.recovery_points.add_observations({p: observation for p, observation in observed.items() if p in copies})

    def set_recorded(self, recorded: Mapping[Partition, PartitionStatus]) -> None:
        self.recorded = recorded
        self.unrecorded -= recorded.keys()
        agreed_epochs = {p: status.source_epoch for p, status in recorded.items() if status.source_epoch is not None}
        self.rewritten = {p: row for p, row in self.rewritten.items() if agreed_epochs.get(p) == row[0]}
        self.end_epochs = {
            p: row for p, row in self.end_epochs.items() if p in agreed_epochs and agreed_epochs[p] <= row[0]
        }

    def forget_unknown(self) -> None:
        known, uncopied = self.get_known_partitions(), self.get_uncopied_partitions()
        topic_names = {p.topic for p in known}
        self.observed_ends = {p: observed for p, observed in self.observed_ends.items() if p in known}
        self.log_starts = {p: start for p, start in self.log_starts.items() if p in uncopied}
        self.topic_ids = {topic: topic_id for topic, topic_id in self.topic_ids.items() if topic in topic_names}

    def update_open_transactions(self, at_ms: int, ongoing: Mapping[TransactionKey, ObservedTransaction]) -> None:
        """Transactions open at this time; earlier ones that are missing have ended."""
        before = self.transactions or {}
        ended = {
            key: transaction if transaction.state == TRANSACTION_OVER else replace(transaction, state=TRANSACTION_OVER)
            for key, transaction in before.items()
            if key not in ongoing
        }
        # An ending transaction is described without partitions that have its marker.
        newest = sorted(ended, key=lambda key: key[2])[-_MAX_ENDED_TRANSACTIONS:]
        self.transactions = {key: ended[key] for key in newest}
        self.transactions |= {key: _join_parts(before.get(key), transaction) for key, transaction in ongoing.items()}
        self.transactions_ms = at_ms

    def set_ended_bounds(self, ends: Mapping[Partition, Offset]) -> None:
        """Ends observed after the transactions: ended ones lie below."""
        self.transactions = {
            key: replace(transaction, parts=tuple(_set_part_end(part, ends) for part in transaction.parts))
            if transaction.state == TRANSACTION_OVER
            else transaction
            for key, transaction in (self.transactions or {}).items()
        }

    def forget_copied(self, positions: Mapping[Partition, Offset]) -> None:
        self.transactions = {
            key: transaction
            for key, transaction in (self.transactions or {}).items()
            if any(part.end is None or positions.get(part.partition, -1) < part.end for part in transaction.parts)
        }

    def get_ended_partitions(self) -> frozenset[Partition]:
        transactions = (self.transactions or {}).values()
        return frozenset(
            part.partition
            for transaction in transactions
            if transaction.state == TRANSACTION_OVER
            for part in transaction.parts
        )

    def to_observation(self) -> SourceObservation:
        transactions_by_age = sorted((self.transactions or {}).items(), key=lambda item: item[0][2])
        return SourceObservation(
            mirror=self.mirror,
            at_ms=self.at_ms,
            topics=tuple(self._describe_topics()),
            listed_ms=self.listed_ms,
            listed_by=self.listed_by,
            transactions=tuple(transaction for _, transaction in transactions_by_age[-MAX_LISTED_TRANSACTIONS:]),
            transactions_ms=self.transactions_ms,
            unlisted_transactions=max(0, len(transactions_by_age) - MAX_LISTED_TRANSACTIONS),
            offsets_per_s=self.append_rate.compute_offsets_per_s(),
        )

    def _describe_topics(self) -> Iterable[ObservedTopic]:
        indexes: dict[str, list[int]] = {}
        for partition in self.observed_ends.keys() | self.offline | self.unrecorded:
            indexes.setdefault(partition.topic, []).append(partition.index)
        offline: dict[str, list[int]] = {}
        for partition in sorted(self.offline):
            offline.setdefault(partition.topic, []).append(partition.index)
        complete_ago: dict[str, list[tuple[int, int]]] = {}
        for partition, at_ms in sorted(self.recovery_points.get_complete_until().items()):
            complete_ago.setdefault(partition.topic, []).append((partition.index, self.at_ms - at_ms))
        for topic, known_indexes in sorted(indexes.items()):
            observed_ends = [self.observed_ends.get(Partition(topic, index)) for index in range(max(known_indexes) + 1)]
            ago_ms = tuple(max(0, self.at_ms - observed.at_ms) if observed else 0 for observed in observed_ends)
            status = self.recorded.get(Partition(topic, 0))
            starts = ((index, self.log_starts.get(Partition(topic, index))) for index in sorted(known_indexes))
            yield ObservedTopic(
                topic=topic,
                id=self._find_changed_id(topic, status),
                starts=tuple((index, start) for index, start in starts if start is not None),
                ends=tuple(observed.end if observed else None for observed in observed_ends),
                ages_ms=ago_ms if any(ago_ms) else (),
                offline=tuple(offline.get(topic, ())),
                rewritten=tuple(
                    (index, *self.rewritten[p])
                    for index in sorted(known_indexes)
                    if (p := Partition(topic, index)) in self.rewritten
                ),
                recovery_point_ages_ms=tuple(complete_ago.get(topic, ())),
            )


class SourceMonitor:
    def __init__(self, link: MirrorLink, previous: SourceObservation | None) -> None:
        self._link = link
        self._clock = SteadyClock()
        self._observed = _restore_observed(previous) if previous else ObservedSource(link.mirror.name, {})
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source-monitor", daemon=True)
        self._recorded: Mapping[Partition, PartitionStatus] = {}
        self._list_transactions_at = 0.0
        self._list_topics_at = 0.0
        self._unrecorded: SourceObservation | None = None
        self.newest_observation = previous
        self.has_observed = False
        """Whether the newest observation is this process's."""
        self.incomplete_since: Mapping[Partition, int] = {}

    def set_mirror(self, mirror: Mirror) -> None:
        """Its filters may have changed."""
        self._link = replace(self._link, mirror=mirror)

    def set_recorded(self, recorded: Mapping[Partition, PartitionStatus]) -> None:
        self._recorded = dict(recorded)

    def pop_observation(self) -> SourceObservation | None:
        with self._lock:
            observation, self._unrecorded = self._unrecorded, None
            return observation

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait: a dead source may use up its timeout."""
        self._stop.set()

    def observe(self, source: ClusterClient, destination: ClusterClient) -> SourceObservation:
        observed_source = self._observed
        observed_source.set_recorded(self._recorded)
        described = self._describe(source)
        observed_source.forget_unknown()
        partitions = observed_source.get_known_partitions()
        requested_ms = self._clock.now_ms()
        ongoing = self._find_open_transactions(source, {p.topic for p in partitions})
        if ongoing is not None:
            observed_source.update_open_transactions(requested_ms, ongoing)
        leaders = {
            Partition(name, index): leader for name, t in described.items() for index, leader in t.partitions.items()
        }
        self._compare_epochs(source, leaders)
        requested_ms = self._clock.now_ms()
        log_ends = list_available_offsets(source, partitions, OffsetPoint.HIGH_WATERMARK, topics=described)
        observed_source.update_ends(requested_ms, log_ends.offsets, log_ends.offline)
        observed_source.update_end_epochs(log_ends.leader_epochs, log_ends.offsets)
        self._fetch_log_starts(source, described)
        if ongoing is not None:
            observed_source.set_ended_bounds(log_ends.offsets)
        if incomplete := observed_source.get_ended_partitions() | observed_source.recovery_points.get_incomplete():
            try:
                positions = list_available_offsets(destination, incomplete, OffsetPoint.HIGH_WATERMARK).offsets
            except MirrorError as error:  # the observation of the source counts
                _log.debug("positions could not be looked at: %s", error)
            else:
                observed_source.forget_copied(positions)
                observed_source.recovery_points.update_positions(positions)
        set_by_ms = now_ms() - self._clock.now_ms()
        observation = shift_times(observed_source.to_observation(), set_by_ms)
        incomplete_since = observed_source.recovery_points.get_incomplete_since()
        self.incomplete_since = {partition: at_ms + set_by_ms for partition, at_ms in incomplete_since.items()}
        with self._lock:
            self._unrecorded = self.newest_observation = observation
            self.has_observed = True
        return observation

    def _describe(self, source: ClusterClient) -> Mapping[str, TopicMetadata]:
        started_at, requested_ms = time.monotonic(), self._clock.now_ms()
        if started_at >= self._list_topics_at:
            try:
                described = source.metadata().topics
            except Unreachable:
                raise
            except RemoteFault as error:
                _log.debug("topics could not be listed: %s", error)
            else:
                listed_at = time.monotonic()
                self._list_topics_at = listed_at + min(
                    _LISTING_PAUSE_FACTOR * (listed_at - started_at), _MAX_LISTING_PAUSE_S
                )
                recorded_topics = {p.topic for p in self._recorded}
                mirror = self._link.mirror
                filtered = build_topic_filter(mirror)
                selected = {
                    name: description
                    for name, description in described.items()
                    if name in recorded_topics or (name in filtered and not description.internal)
                }
                self._observed.update_topics(selected, requested_ms, mirror.topic_filters)
                return selected
        described = source.metadata({p.topic for p in self._observed.get_known_partitions()}).topics
        self._observed.update_topics(described, None)
        return described

    def _compare_epochs(self, source: ClusterClient, leaders: Mapping[Partition, Leader]) -> None:
        """A source that loses the end of its log writes other records at offsets that are copied already."""
        epochs = self._observed.list_ended_epochs(leaders)
        by_leader: dict[int, list[Partition]] = {}
        for partition in epochs:
            if leaders[partition].broker >= 0:
                by_leader.setdefault(leaders[partition].broker, []).append(partition)
        if not by_leader:
            return
        self._observed.update_ended_epochs(list_epoch_ends(source, epochs, by_leader).offsets)

    def _fetch_log_starts(self, source: ClusterClient, described: Mapping[str, TopicMetadata]) -> None:
        """For logs that the destination lacks: all of them is lost if the source dies now."""
        if not (uncopied_partitions := self._observed.get_uncopied_partitions()):
            return
        try:
            self._observed.log_starts |= list_available_offsets(
                source, uncopied_partitions, OffsetPoint.START, topics=described
            ).offsets
        except MirrorError as error:  # the observed ends count
            _log.debug("log starts could not be looked at: %s", error)

    def _find_open_transactions(
        self, source: ClusterClient, topics: Collection[str]
    ) -> dict[TransactionKey, ObservedTransaction] | None:
        started_at = time.monotonic()
        if started_at < self._list_transactions_at:
            return None
        transactions, ended_at = _list_open_transactions(source, topics), time.monotonic()
        if transactions is not None and ended_at - started_at > OBSERVE_INTERVAL_S:
            self._list_transactions_at = ended_at + min(
                _TRANSACTIONS_PAUSE_FACTOR * (ended_at - started_at), _MAX_TRANSACTIONS_PAUSE_S
            )
        return transactions

    def _run(self) -> None:
        last_error = ""
        with (
            ClusterClient(self._link.source, timeout_s=TIMEOUTS.monitor_response_s) as source,
            ClusterClient(self._link.destination, timeout_s=TIMEOUTS.monitor_response_s) as destination,
        ):
            pause = 0.0
            while not self._stop.wait(pause):
                started_at, pause = time.monotonic(), OBSERVE_INTERVAL_S
                try:
                    pause = _compute_pause_s(self.observe(source, destination))
                    last_error = ""
                except MirrorError as error:
                    if str(error) != last_error:
                        last_error = str(error)
                        _log.info("the source could not be looked at: %s", error, mirror=self._link.mirror.name)
                pause = max(0.0, pause - (time.monotonic() - started_at))


def shift_times(observation: SourceObservation, by_ms: int) -> SourceObservation:
    """By a clock that is so much ahead."""
    return replace(
        observation,
        at_ms=observation.at_ms + by_ms,
        listed_ms=None if observation.listed_ms is None else observation.listed_ms + by_ms,
        transactions_ms=None if observation.transactions_ms is None else observation.transactions_ms + by_ms,
    )


def _read_previous(lease: HeldLease, mirror: MirrorName) -> SourceObservation | None:
    """By this machine's clock."""
    previous = lease.state.source_observations.get(mirror)
    appended_ms = lease.state.find_append_time_ms(previous)
    if previous is None or appended_ms is None:
        return previous
    at_ms = to_local_clock_ms(previous.at_ms, lease.clock_ahead_ms, appended_ms)
    return shift_times(previous, at_ms - previous.at_ms)


def _restore_observed(previous: SourceObservation) -> ObservedSource:
    return ObservedSource(
        previous.mirror,
        dict(previous.get_ends()),
        recovery_points=RecoveryPoints(dict(previous.get_recovery_points())),
        unrecorded=frozenset(previous.get_partitions()),  # until the record is read
        topic_ids=previous.get_new_topic_ids(),
        log_starts=dict(previous.get_starts()),
        rewritten={p: (agreed_epoch, offset) for p, agreed_epoch, offset in previous.get_rewritten()},
        listed_ms=previous.listed_ms,
        listed_by=previous.listed_by,
    )


def _compute_pause_s(observation: SourceObservation) -> float:
    return max(OBSERVE_INTERVAL_S, len(msgspec.json.encode(observation)) / MAX_OBSERVATION_BYTES_PER_S)


def _list_open_transactions(
    source: ClusterClient, topics: Collection[str]
) -> dict[TransactionKey, ObservedTransaction] | None:
    try:
        transactions = list_open_transactions(source, topics)
        first_offsets = _find_first_offsets(source, {p for transaction in transactions for p in transaction.partitions})
    except MirrorError as error:
        _log.debug("transactions could not be looked at: %s", error)
        return None
    return {
        (transaction.id, transaction.producer_id, transaction.started_ms): _to_observed_transaction(
            transaction, first_offsets
        )
        for transaction in transactions
    }


def _find_first_offsets(
    source: ClusterClient, partitions: Collection[Partition]
) -> dict[tuple[int, Partition], Offset]:
    led_partitions = (
        {
            p
            for broker, partitions_of_broker in source.leaders(partitions).items()
            if broker >= 0
            for p in partitions_of_broker
        }
        if partitions
        else set()
    )
    return {
        (producer.producer_id, partition): Offset(producer.open_transaction_start)
        for partition, producers in (describe_producers(source, led_partitions) if led_partitions else {}).items()
        for producer in producers
        if producer.open_transaction_start >= 0
    }


def _to_observed_transaction(
    transaction: OpenTransaction, first_offsets: Mapping[tuple[int, Partition], Offset]
) -> ObservedTransaction:
    return ObservedTransaction(
        id=transaction.id,
        producer_id=transaction.producer_id,
        state=transaction.state,
        parts=tuple(
            PartitionTransaction(partition=p, first=first_offsets.get((transaction.producer_id, p)))
            for p in sorted(transaction.partitions)
        ),
    )


def _join_parts(previous: ObservedTransaction | None, current: ObservedTransaction) -> ObservedTransaction:
    parts = {part.partition: part for part in previous.parts} if previous else {}
    for part in current.parts:
        if part.first is not None or part.partition not in parts:
            parts[part.partition] = part
    return replace(current, parts=tuple(parts[p] for p in sorted(parts)))


def _set_part_end(part: PartitionTransaction, ends: Mapping[Partition, Offset]) -> PartitionTransaction:
    end = ends.get(part.partition)
    return part if part.end is not None or end is None else replace(part, end=end)


class SourceWatch:
    def __init__(self, link: MirrorLink, lease: HeldLease, report_line: Callable[[str], None]) -> None:
        self.heartbeat_writer = HeartbeatWriter(link, lease.lease.owner, report_line)
        previous = _read_previous(lease, link.mirror.name)
        self.monitor = SourceMonitor(link, previous)
        self.reported_ends = ReportedEnds(dict(previous.get_reported_ends()) if previous else {})
        self._link = link

    def __enter__(self) -> SourceWatch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.heartbeat_writer.close()
        self.monitor.close()

    def prepare(self, lease: HeldLease) -> None:
        self.heartbeat_writer.prepare()
        lease.refresh()  # after `prepare`: earlier runs are in it, later ones are read

    def apply_plan(self, lease: HeldLease) -> None:
        self.heartbeat_writer.update_runs(lease.state)
        name = self._link.mirror.name
        self.monitor.set_mirror(lease.state.mirrors.get(name, self._link.mirror))
        self.monitor.set_recorded(lease.state.partitions.get(name, {}))

    def start(self) -> None:
        self.heartbeat_writer.start()
        self.monitor.start()

    def tick(self, lease: HeldLease) -> None:
        self.heartbeat_writer.allow(lease.lease)
        if (observation := self.monitor.pop_observation()) is not None:
            lease.put(observation.with_reported_ends(self.reported_ends.get_ends()))

    def record_reported_ends(self, lease: HeldLease) -> None:
        """For the next process, which need not compare what this one's tasks have copied last."""
        if self.monitor.has_observed and (observation := self.monitor.newest_observation) is not None:
            lease.put(observation.with_reported_ends(self.reported_ends.get_ends()))

    def observe_once(self, lease: HeldLease, source: ClusterClient, destination: ClusterClient) -> None:
        """For a copy that ends here. Never fails."""
        with suppress(RemoteFault):
            self.monitor.observe(source, destination)
        self.tick(lease)
