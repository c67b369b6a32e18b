"""Observes the source each second in its own thread; stores observations at a bounded rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import msgspec

from mirror_core.copy.driver_messages import CurrentCopies
from mirror_core.dataplane.heartbeat_writer import HeartbeatWriter
from mirror_core.dataplane.observed_source import (
    ObservedSource,
    TransactionKey,
    find_replaced_copies,
    restore_observed,
)
from mirror_core.dataplane.progress import ReportedEnds
from mirror_core.decide.clock_skew import to_local_clock_ms
from mirror_core.decide.filters import build_topic_filter
from mirror_core.kafka.client import ClusterClient, Leader, TopicMetadata
from mirror_core.kafka.cluster_info import fetch_metadata_ages_ms, supports_describe_quorum
from mirror_core.kafka.leader_epochs import list_epoch_ends
from mirror_core.kafka.log_offsets import OffsetPoint, describe_producers, list_available_offsets
from mirror_core.kafka.transactions import OpenTransaction, list_open_transactions
from mirror_core.model.errors import ConnectionRefused, MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Mirror, NameFilters, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.source_observation import (
    ObservedTransaction,
    PartitionTransaction,
    SourceObservation,
)
from mirror_core.model.text import join_limited
from mirror_core.model.timing import TIMEOUTS, SteadyClock, now_ms
from mirror_core.state.lease import HeldLease
from mirror_core.state.mirror_link import MirrorLink

_log = get_logger(__name__)
OBSERVE_INTERVAL_S: Final = 1.0
MAX_OBSERVATION_BYTES_PER_S: Final = 32 << 10
"""A mirror of 50,000 partitions is stored every quarter of a minute."""
# Each broker lists all producers of each partition.
_TRANSACTIONS_PAUSE_FACTOR: Final = 10
"""Pause after a slow request for transactions, times its duration."""
# At most a tenth of a processor. Measured: 50,000 partitions take 2 to 4 MB, and 0.1 to 0.25 s to parse.
_LISTING_PAUSE_FACTOR: Final = 10
"""Pause after a listing, times its duration."""
_MAX_LISTING_PAUSE_S: Final = 30.0
_MAX_TRANSACTIONS_PAUSE_S: Final = 300.0
_MAX_METADATA_AGE_MS: Final = 3_000
"""Brokers fetch twice a second; shorter than `broker.session.timeout.ms`."""


class BrokerConfirmations:
    """When brokers had the newest metadata. One that is cut off from controllers tells old leaders and ends."""

    def __init__(self, clock: SteadyClock) -> None:
        self._clock = clock
        self._confirmed_ms: Mapping[int, int] = {}
        self._newest_ms: Mapping[int, int] = {}
        self._can_confirm: bool | None = None
        """False: ZooKeeper, Kafka before 3.3, or no DESCRIBE."""
        self._is_refused = False

    def update(self, client: ClusterClient) -> None:
        """See `apply`."""
        if self._can_confirm is False:
            return
        try:
            self._can_confirm = self._can_confirm or supports_describe_quorum(client)
            if self._can_confirm:
                requested_ms = self._clock.now_ms()
                known_ms = dict(self._newest_ms)
                for broker, age_ms in fetch_metadata_ages_ms(client).items():
                    known_ms[broker] = max(requested_ms - age_ms, known_ms.get(broker, 0))
                self._newest_ms = known_ms
        except MissingPermission:
            self._can_confirm = False
        except MirrorError as error:
            if isinstance(error, Unreachable) or not isinstance(error, RemoteFault):
                _log.debug("no controller has answered: %s", error)
                self._is_refused = False
                client.mark_metadata_stale()
            elif not self._is_refused:
                self._is_refused = True
                _log.info("which brokers are cut off from controllers is unknown: %s", error)

    def apply(self) -> None:
        """Before a look: afterwards a broker may be connected again."""
        self._confirmed_ms = self._newest_ms

    def find_confirmed_ms(self, at_ms: int, brokers: Iterable[int]) -> int | None:
        """`at_ms`, or earlier: when what they told was true. None: unknown."""
        if self._can_confirm is False or (self._is_refused and not self._confirmed_ms):
            return at_ms
        confirmed_ms = min((self._confirmed_ms.get(broker, 0) for broker in brokers), default=at_ms)
        return at_ms if at_ms - confirmed_ms <= _MAX_METADATA_AGE_MS else confirmed_ms or None


class SourceMonitor:
    def __init__(
        self,
        link: MirrorLink,
        previous: SourceObservation | None,
        recorded: Mapping[Partition, PartitionStatus] = MappingProxyType({}),
        *,
        generation: int = 0,
    ) -> None:
        """`recorded`: with `previous`."""
        self._link = link
        self._clock = SteadyClock()
        self._confirmations = BrokerConfirmations(self._clock)
        self._brokers = frozenset[int]()
        self._unconfirmed_brokers = frozenset[int]()
        self._observed = restore_observed(previous, recorded) if previous else ObservedSource(link.mirror.name, {})
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._shall_confirm = threading.Event()
        self._has_confirmed = threading.Event()
        self._has_confirmed.set()
        self._thread = threading.Thread(target=self._run, name="source-monitor", daemon=True)
        self._confirming_thread = threading.Thread(
            target=self._run_confirmations, name="broker-confirmations", daemon=True
        )
        self._recorded = dict(recorded)
        self._replaced = frozenset[Partition]()
        self._list_transactions_at = 0.0
        self._list_topics_at = 0.0
        self._requested_filters: NameFilters | None = None
        self._unrecorded: SourceObservation | None = None
        self.newest_observation = previous
        self._generation = generation
        self._refused_ms: int | None = None
        self._opened_connections = 0
        self._was_interrupted = False
        self.has_observed = False
        """The newest observation is this process's."""
        self.incomplete_since: Mapping[Partition, int] = {}

    def set_mirror(self, mirror: Mirror) -> None:
        """Its filters may have changed."""
        self._link = replace(self._link, mirror=mirror)

    def set_recorded(
        self, recorded: Mapping[Partition, PartitionStatus], replaced: frozenset[Partition] = frozenset()
    ) -> None:
        with self._lock:
            self._recorded = dict(recorded)
            self._replaced |= replaced

    def pop_observation(self) -> SourceObservation | None:
        with self._lock:
            observation, self._unrecorded = self._unrecorded, None
            return observation

    def pop_interruption(self) -> bool:
        """Whether the source was away for a moment since the last call: it failed, or a connection to it did."""
        if not self._was_interrupted:
            return False
        self._was_interrupted = False  # one noticed meanwhile is answered by this True
        return True

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait: a dead source may use up its timeout."""
        self._stop.set()
        self._shall_confirm.set()

    def observe(
        self, source: ClusterClient, destination: ClusterClient, confirmation_s: float = OBSERVE_INTERVAL_S
    ) -> SourceObservation:
        observed_source = self._observed
        with self._lock:
            recorded, replaced, self._replaced = self._recorded, self._replaced, frozenset()
        observed_source.set_recorded(recorded, replaced)
        self._confirm(confirmation_s)
        self._confirmations.apply()
        described = self._describe(source)
        observed_source.forget_unknown()
        partitions = observed_source.get_known_partitions()
        requested_ms = self._clock.now_ms()
        ongoing = self._find_open_transactions(source, {p.topic for p in partitions})
        if self._confirmations.find_confirmed_ms(requested_ms, self._brokers) != requested_ms:
            ongoing = None  # of a broker that may be cut off: newer ones may be known
        if ongoing is not None:
            observed_source.update_open_transactions(requested_ms, ongoing)
        leaders = {
            Partition(name, index): leader for name, t in described.items() for index, leader in t.partitions.items()
        }
        self._compare_epochs(source, leaders)
        requested_ms = self._clock.now_ms()
        log_ends = list_available_offsets(source, partitions, OffsetPoint.HIGH_WATERMARK, topics=described)
        tellers = {p: leaders[p].broker for p in log_ends.offsets if p in leaders}
        confirmed_ms = self._find_confirmed_ms(source, tellers, requested_ms)
        observed_source.update_ends(requested_ms, log_ends.offsets, log_ends.offline, confirmed_ms)
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
        self._was_interrupted |= source.opened_connections > self._opened_connections > 0
        self._opened_connections = source.opened_connections
        set_by_ms = self._measure_set_by_ms()
        observation = shift_times(observed_source.to_observation(), set_by_ms)
        incomplete_since = observed_source.recovery_points.get_incomplete_since()
        self.incomplete_since = {partition: at_ms + set_by_ms for partition, at_ms in incomplete_since.items()}
        self._refused_ms = None
        with self._lock:
            self._unrecorded = self.newest_observation = observation
            self.has_observed = True
        return observation

    def _measure_set_by_ms(self) -> int:
        return now_ms() - self._clock.now_ms()

    def record_failure(self, error: MirrorError) -> None:
        """From its first refused connection a source is counted as taking nothing more, until one is accepted."""
        self._was_interrupted = True
        self._observed.begin_unobserved()
        refused_ms = (self._refused_ms or self._clock.now_ms()) if isinstance(error, ConnectionRefused) else None
        is_change, self._refused_ms = refused_ms != self._refused_ms, refused_ms
        newest = self.newest_observation
        if is_change and newest is not None and self.has_observed:
            with self._lock:
                self._unrecorded = self.newest_observation = replace(
                    newest,
                    refused_ms=None if refused_ms is None else refused_ms + self._measure_set_by_ms(),
                    refused_generation=None if refused_ms is None else self._generation,
                )

    def _describe(self, source: ClusterClient) -> Mapping[str, TopicMetadata]:
        started_at, requested_ms, mirror = time.monotonic(), self._clock.now_ms(), self._link.mirror
        if started_at >= self._list_topics_at or self._requested_filters != mirror.topic_filters:
            self._requested_filters = mirror.topic_filters
            try:
                metadata = source.metadata()
            except Unreachable:
                raise
            except RemoteFault as error:
                _log.debug("topics could not be listed: %s", error)
            else:
                listed_at = time.monotonic()
                self._list_topics_at = listed_at + min(
                    _LISTING_PAUSE_FACTOR * (listed_at - started_at), _MAX_LISTING_PAUSE_S
                )
                self._brokers, described = frozenset(metadata.brokers), metadata.topics
                recorded_topics = {p.topic for p in self._recorded}
                filtered = build_topic_filter(mirror)
                selected = {
                    name: description
                    for name, description in described.items()
                    if name in recorded_topics or (name in filtered and not description.internal)
                }
                # A broker whose listing may be old is among those that it lists.
                listed_ms = self._confirmations.find_confirmed_ms(requested_ms, self._brokers)
                if listed_ms != requested_ms and (listed_ms or 0) <= (self._observed.listed_ms or 0):
                    listed_ms = None  # topics that were listed since are still there
                self._observed.update_topics(selected, listed_ms, mirror.topic_filters)
                return selected
        metadata = source.metadata({p.topic for p in self._observed.get_known_partitions()})
        self._brokers = frozenset(metadata.brokers)
        self._observed.update_topics(metadata.topics, None)
        return metadata.topics

    def _find_confirmed_ms(
        self, source: ClusterClient, tellers: Mapping[Partition, int], at_ms: int
    ) -> dict[Partition, int | None]:
        confirmed_ms = {b: self._confirmations.find_confirmed_ms(at_ms, (b,)) for b in set(tellers.values())}
        unconfirmed = frozenset(broker for broker, told_ms in confirmed_ms.items() if told_ms != at_ms)
        if unconfirmed:
            source.mark_metadata_stale()
            if unconfirmed != self._unconfirmed_brokers:
                listed = join_limited(sorted(unconfirmed))
                _log.info("brokers may be cut off from their controllers: %s", listed, mirror=self._link.mirror.name)
        self._unconfirmed_brokers = unconfirmed
        return {p: confirmed_ms[broker] for p, broker in tellers.items() if broker in unconfirmed}

    def _compare_epochs(self, source: ClusterClient, leaders: Mapping[Partition, Leader]) -> None:
        """A source that lost its log's end writes other records at copied offsets."""
        set_back = self._find_set_back(source, leaders)
        epochs = self._observed.list_ended_epochs(leaders) | set_back
        by_leader: dict[int, list[Partition]] = {}
        for partition in epochs:
            if leaders[partition].broker >= 0:
                by_leader.setdefault(leaders[partition].broker, []).append(partition)
        if not by_leader:
            return
        self._observed.update_ended_epochs(list_epoch_ends(source, epochs, by_leader).offsets, set_back)

    def _find_set_back(self, source: ClusterClient, leaders: Mapping[Partition, Leader]) -> dict[Partition, int]:
        """Only where another broker says so, too: one that is cut off from the controllers tells older epochs."""
        set_back = self._observed.list_epochs_set_back(leaders)
        if not set_back:
            return {}
        source.mark_metadata_stale()
        topics = source.metadata({p.topic for p in set_back}).topics
        return {
            p: epoch
            for p, epoch in set_back.items()
            if p.topic in topics and topics[p.topic].partitions.get(p.index) == leaders[p]
        }

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

    def _confirm(self, wait_s: float) -> None:
        """Controllers may hang."""
        if self._confirming_thread.ident is None:
            self._confirming_thread.start()
        if self._has_confirmed.is_set():
            self._has_confirmed.clear()
            self._shall_confirm.set()
            self._has_confirmed.wait(wait_s)

    def _run_confirmations(self) -> None:
        with ClusterClient(self._link.source, timeout_s=TIMEOUTS.monitor_response_s) as controllers:
            while self._shall_confirm.wait():
                self._shall_confirm.clear()
                if self._stop.is_set():
                    return
                self._confirmations.update(controllers)
                self._has_confirmed.set()

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
                    self.record_failure(error)
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
        refused_ms=None if observation.refused_ms is None else observation.refused_ms + by_ms,
    )


