"""To the destination: batches of many partitions in few requests, and what their answers say."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from mirror_core.copy.errors import answered
from mirror_core.copy.outbox import Ready, Sent
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import Side, denied
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.producing import ProduceLink, Row
from mirror_core.kafka.topics import delete_records
from mirror_core.model.errors import MissingPermission
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset

_REQUEST_BYTES: Final = 4 << 20

Tag = tuple[PartitionReplicator, Sent]
Item = tuple[PartitionReplicator, Sent, memoryview]


class Sender:
    """Links to the destination's brokers, several requests in flight each."""

    def __init__(
        self,
        destination: ClusterClient,
        stop_s: float,
        most_bytes: int,
        connect: Callable[[ClusterClient, int], Connection],
    ) -> None:
        """`stop_s`: wall clock after which nothing more is sent. `most_bytes`: on their way to each broker."""
        self.links: dict[int, ProduceLink[Tag]] = {}
        self._destination = destination
        self._side = Side.of(destination)
        self._stop_s = stop_s
        self._most_bytes = most_bytes
        self._connect = connect

    def send_all(self, found: Sequence[tuple[PartitionReplicator, list[Ready]]]) -> None:
        """One batch a partition and request."""
        for turn in range(max((len(queue) for _, queue in found), default=0)):
            self.send([(replicator, *queue[turn]) for replicator, queue in found if turn < len(queue)])

    def send(self, items: Sequence[Item]) -> None:
        """One batch each of several partitions, grouped by the broker that leads them."""
        groups: dict[int, list[Row[Tag]]] = {}
        for replicator, sent, batch in items:
            if not replicator.working:
                continue  # lost or failed since: what follows a refused batch would be refused too, or be shifted
            partition = replicator.partition
            row = Row(partition.topic, partition.index, batch, (replicator, sent))
            groups.setdefault(replicator.destination_broker, []).append(row)
        for broker, rows in groups.items():
            start = 0
            while start < len(rows):
                size, end = 0, start
                while end < len(rows) and (end == start or size + rows[end].tag[1].size <= _REQUEST_BYTES):
                    size += rows[end].tag[1].size
                    end += 1
                self._send_rows(broker, rows[start:end])
                start = end

    def _send_rows(self, broker: int, rows: list[Row[Tag]]) -> None:
        link = self._link(broker)
        while link.full:
            self.answers(link)
        rows = [row for row in rows if row.tag[0].working]
        # Our own clock decides when this task stops; the sequences decide what may be written.
        if not rows or time.time() >= self._stop_s:
            for row in rows:
                row.tag[0].not_sent()
            return
        now = time.monotonic()
        for row in rows:
            row.tag[0].place.sent(now)
        link.send(rows)

    def answers(self, link: ProduceLink[Tag]) -> None:
        """Wait for an answer, and take in all that have come."""
        for (replicator, sent), produced in link.answers():
            if answered(replicator, sent, produced, self._side):
                self._delete_seeds(replicator)

    def drain(self) -> None:
        """Wait for what is in flight; what stays unanswered is found by whoever copies next."""
        for link in self.links.values():
            while link.outstanding:
                self.answers(link)

    def _delete_seeds(self, replicator: PartitionReplicator) -> None:
        """What was seeded stands for nothing: nobody is to read it for longer than it takes to delete it."""
        upto = replicator.place.acknowledged
        try:
            delete_records(self._destination, {replicator.partition: Offset(upto)})
        except MissingPermission:
            if replicator.ended:
                return
            replicator.fail(denied(self._side, replicator.partition, "DELETE"), upto, FailureKind.DENIED)
        replicator.settle()

    def open(self, brokers: Collection[int]) -> None:
        """Connect before there is something to send."""
        for broker in brokers:
            self._link(broker)

    def _link(self, broker: int) -> ProduceLink[Tag]:
        if broker not in self.links:
            self.links[broker] = ProduceLink(self._connect(self._destination, broker), most_bytes=self._most_bytes)
        return self.links[broker]

    def close(self) -> None:
        for link in self.links.values():
            link.connection.close()
        self.links = {}
