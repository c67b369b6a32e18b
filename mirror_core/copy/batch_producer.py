"""Produces to the destination: batches of many partitions in few requests."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from mirror_core.copy.messages import ClusterSide, format_denied
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.response_errors import handle_produce_response
from mirror_core.copy.send_queue import ReadyBatch, SentBatch
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.produce_link import ProduceBatch, ProduceLink
from mirror_core.kafka.sockets import wait_readable
from mirror_core.kafka.topics import delete_records
from mirror_core.model.acl import Operation
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset
from mirror_core.model.text import format_count

_REQUEST_BYTES: Final = 4 << 20
_MAX_THROTTLE_S: Final = 3.0
"""A broker that is throttled for longer gets nothing: it would fill the buffers on the way."""
_FULL_LINK_WAIT_S: Final = 0.2
"""For a broker with a full link; then batches wait in the queue. Slower brokers are not waited for."""
_SINGLE_LINK_WAIT_S: Final = 1.0
_RESPONSE_TIMEOUT_S: Final = 15.0
"""Then another broker may lead; one that waits for replicas is found when its log is checked."""

InFlightBatch = tuple[PartitionReplicator, SentBatch]
OutgoingBatch = tuple[PartitionReplicator, SentBatch, memoryview]


class BatchProducer:
    def __init__(
        self,
        destination: ClusterClient,
        replicators: Collection[PartitionReplicator],
        stop_s: float,
        max_bytes: int,
        connect: Callable[[int], Connection],
        now_s: Callable[[], float],
    ) -> None:
        self.links: dict[int, ProduceLink[InFlightBatch]] = {}
        self._unresponsive = set[int]()
        """Waited for in vain since their last response; not again for each partition."""
        self._destination = destination
        self._replicators = replicators
        self._side = ClusterSide.from_client(destination)
        self._stop_s, self._now_s = stop_s, now_s
        self._max_bytes = max_bytes
        self._connect = connect

    def send_all(self, queues: Sequence[tuple[PartitionReplicator, list[ReadyBatch]]]) -> None:
        for index in range(max((len(queue) for _, queue in queues), default=0)):
            self.send([(replicator, *queue[index]) for replicator, queue in queues if index < len(queue)])

    def send(self, items: Sequence[OutgoingBatch]) -> None:
        groups: dict[int, list[ProduceBatch[InFlightBatch]]] = {}
        for replicator, sent, batch in items:
            if not replicator.can_send:
                continue  # what follows a refused batch would be refused or shifted
            partition = replicator.partition
            row = ProduceBatch(
                partition.topic, partition.index, batch, (replicator, sent), replicator.destination_topic_id
            )
            groups.setdefault(replicator.destination_broker, []).append(row)
        for broker, rows in groups.items():
            start = 0
            while start < len(rows):
                size, end = 0, start
                while end < len(rows) and (end == start or size + rows[end].tag[1].size <= _REQUEST_BYTES):
                    size += rows[end].tag[1].size
                    end += 1
                self._send_request(broker, rows[start:end])
                start = end

    def can_accept(self, broker: int) -> bool:
        link = self.links.get(broker)
        return link is None or not (link.is_full or self._explain_throttle(broker))

    def _send_request(self, broker: int, rows: list[ProduceBatch[InFlightBatch]]) -> None:
        try:
            link = self._get_link(broker)
            while self.links.get(broker) is link and link.is_full and self._wait_for_room(broker, link):
                pass
            rows = [row for row in rows if row.tag[0].can_send]
            # Our clock decides when this task stops; sequences decide what may be written.
            if not rows or self._now_s() >= self._stop_s:
                for row in rows:
                    row.tag[0].mark_unsent()
                return
            can_accept, now = self.can_accept(broker), time.monotonic()
            sendable_rows = list[ProduceBatch[InFlightBatch]]()
            for row in rows:
                replicator, sent = row.tag
                progress = replicator.progress
                if not progress.in_flight:
                    progress.expire_sequence(now)  # it may have been queued for long
                may_send = can_accept and (progress.is_sequence_known or not progress.in_flight)
                if may_send and not replicator.queue.has_batch_before(sent.base_offset):
                    progress.add_in_flight(now)
                    sendable_rows.append(row)
                else:
                    replicator.put_back(sent, row.batch)
            if sendable_rows:
                link.send(sendable_rows, self._get_max_wait_s(broker, link))
                if link.has_unsent:
                    self._unresponsive.add(broker)
        except RemoteFault as error:
            self.disconnect(broker, str(error))

    def _wait_for_room(self, broker: int, link: ProduceLink[InFlightBatch]) -> bool:
        link.flush()
        if link.has_unsent or not link.is_full:
            return not link.has_unsent
        max_wait_s = self._get_max_wait_s(broker, link)
        if link.has_buffered or wait_readable([link.connection.sock], max_wait_s):
            self.receive(broker)
            return True
        if max_wait_s:
            self._unresponsive.add(broker)
        return False

    def _get_max_wait_s(self, broker: int, link: ProduceLink[InFlightBatch]) -> float:
        if broker in self._unresponsive or self._explain_throttle(broker):
            return 0.0
        if len(self.links) == 1:
            return _SINGLE_LINK_WAIT_S
        return 0.0 if link.latency_s > _FULL_LINK_WAIT_S else _FULL_LINK_WAIT_S

    @property
    def unsent_sockets(self) -> list[socket.socket]:
        return [link.connection.sock for link in self.links.values() if link.has_unsent]

    def flush(self) -> None:
        for broker, link in list(self.links.items()):
            try:
                link.flush()
            except RemoteFault as error:
                self.disconnect(broker, str(error))

    def explain_wait(self, broker: int) -> str:
        link = self.links.get(broker)
        if link is None:
            return ""
        reason = self._explain_throttle(broker)
        if not reason and link.in_flight:
            reason = f"broker {broker}: it has answered nothing for {max(0.0, link.overdue_s):.0f} s"
        elif not reason and link.total_throttle_s > _MAX_THROTTLE_S:
            throttled = f"{link.total_throttle_s:.0f} s of this epoch"
            reason = f"broker {broker} has read nothing from here for {throttled}: {self._quota_reason}"
        return f"cluster {self._side.name}, {reason}" if reason else ""

    def explain_backlog(self, broker: int) -> str:
        """Why no partition may resume at this broker now; "" when nothing prevents it."""
        if (throttle := self._explain_throttle(broker)) or broker not in self._unresponsive:
            return throttle
        return f"{self.explain_wait(broker)}, and is owed too much already"

    def _explain_throttle(self, broker: int) -> str:
        link = self.links.get(broker)
        if link is None or link.throttled_for_s <= _MAX_THROTTLE_S:
            return ""
        return f"broker {broker} reads nothing more from here for {link.throttled_for_s:.0f} s: {self._quota_reason}"

    @property
    def _quota_reason(self) -> str:
        return f"a quota limits what {self._side.user} may write"

    def receive(self, broker: int) -> None:
        try:
            if not self.links[broker].receive_available():
                return
            self._unresponsive.discard(broker)
            for (replicator, sent), produced in self.links[broker].read_responses():
                if handle_produce_response(replicator, sent, produced, self._side):
                    self._delete_seeds(replicator)
        except RemoteFault as error:
            self.disconnect(broker, str(error))

    def disconnect(self, broker: int, reason: str) -> None:
        if (link := self.links.pop(broker, None)) is not None:
            link.connection.close()
        self._unresponsive.discard(broker)
        for replicator in self._replicators:
            if replicator.destination_broker == broker:
                replicator.handle_disconnect(reason)

    def disconnect_silent(self) -> None:
        for broker, link in list(self.links.items()):
            if (
                link.overdue_s > _RESPONSE_TIMEOUT_S
                and not link.has_buffered
                and not wait_readable([link.connection.sock], 0.0)
            ):
                self.disconnect(broker, f"{link.connection.where}: no answer to a Produce for {link.overdue_s:.0f} s")

    def wait_for_responses(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while True:
            self.flush()
            broker_by_socket = {link.connection.sock: broker for broker, link in self.links.items() if link.in_flight}
            if not broker_by_socket:
                return
            buffered = {broker for broker, link in self.links.items() if link.in_flight and link.has_buffered}
            limit = 0.0 if buffered else max(0.0, end - time.monotonic())
            ready = buffered | {
                broker_by_socket[sock]
                for sock in wait_readable(broker_by_socket, limit, until_writable=self.unsent_sockets)
            }
            if not ready and time.monotonic() >= end:
                throttled_brokers = [broker for broker in broker_by_socket.values() if self.links[broker].throttle_s]
                quota_text = f"; {self._quota_reason}" if throttled_brokers else ""
                brokers = sorted(broker_by_socket.values())
                raise Unreachable(
                    f"cluster {self._side.name}: no answer from {format_count(len(brokers), 'broker')}"
                    f" ({', '.join(map(str, brokers))}){quota_text}"
                )
            for broker in ready:
                self.receive(broker)

    def _delete_seeds(self, replicator: PartitionReplicator) -> None:
        upto = replicator.progress.acknowledged
        try:
            delete_records(self._destination, {replicator.partition: Offset(upto)})
        except MissingPermission:
            if replicator.is_ended:
                return
            replicator.fail(format_denied(self._side, replicator.partition, Operation.DELETE), upto, FailureKind.DENIED)
        except Unreachable:
            raise
        except RemoteFault as error:  # a policy of the topic; others can be copied
            if replicator.is_ended:
                return
            replicator.fail(str(error), upto, FailureKind.REFUSED)
        replicator.finish_if_acknowledged()

    def _get_link(self, broker: int) -> ProduceLink[InFlightBatch]:
        if broker not in self.links:
            self.links[broker] = ProduceLink(self._connect(broker), max_bytes=self._max_bytes)
        return self.links[broker]

    def close(self) -> None:
        for link in self.links.values():
            link.connection.close()
        self.links = {}
        self._unresponsive.clear()
