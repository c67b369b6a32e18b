"""Fetches from the source, and enqueues what arrives."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from mirror_core.copy.batch_builder import merge_tiny_batches, rewrite_fetched_batches
from mirror_core.copy.fetch_links import BrokerPartitions, FetchLinks, has_many_idle
from mirror_core.copy.messages import ClusterSide, format_retriable
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.response_errors import handle_fetch_error
from mirror_core.copy.send_queue import ReadyBatch
from mirror_core.decide.task_assignment import MIN_FETCH_BYTES, RateLimiter
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetch_link import EmptyFetch, FetchLink, fetch_local_start, split_budget
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import Assignment
from mirror_core.wire import fetch

_log = get_logger(__name__)

_PARTITION_BYTES: Final = 1 << 20
_MAX_LINK_BYTES: Final = 8 << 20
_SOCKET_BYTES: Final = 4 << 20
_MAX_WAIT_MS: Final = 500
"""Brokers of 3.6 and 3.7 wait so long for remote storage, and no longer; newer ones have a setting."""
_SHORT_WAIT_MS: Final = 20
_IDLE_WAIT_MS: Final = 2_000
_IDLE_BYTES: Final = 1 << 20
_IDLE_BUDGET_DIVISOR: Final = 8
_MIN_FETCHES: Final = 4
_RESPONSE_TIMEOUT_S: Final = 10.0
"""For a late response: a half-open connection shows no error."""
_RECEIVE_SLICE_S: Final = 0.2
_END_UNVERIFIED: Final = (
    "there is something to copy, and the destination's leader has forgotten who wrote the end of its log"
)


class BatchFetcher:
    def __init__(
        self,
        assignment: Assignment,
        source: ClusterClient,
        replicators: Mapping[Partition, PartitionReplicator],
        connect: Callable[[int], Connection],
        can_accept: Callable[[int], bool],
        active: set[PartitionReplicator],
        now_s: Callable[[], float],
    ) -> None:
        self.links: dict[int, FetchLinks] = {}
        self.rate = RateLimiter(assignment.throttle)
        self._source = source
        self._side = ClusterSide.from_client(source)
        self._replicators = replicators
        self._producer_id = assignment.producer_id
        self._connect = connect
        self._can_accept = can_accept
        self._most_bytes = min(_MAX_LINK_BYTES, assignment.max_bytes_in_flight // 4)
        self._budget = assignment.max_bytes_in_flight // 2
        self._stop_s, self._now_s = assignment.stop_ms / 1000, now_s
        self._active = active
        self._partitions_by_broker: dict[int, BrokerPartitions] = {}
        self._broker_by_partition: dict[PartitionReplicator, int] = {}
        self._fetched_brokers = set[int]()

    def send_fetches(self, now: float) -> None:
        self._update_leaders()
        due_partitions = {
            broker: self._select_active(broker) for broker in self._partitions_by_broker if self._is_free(broker)
        }
        self._fetched_brokers = {
            b
            for b, partitions in self._partitions_by_broker.items()
            if (b in self.links or due_partitions.get(b)) and not partitions.is_ended
        }
        for broker in self.links.keys() - self._fetched_brokers:  # they send no next Fetch that would shrink it
            for link in self.links[broker].all_links:
                if not link.pending:
                    link.set_limits(0, 0)
        if self.rate.wait_s(now):
            return
        for broker in self._fetched_brokers & due_partitions.keys():
            try:
                links = self._get_links(broker)
                for link in links.get_free_links() if due_partitions[broker] else ():
                    self._fetch_active(links, link, due_partitions[broker], now)
                if self._is_idle_link_free(broker, links):
                    self._fetch_idle(broker, links, now)
            except RemoteFault as error:
                self.disconnect(broker, str(error))

    @property
    def pending_links(self) -> list[FetchLink]:
        return [link for links in self.links.values() for link in links.all_links if link.pending]

    def disconnect(self, broker: int, reason: str) -> None:
        if (links := self.links.pop(broker, None)) is not None:
            links.close()
        for replicator in self._replicators.values():
            if replicator.source_broker != broker:
                continue
            replicator.source.mark_interrupted()
            if replicator.can_send:
                replicator.source.handle_disconnect()
                replicator.mark_lost(reason)

    def _drop_idle_link(self, broker: int, links: FetchLinks, reason: str) -> None:
        _log.info("goes on without the calm link: %s", reason)
        links.drop_idle_link()
        self._partitions_by_broker[broker].merge_idle()

    def disconnect_silent(self) -> None:
        for broker, links in list(self.links.items()):
            for link in links.all_links:
                if link.overdue_s > _RESPONSE_TIMEOUT_S and not wait_readable([link.connection.sock], 0.0):
                    reason = f"{link.connection.where}: no answer to a Fetch for {link.overdue_s:.0f} s"
                    if link is links.idle_link:
                        self._drop_idle_link(broker, links, reason)
                        continue
                    self.disconnect(broker, reason)
                    break

    def receive(self, link: FetchLink) -> list[tuple[PartitionReplicator, list[ReadyBatch]]]:
        """Processes one response; returns what is to be sent at once."""
        for broker, links in self.links.items():
            if link not in links.all_links:
                continue
            try:
                return self._process_response(broker, links, link) if link.receive_response() else []
            except Unreachable as error:  # what was enqueued is dropped
                if link is links.idle_link:
                    self._drop_idle_link(broker, links, str(error))
                else:
                    self.disconnect(broker, str(error))
                break
            except RemoteFault as error:
                self.disconnect(broker, str(error))
                self._handle_malformed(link, str(error))
                break
        return []

    def _handle_malformed(self, link: FetchLink, reason: str) -> None:
        for partition in link.requested_partitions:
            replicator = self._replicators[partition]
            if link.is_single_partition and replicator.source.must_fetch_alone and not replicator.is_ended:
                replicator.fail(reason, replicator.progress.acknowledged, FailureKind.OTHER)
            replicator.source.mark_malformed()

    def _process_response(
        self, broker: int, links: FetchLinks, link: FetchLink
    ) -> list[tuple[PartitionReplicator, list[ReadyBatch]]]:
        batches: list[tuple[PartitionReplicator, list[ReadyBatch]]] = []
        empty: list[tuple[PartitionReplicator, fetch.FetchedPartition]] = []
        size, read_bytes, started_at = 0, 0, time.monotonic()
        for fetched in link.read_response():
            read_bytes += len(fetched.records)
            replicator = self._replicators[fetched.partition]
            if not self._has_news(replicator, fetched, link):
                continue
            size += len(fetched.records)
            self._active.add(replicator)
            copied = rewrite_fetched_batches(self._source.name, fetched, replicator.progress.position)
            if ready := replicator.enqueue_fetched(copied, self._producer_id):
                batches.append((replicator, merge_tiny_batches(ready, self._producer_id)))
            if replicator.progress.position != replicator.source.fetch_position:
                replicator.source.note_data(started_at)
            elif not replicator.is_finished:
                empty.append((replicator, fetched))
        if link.is_single_partition or size <= link.room_bytes:  # otherwise others used up the response
            for replicator, fetched in empty:
                self._handle_empty(replicator, fetched, is_conclusive=link.is_single_partition and not link.throttle_ms)
        now = self._now_s()
        self.rate.record_read(read_bytes, now)
        if link is not links.idle_link:
            links.note_response(link.has_more)
        if now < self._stop_s and not self.rate.wait_s(now):
            self._fetch_again(broker, links, link, now)
        return batches

    def _has_news(self, replicator: PartitionReplicator, fetched: fetch.FetchedPartition, link: FetchLink) -> bool:
        if not replicator.awaits_response or replicator.source.fetch_link is not link:
            return False  # aligned since, or fetched on another link
        if fetched.error:
            handle_fetch_error(replicator, fetched.error, self._side)
            return False
        position = replicator.progress.position
        replicator.source.note_end(fetched.last_stable_offset)
        if not fetched.records and fetched.last_stable_offset <= position:
            replicator.source.clear_suspicion()  # nearly always: nothing new
            return False
        if replicator.end_unverified and fetched.last_stable_offset > position:
            replicator.mark_lost(format_retriable(self._source.name, fetched.partition, position, _END_UNVERIFIED))
            return False
        return True

    def _fetch_again(self, broker: int, links: FetchLinks, link: FetchLink, now: float) -> None:
        if link is links.idle_link:
            self._fetch_idle(broker, links, now)
        elif replicators := self._select_active(broker):
            self._fetch_active(links, link, replicators, now)

    def _fetch_active(
        self, links: FetchLinks, link: FetchLink, replicators: list[PartitionReplicator], now: float
    ) -> None:
        selectable = links.select_partitions(link, replicators)
        if not selectable:
            return
        fetched_alone = next(
            (
                replicator
                for replicator in selectable
                if replicator.source.is_suspect or replicator.source.must_fetch_alone
            ),
            None,
        )
        selected = (
            selectable[: links.partitions_per_link(len(replicators))] if fetched_alone is None else [fetched_alone]
        )
        if (
            not links.idle_link_tried
            and link.request_count > _MIN_FETCHES
            and has_many_idle(selected, time.monotonic())
        ):
            links.add_idle_link()
        # A partition that waits for the destination soon needs a Fetch, and cannot join one in flight.
        soon = any(
            (replicator.queue.items or replicator.progress.is_first_unanswered)
            and self._can_accept(replicator.destination_broker)
            for replicator in self._active
        )
        max_wait_ms = _SHORT_WAIT_MS if soon else _MAX_WAIT_MS
        if any(replicator.source.is_remote(replicator.progress.position) for replicator in selected):
            max_wait_ms = _MAX_WAIT_MS
        elif fetched_alone is not None:
            max_wait_ms = 0
        self._set_limits(links)
        self._send_fetch(link, selected, max_wait_ms, now)

    def _fetch_idle(self, broker: int, links: FetchLinks, now: float) -> None:
        """Free active links fetch the active ones first: they would wait with the idle ones."""
        partitions, monotonic_now = self._partitions_by_broker[broker], time.monotonic()
        active, idle = partitions.split_by_activity(monotonic_now)
        for link in links.get_free_links():
            if fetchable := [replicator for replicator in active if self._can_fetch_more(replicator)]:
                self._fetch_active(links, link, fetchable, now)
        selected = partitions.select_idle(
            active, idle, set(links.links[0].in_flight_partitions), monotonic_now, self._can_fetch_more
        )
        if selected and links.idle_link is not None:
            max_bytes = max(
                MIN_FETCH_BYTES,
                min(_IDLE_BYTES, self._budget // (_IDLE_BUDGET_DIVISOR * max(1, len(self._fetched_brokers)))),
            )
            max_bytes = self.rate.limit_fetch_bytes(max_bytes, len(links.all_links))
            links.idle_link.set_limits(max_bytes, max_bytes)
            try:
                self._send_fetch(
                    links.idle_link, selected, _SHORT_WAIT_MS if partitions.must_hurry else _IDLE_WAIT_MS, now
                )
            except Unreachable as error:
                self._drop_idle_link(broker, links, str(error))

    def _is_idle_link_free(self, broker: int, links: FetchLinks) -> bool:
        is_free = links.idle_link is not None and not links.idle_link.pending
        return is_free and self._partitions_by_broker[broker].is_idle_fetch_due(time.monotonic())

    def _send_fetch(
        self, link: FetchLink, replicators: Collection[PartitionReplicator], max_wait_ms: int, now: float
    ) -> None:
        positions = []
        for replicator in replicators:
            position = replicator.progress.position
            replicator.source.note_fetch(position, link, now)
            positions.append(
                fetch.FetchPosition(replicator.partition, position, replicator.source_epoch, replicator.source_topic_id)
            )
        wait_ms = min(max_wait_ms, max(1, int((self._stop_s - now) * 1000)))
        link.send_fetch(positions, max_wait_ms=wait_ms, isolation=fetch.IsolationLevel.READ_COMMITTED)

    def _can_fetch_more(self, replicator: PartitionReplicator) -> bool:
        # A destination broker that accepts nothing leaves half of the queue budget to others.
        return replicator.can_fetch and not (
            replicator.queue.budget.is_half_full and not self._can_accept(replicator.destination_broker)
        )

    def _update_leaders(self) -> None:
        for replicator in self._active:
            broker, previous = replicator.source_broker, self._broker_by_partition.get(replicator)
            if broker < 0 or (broker == previous and not (replicator.can_send and replicator.source.is_unfetched)):
                continue
            if previous is not None and previous != broker:
                self._partitions_by_broker[previous].remove(replicator)
            self._partitions_by_broker.setdefault(broker, BrokerPartitions()).add(replicator)
            self._broker_by_partition[replicator] = broker

    def _is_free(self, broker: int) -> bool:
        links = self.links.get(broker)
        return links is None or bool(links.get_free_links()) or self._is_idle_link_free(broker, links)

    def _select_active(self, broker: int) -> list[PartitionReplicator]:
        return [
            replicator
            for replicator in self._partitions_by_broker[broker].select_active()
            if self._can_fetch_more(replicator)
        ]

    def _handle_empty(
        self, replicator: PartitionReplicator, fetched: fetch.FetchedPartition, *, is_conclusive: bool
    ) -> None:
        partition, position, end = replicator.partition, replicator.progress.position, fetched.last_stable_offset
        outcome = replicator.source.judge_empty_fetch(position, fetched, is_conclusive=is_conclusive)
        if outcome is EmptyFetch.MALFORMED:
            text = "an answer without a whole batch"
            replicator.fail_after(
                format_retriable(self._source.name, partition, position, text), position, FailureKind.CORRUPT
            )
        elif outcome is EmptyFetch.CHECK_LOCAL_START:
            start = fetch_local_start(self._source, partition, replicator.source_epoch)
            if start is None:
                text = "the leader does not tell which part of the log it holds itself"
                replicator.mark_lost(format_retriable(self._source.name, partition, position, text))
            elif replicator.source.judge_with_local_start(position, start, end) is EmptyFetch.GAP:
                replicator.skip_to(end)
                replicator.source.clear_suspicion()

    def _get_links(self, broker: int) -> FetchLinks:
        if broker not in self.links:
            self.links[broker] = FetchLinks(self._connect(broker), self._make_link)
        return self.links[broker]

    def _make_link(self, connection: Connection, is_far: bool) -> FetchLink:
        # Limits are set before each Fetch.
        if not is_far:  # the system sizes a far link's buffers
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        return FetchLink(
            connection, max_bytes=0, partition_max_bytes=0, full_size=is_far, receive_timeout_s=_RECEIVE_SLICE_S
        )

    def _set_limits(self, links: FetchLinks) -> None:
        """Socket buffers are not part of the budget."""
        quiet_count = sum(self.links[broker].is_quiet for broker in self.links.keys() & self._fetched_brokers)
        room = split_budget(
            self._budget, len(self._fetched_brokers) - quiet_count, quiet_count, is_active=not links.is_quiet
        )
        free_links = links.get_free_links()
        # A broker shrinks its share at its next Fetch only: until then its links hold their limits.
        held_bytes = sum(
            link.max_bytes for broker_links in self.links.values() for link in broker_links.all_links
        ) - sum(link.max_bytes for link in free_links)
        max_bytes = min(self._most_bytes, room // links.max_links, (self._budget - held_bytes) // len(free_links))
        link_count = max(links.max_links, len(links.all_links))
        max_bytes = self.rate.limit_fetch_bytes(
            max(max_bytes, MIN_FETCH_BYTES if links.is_far else _PARTITION_BYTES), link_count
        )
        for link in free_links:
            link.set_limits(max_bytes, max_bytes if links.is_far else min(max_bytes, _PARTITION_BYTES))

    def close(self) -> None:
        for links in self.links.values():
            links.close()
        self.links = {}
