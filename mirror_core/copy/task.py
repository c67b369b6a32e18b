"""The copying task of one epoch, independent of Spark, and its report."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirror_core.copy.background import BackgroundThreads, ConnectionOpener, wait_for_connections
from mirror_core.copy.batch_builder import PRODUCER_EPOCH, build_seed_batches, pop_hidden_batch
from mirror_core.copy.batch_fetcher import BatchFetcher
from mirror_core.copy.batch_producer import BatchProducer, OutgoingBatch
from mirror_core.copy.driver_messages import ClaimClient, ProgressSender
from mirror_core.copy.gap_filler import GapFiller
from mirror_core.copy.messages import format_late_start, format_retriable
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.resume_finder import ResumeFinder
from mirror_core.copy.send_queue import HiddenGap, QueueBudget
from mirror_core.copy.task_datagrams import DriverChannel
from mirror_core.decide.gaps_and_resume import count_filled, round_filled
from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.fetch_link import REMOTE_STORAGE_HINT
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.errors import RemoteFault
from mirror_core.model.logs import get_logger, log_context
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Offset
from mirror_core.model.task_messages import AlignedPartition, Assignment, Receipt, TaskReport
from mirror_core.model.timing import SteadyClock, now_ms


def build_report(
    assignment: Assignment,
    replicators: Sequence[PartitionReplicator],
    last_error: str,
    started_s: float,
    ended_s: float,
    cpu_s: float,
    explain_wait: Callable[[int], str],
    interrupted_comparisons: int = 0,
) -> TaskReport:
    receipts = [
        Receipt(
            mirror=assignment.mirror,
            partition=replicator.partition,
            epoch=assignment.epoch,
            task=assignment.task,
            first=Offset(replicator.counts.first),
            next=Offset(replicator.progress.acknowledged),
            records=replicator.records,
            gaps=replicator.counts.gaps,
            batches=replicator.counts.batches,
            bytes=replicator.counts.bytes,
            pieces=replicator.counts.pieces,
            source_topic_id=replicator.assigned.source_topic_id,
            destination_topic_id=replicator.assigned.destination_topic_id,
            source_end=None if replicator.source.end is None else Offset(replicator.source.end),
            started_ms=int(started_s * 1000),
            ended_ms=int(ended_s * 1000),
        )
        for replicator in replicators
        if replicator.counts.first is not None
    ]
    return TaskReport(
        receipts=tuple(receipts),
        failures=tuple(
            replicator.failure
            for replicator in replicators
            if replicator.failure and replicator.state is CopyState.FAILED
        ),
        cpu_s=cpu_s,
        aligned=tuple(
            _complete_aligned(replicator, replicator.aligned)
            for replicator in replicators
            if replicator.aligned is not None
        ),
        trimmed_ranges=tuple(
            trimmed
            for replicator in replicators
            for trimmed in replicator.trims.to_trimmed_ranges(replicator.partition)
        ),
        retry_reason=_format_retry_reason(assignment.source, replicators, last_error, explain_wait),
        interrupted_comparisons=interrupted_comparisons,
        comparisons_unknown=started_s * 1000 >= assignment.stop_ms,
    )


def _complete_aligned(replicator: PartitionReplicator, aligned: AlignedPartition) -> AlignedPartition:
    start = replicator.trims.get_reached_start(replicator.progress.acknowledged)
    return replace(
        aligned,
        known_from=None if replicator.known_from is None else Offset(replicator.known_from),
        all_answered=replicator.all_answered,
        source_start=None if start is None else Offset(start),
        filled_gap_offsets=0
        if replicator.uses_hidden_records
        else round_filled(count_filled(replicator.progress.acknowledged, replicator.progress.acknowledged_sequence)),
    )


def _format_retry_reason(
    source: str, replicators: Sequence[PartitionReplicator], last_error: str, explain_wait: Callable[[int], str]
) -> str:
    lost = [replicator for replicator in replicators if replicator.state is CopyState.LOST]
    reasons = [replicator.lost_reason for replicator in lost if replicator.lost_reason]
    awaiting_remote = [replicator for replicator in replicators if is_awaiting_remote_storage(replicator)]
    reasons += [
        format_retriable(source, replicator.partition, replicator.progress.position, REMOTE_STORAGE_HINT)
        for replicator in awaiting_remote
    ]
    unanswered = [
        replicator
        for replicator in replicators
        if replicator.can_send and (replicator.progress.in_flight or replicator.has_sendable_batch)
    ]
    blocked = [replicator for replicator in unanswered if explain_wait(replicator.destination_broker)]
    reasons += [explain_wait(broker) for broker in sorted({replicator.destination_broker for replicator in blocked})]
    if not lost and not awaiting_remote and not blocked:
        return ""
    text, waiting_count = reasons[0] if reasons else last_error, len({*lost, *awaiting_remote, *blocked})
    return f"{text} ({waiting_count} partitions wait)" if text and waiting_count > 1 else text


def is_awaiting_remote_storage(replicator: PartitionReplicator) -> bool:
    return (
        replicator.can_send
        and replicator.source.empty_fetches > 0
        and replicator.source.is_remote(replicator.progress.position)
    )


_log = get_logger(__name__)
_CONTROL_TIMEOUT_S: Final = 10.0
_MAX_CONNECT_WAIT_S: Final = 1.0
_FIRST_DRAIN_S: Final = 1.0
_DRAIN_S: Final = 10.0
"""For responses after the task's end. The assignment says how long comparisons may go on."""
_MAX_BATCHES_PER_TURN: Final = 64
"""For one partition before responses are processed: a wide gap must not delay the others."""
_FILL_MARGIN_S: Final = 0.1
"""No markers in the last moments of an epoch: two tasks' clocks may differ, and only sequences of data tolerate
that.
"""