def _read_previous(lease: HeldLease, mirror: MirrorName) -> SourceObservation | None:
    previous = lease.state.find_observation(mirror)
    appended_ms = lease.state.find_append_time_ms(previous)
    if previous is None or appended_ms is None:
        return previous
    at_ms = to_local_clock_ms(previous.at_ms, lease.clock_ahead_ms, appended_ms)
    return shift_times(previous, at_ms - previous.at_ms)


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


class SourceWatch:
    def __init__(
        self, link: MirrorLink, lease: HeldLease, report_line: Callable[[str], None], copies: CurrentCopies
    ) -> None:
        self.heartbeat_writer = HeartbeatWriter(link, lease.lease.owner, report_line)
        previous = _read_previous(lease, link.mirror.name)
        recorded, generation = dict(lease.state.partitions.get(link.mirror.name, {})), lease.lease.generation
        self.monitor = SourceMonitor(link, previous, recorded, generation=generation)
        self.reported_ends = ReportedEnds(dict(previous.get_reported_ends()) if previous else {}, copies)
        self._link, self._recorded, self._copies = link, recorded, copies

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

    def update_recorded(self, lease: HeldLease, newest_epoch: int) -> frozenset[Partition]:
        recorded = dict(lease.state.partitions.get(self._link.mirror.name, {}))
        replaced, self._recorded = find_replaced_copies(self._recorded, recorded), recorded
        self._copies.begin(replaced, newest_epoch)
        self.reported_ends.forget(replaced)
        self.monitor.set_recorded(recorded, replaced)
        return replaced

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
            self.monitor.observe(source, destination, TIMEOUTS.monitor_response_s)
        self.tick(lease)