def never_cancelled() -> bool:
    return False


def run(assignment: Assignment, is_cancelled: Callable[[], bool] = never_cancelled) -> TaskReport:
    """Copies from `start_ms` to `stop_ms`, or until all partitions have reached their `stop_offset`.

    Raises BadRequest for what no retry can fix. Broker errors and malformed responses are retried until `stop_ms`, then
    reported.
    """
    with log_context(mirror=assignment.mirror, epoch=assignment.epoch, task=assignment.task):
        return _run(assignment, is_cancelled)


def _run(assignment: Assignment, is_cancelled: Callable[[], bool]) -> TaskReport:
    config = load_config(Path(assignment.config_path), only_principal=Principal.DATA)
    source = ClusterClient(config.cluster(assignment.source), Principal.DATA, timeout_s=_CONTROL_TIMEOUT_S)
    destination = ClusterClient(config.cluster(assignment.destination), Principal.DATA, timeout_s=_CONTROL_TIMEOUT_S)
    with source, destination, closing(CopyTask(assignment, source, destination, is_cancelled)) as task:
        return task.run()


class CopyTask:
    def __init__(
        self,
        assignment: Assignment,
        source: ClusterClient,
        destination: ClusterClient,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.assignment = assignment
        self.source = source
        self.destination = destination
        self._is_cancelled = is_cancelled
        self.stop_s = assignment.stop_ms / 1000
        self._now_s = SteadyClock(max(now_ms(), assignment.submitted_ms))
        uses_hidden_records = assignment.gaps is GapFilling.HIDDEN
        # A late task may follow a killed attempt of it.
        began_late = self._now_s() * 1000 > assignment.start_ms
        assigned_partitions = (
            replace(item, all_answered=item.all_answered and not began_late) for item in assignment.partitions
        )
        sorted_partitions = sorted(assigned_partitions, key=lambda assigned: assigned.partition)
        budget = QueueBudget(assignment.max_bytes_in_flight)
        has_driver = assignment.driver_address is not None
        self._active = set[PartitionReplicator]()
        """Partitions that a turn may have work for, until they are idle. Scanning thousands of idle ones would take
        most of a turn."""
        self.replicators = [
            PartitionReplicator(
                item, uses_hidden_records=uses_hidden_records, budget=budget, active=self._active, has_driver=has_driver
            )
            for item in sorted_partitions
        ]
        self.replicators_by_partition = {replicator.partition: replicator for replicator in self.replicators}
        self._rank = {replicator: number for number, replicator in enumerate(self.replicators)}
        self._source_connections, self._destination_connections = (
            ConnectionOpener(source),
            ConnectionOpener(destination),
        )
        self.producer = BatchProducer(
            destination,
            self.replicators,
            self.stop_s,
            assignment.max_bytes_in_flight,
            self._destination_connections.connect,
            self._now_s,
        )
        self.fetcher = BatchFetcher(
            assignment,
            source,
            self.replicators_by_partition,
            self._source_connections.connect,
            self.producer.can_accept,
            self._active,
            self._now_s,
        )
        self._threads = BackgroundThreads()
        self._resume_finder = ResumeFinder(
            source,
            destination,
            assignment.producer_id,
            self._set_brokers,
            self._filter_connected,
            self._threads,
            assignment.epoch,
            assignment.cluster_ids,
        )
        self._gap_filler = GapFiller(
            destination,
            assignment.producer_id,
            PRODUCER_EPOCH,
            assignment.epoch,
            self._destination_connections.make_opener,
            self.producer.disconnect,
            self._threads,
            self._now_s,
        )
        self._last_error = ""
        self._interrupted_comparisons = 0
        self._driver_channel = DriverChannel(assignment.epoch, assignment.driver_address)
        self._progress_sender = ProgressSender(assignment.task, self._driver_channel, self._now_s)
        self._claim_client = ClaimClient(self._driver_channel)

    def run(self) -> TaskReport:
        started_s = self._now_s()
        cpu_start_s = time.process_time()
        self._prepare()
        if started_s >= self.stop_s:
            epoch_start_s = self.assignment.start_ms / 1000
            self._last_error = format_late_start(
                self.assignment.task, started_s - epoch_start_s, self.stop_s - epoch_start_s
            )
        while not self.is_finished():
            self._run_turn()
        self._finish()
        self._progress_sender.send(self.replicators, last=True)
        cpu_s = time.process_time() - cpu_start_s
        return build_report(
            self.assignment,
            self.replicators,
            self._last_error,
            started_s,
            self._now_s(),
            cpu_s,
            self.producer.explain_wait,
            self._interrupted_comparisons,
        )

    def _finish(self) -> None:
        """Releases claims to the next task twice: it need not wait for a hung broker."""
        for limit_s in (_FIRST_DRAIN_S, _DRAIN_S - _FIRST_DRAIN_S):
            end = time.monotonic() + limit_s
            try:
                self.producer.wait_for_responses(limit_s)
            except RemoteFault as error:
                self._last_error = str(error)
            self._gap_filler.wait_for_rounds(end - time.monotonic())
            self._claim_client.release(self.replicators)
        self._gap_filler.abandon_slow(0.0)
        comparisons_until = self.stop_s + self.assignment.comparison_grace_s
        self._interrupted_comparisons = self._resume_finder.finish(comparisons_until - self._now_s(), self.is_cancelled)

    def is_cancelled(self) -> bool:
        """Reports progress, too: the driver's response says whether it stops, and what time it is."""
        self._progress_sender.send(self.replicators)
        must_stop = self._driver_channel.must_stop()
        self._now_s.advance_to(self._driver_channel.driver_ms)
        return self._is_cancelled() or must_stop

    def is_finished(self) -> bool:
        if self.is_cancelled() or self._now_s() >= self.stop_s:
            return True
        return all(replicator.is_ended or replicator.trims.is_blocked for replicator in self.replicators)

    def _prepare(self) -> None:
        try:
            sources, destinations = self._resume_finder.find_leaders(
                [replicator.partition for replicator in self.replicators]
            )
            self._source_connections.start_opening(sources)
            self._destination_connections.start_opening(destinations)
        except RemoteFault as error:
            self._last_error = str(error)
        while (remaining_s := self.assignment.start_ms / 1000 - self._now_s()) > 0 and not self.is_cancelled():
            time.sleep(min(remaining_s, 0.05))

    def _run_turn(self) -> None:
        now = self._now_s()
        self._resume_finder.apply_results()
        if self._resume_finder.can_start and (
            due := self._sort_by_partition(candidate for candidate in self._active if candidate.is_due())
        ):
            self._resume_finder.start(due)
        for replicator in list(self._active):
            replicator.finish_if_acknowledged()
        self.fetcher.send_fetches(now)
        self._active -= {replicator for replicator in self._active if _is_idle(replicator)}
        readable_sockets = self._wait_for_sockets(self._fill_and_send())
        if readable_sockets and readable_sockets.issubset(
            self._gap_filler.sockets
        ):  # send what is queued after markers
            readable_sockets = self._wait_for_sockets(self._fill_and_send())
        self.producer.flush()
        for broker, produce_link in list(self.producer.links.items()):
            if produce_link.in_flight and (
                produce_link.connection.sock in readable_sockets or produce_link.has_buffered
            ):
                self.producer.receive(broker)
        # Responses of several links share requests.
        links = [link for link in self.fetcher.pending_links if link.connection.sock in readable_sockets]
        self.producer.send_all([item for link in links for item in self.fetcher.receive(link)])
        self.fetcher.disconnect_silent()
        self.producer.disconnect_silent()

    def _sort_by_partition(self, replicators: Iterable[PartitionReplicator]) -> list[PartitionReplicator]:
        return sorted(replicators, key=self._rank.__getitem__)

    # -- gaps and seeds ------------------------------------------------------------------------------------------

    def _fill_and_send(self) -> bool:
        waiting = self._sort_by_partition(candidate for candidate in self._active if candidate.queue.items)
        self._claim_client.exchange(self.replicators_by_partition)
        has_progress = self._gap_filler.fill(waiting, self.stop_s - _FILL_MARGIN_S)
        for _ in range(_MAX_BATCHES_PER_TURN):
            ready = [
                self._pop_outgoing(candidate)
                for candidate in waiting
                if candidate.has_sendable_batch and self.producer.can_accept(candidate.destination_broker)
            ]
            if not ready:
                break
            self.producer.send(ready)
            has_progress = True
        for replicator in list(self._active):
            progress, has_queued = replicator.progress, bool(replicator.queue.items)
            if progress.is_seeding and replicator.can_send and not (progress.in_flight or has_queued):
                for seed in build_seed_batches(progress, self.assignment.producer_id, PRODUCER_EPOCH):
                    self.producer.send([(replicator, *seed)])
        return has_progress

    def _pop_outgoing(self, replicator: PartitionReplicator) -> OutgoingBatch:
        item = replicator.pop()
        if isinstance(item, HiddenGap):
            item = pop_hidden_batch(replicator.queue, item, self.assignment.producer_id, PRODUCER_EPOCH)
        return replicator, *item

    def _wait_for_sockets(self, has_progress: bool) -> set[socket.socket]:
        sockets = [link.connection.sock for link in self.fetcher.pending_links]
        sockets += [link.connection.sock for link in self.producer.links.values() if link.in_flight]
        sockets += self._gap_filler.sockets
        if self._gap_filler.is_connecting or self._resume_finder.is_busy:
            sockets.append(self._threads.wakeup_socket)
        if any(link.in_flight and link.has_buffered for link in self.producer.links.values()):
            return wait_readable(sockets, 0.0)
        now = self._now_s()
        is_due_soon = any(
            replicator.state is CopyState.LOST or replicator.due_gap is not None for replicator in self._active
        )
        max_wait_s = min(0.05 if is_due_soon else 0.5, self.fetcher.rate.wait_s(now) or 0.5)
        wait_s = 0.0 if has_progress else min(max_wait_s, max(0.0, self.stop_s - now))
        if not sockets:
            time.sleep(min(wait_s, 0.05))
            return set()
        ready = wait_readable(sockets, wait_s, until_writable=self.producer.unsent_sockets)
        if self._threads.wakeup_socket in ready:
            self._threads.clear_wakeups()
        return ready

    # -- links ---------------------------------------------------------------------------------------------------

    def _filter_connected(self, replicators: list[PartitionReplicator]) -> list[PartitionReplicator]:
        sources = {replicator.source_broker for replicator in replicators} - self.fetcher.links.keys()
        destinations = {replicator.destination_broker for replicator in replicators} - self.producer.links.keys()
        if not (self._resume_finder.is_busy or any(replicator.can_send for replicator in self.replicators)):
            self._wait_for_connections(replicators, sources, destinations)
        source_reasons, destination_reasons = (
            self._source_connections.find_unconnected(sources),
            self._destination_connections.find_unconnected(destinations),
        )
        connected = []
        for replicator in replicators:
            broker = replicator.destination_broker
            if reason := source_reasons.get(replicator.source_broker):
                replicator.source.mark_interrupted()
                replicator.mark_lost(
                    reason, self.source.name if self._source_connections.has_failed(replicator.source_broker) else None
                )
            elif reason := destination_reasons.get(broker):
                replicator.mark_lost(
                    reason, self.destination.name if self._destination_connections.has_failed(broker) else None
                )
            elif reason := self.producer.explain_backlog(broker):
                replicator.mark_lost(reason)
            else:
                connected.append(replicator)
        return connected

    def _wait_for_connections(
        self, replicators: list[PartitionReplicator], sources: set[int], destinations: set[int]
    ) -> None:
        unknown_brokers = (
            self._source_connections.try_start_opening(sources),
            self._destination_connections.try_start_opening(destinations),
        )
        connection_sets = []
        for source, destination in {
            (replicator.source_broker, replicator.destination_broker) for replicator in replicators
        }:
            if not (source in unknown_brokers[0] or destination in unknown_brokers[1]):
                connection_sets.append(
                    {
                        b
                        for b in (
                            self._source_connections.get_opening(source),
                            self._destination_connections.get_opening(destination),
                        )
                        if b is not None
                    }
                )
        wait_for_connections(connection_sets, _MAX_CONNECT_WAIT_S)

    def _set_brokers(self, source: ClusterMetadata, destination: ClusterMetadata) -> None:
        self._source_connections.set_brokers(source)
        self._destination_connections.set_brokers(destination)

    def close(self) -> None:
        for resource in (self.fetcher, self.producer, self._gap_filler, self._resume_finder, self._threads):
            resource.close()
        self._source_connections.close()
        self._destination_connections.close()
        self._driver_channel.close()


def _is_idle(replicator: PartitionReplicator) -> bool:
    is_waiting = replicator.state is CopyState.READY and not (
        replicator.queue.items or replicator.progress.in_flight or replicator.progress.is_seeding
    )
    return replicator.is_ended or (is_waiting and not replicator.in_background)
