"""Produces to the destination: batches of many partitions in few requests, and their responses."""

from __future__ import annotations

import socket
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
from mirror_core.kafka.sockets import readable
from mirror_core.kafka.topics import delete_records
from mirror_core.model.acl import Operation
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset

_REQUEST_BYTES: Final = 4 << 20
_MUTED_S: Final = 3.0
"""A broker that a quota keeps from reading longer gets nothing: it would fill the buffers on the way."""
_BRIEF_S: Final = 0.2
"""For a broker with a full link; then batches wait in the queue. A slower broker is not waited for at
all."""
_ALONE_S: Final = 1.0
_SILENCE_S: Final = 15.0
"""Without a response another broker may lead by now. A leader that waits this long for replicas is
found when its log is checked."""

Tag = tuple[PartitionReplicator, Sent]
Item = tuple[PartitionReplicator, Sent, memoryview]


class Sender:
    def __init__(
        self,
        destination: ClusterClient,
        replicators: Collection[PartitionReplicator],
        stop_s: float,
        most_bytes: int,
        connect: Callable[[int], Connection],
        now_s: Callable[[], float] = lambda: time.time(),
    ) -> None:
        self.links: dict[int, ProduceLink[Tag]] = {}
        self._silent = set[int]()
        """Brokers that were waited for in vain since their last response, so that not each partition waits
        again."""
        self._destination = destination
        self._replicators = replicators
        self._side = Side.of(destination)
        self._stop_s, self._now_s = stop_s, now_s
        self._most_bytes = most_bytes
        self._connect = connect

    def send_all(self, found: Sequence[tuple[PartitionReplicator, list[Ready]]]) -> None:
        for turn in range(max((len(queue) for _, queue in found), default=0)):
            self.send([(replicator, *queue[turn]) for replicator, queue in found if turn < len(queue)])

    def send(self, items: Sequence[Item]) -> None:
        groups: dict[int, list[Row[Tag]]] = {}
        for replicator, sent, batch in items:
            if not replicator.working:
                continue  # what follows a refused batch would be refused or shifted
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

    def takes(self, broker: int) -> bool:
        link = self.links.get(broker)
        return link is None or not (link.full or self._muted(broker))

    def _send_rows(self, broker: int, rows: list[Row[Tag]]) -> None:
        try:
            link = self._link(broker)
            while self.links.get(broker) is link and link.full and self._gets_on(broker, link):
                pass
            rows = [row for row in rows if row.tag[0].working]
            # Our clock decides when this task stops; sequences decide what may be written.
            if not rows or self._now_s() >= self._stop_s:
                for row in rows:
                    row.tag[0].not_sent()
                return
            takes, now = self.takes(broker), time.monotonic()
            going = list[Row[Tag]]()
            for row in rows:
                replicator, sent = row.tag
                place = replicator.place
                if not place.in_flight:
                    place.idle(now)  # it may have been queued for long
                free = takes and (place.proven or not place.in_flight)
                if free and not replicator.outbox.goes_before(sent.base):
                    place.sent(now)
                    going.append(row)
                else:
                    replicator.keep(sent, row.batch)
            if going:
                link.send(going, self._patience_s(broker, link))
                if link.unsent:
                    self._silent.add(broker)
        except RemoteFault as error:
            self.lost(broker, str(error))

    def _gets_on(self, broker: int, link: ProduceLink[Tag]) -> bool:
        link.flush()
        if link.unsent or not link.full:
            return not link.unsent
        patience_s = self._patience_s(broker, link)
        if link.buffered or readable([link.connection.sock], patience_s):
            self.answers(broker)
            return True
        if patience_s:
            self._silent.add(broker)
        return False

    def _patience_s(self, broker: int, link: ProduceLink[Tag]) -> float:
        if broker in self._silent or self._muted(broker):
            return 0.0
        if len(self.links) == 1:
            return _ALONE_S
        return 0.0 if link.took_s > _BRIEF_S else _BRIEF_S

    @property
    def unsent(self) -> list[socket.socket]:
        return [link.connection.sock for link in self.links.values() if link.unsent]

    def flush(self) -> None:
        for broker, link in list(self.links.items()):
            try:
                link.flush()
            except RemoteFault as error:
                self.lost(broker, str(error))

    def waits_for(self, broker: int) -> str:
        link = self.links.get(broker)
        if link is None:
            return ""
        why = self._muted(broker)
        if not why and link.outstanding:
            why = f"broker {broker}: it has answered nothing for {max(0.0, link.waits_s):.0f} s"
        elif not why and link.throttled_s > _MUTED_S:
            rested = f"{link.throttled_s:.0f} s of this epoch"
            why = f"broker {broker} has read nothing from here for {rested}: {self._quota}"
        return f"cluster {self._side.name}, {why}" if why else ""

    def owed(self, broker: int) -> str:
        """Why no partition may resume at this broker now; "" when nothing prevents it."""
        if (muted := self._muted(broker)) or broker not in self._silent:
            return muted
        return f"{self.waits_for(broker)}, and is owed too much already"

    def _muted(self, broker: int) -> str:
        link = self.links.get(broker)
        if link is None or link.muted_s <= _MUTED_S:
            return ""
        return f"broker {broker} reads nothing more from here for {link.muted_s:.0f} s: {self._quota}"

    @property
    def _quota(self) -> str:
        return f"a quota limits what {self._side.user} may write"

    def answers(self, broker: int) -> None:
        try:
            if not self.links[broker].arrived():
                return
            self._silent.discard(broker)
            for (replicator, sent), produced in self.links[broker].answers():
                if answered(replicator, sent, produced, self._side):
                    self._delete_seeds(replicator)
        except RemoteFault as error:
            self.lost(broker, str(error))

    def lost(self, broker: int, why: str) -> None:
        if (link := self.links.pop(broker, None)) is not None:
            link.connection.close()
        self._silent.discard(broker)
        for replicator in self._replicators:
            if replicator.destination_broker == broker:
                replicator.disconnected(why)

    def give_up(self) -> None:
        for broker, link in list(self.links.items()):
            if link.waits_s > _SILENCE_S and not link.buffered and not readable([link.connection.sock], 0.0):
                self.lost(broker, f"{link.connection.where}: no answer to a Produce for {link.waits_s:.0f} s")

    def drain(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while True:
            self.flush()
            waiting = {link.connection.sock: broker for broker, link in self.links.items() if link.outstanding}
            if not waiting:
                return
            buffered = {broker for broker, link in self.links.items() if link.outstanding and link.buffered}
            limit = 0.0 if buffered else max(0.0, end - time.monotonic())
            ready = buffered | {waiting[sock] for sock in readable(waiting, limit, until_writable=self.unsent)}
            if not ready and time.monotonic() >= end:
                throttled = [broker for broker in waiting.values() if self.links[broker].throttle_s]
                why = f"; {self._quota}" if throttled else ""
                raise Unreachable(
                    f"cluster {self._side.name}: no answer from broker(s) {sorted(waiting.values())}{why}"
                )
            for broker in ready:
                self.answers(broker)

    def _delete_seeds(self, replicator: PartitionReplicator) -> None:
        upto = replicator.place.acknowledged
        try:
            delete_records(self._destination, {replicator.partition: Offset(upto)})
        except MissingPermission:
            if replicator.ended:
                return
            replicator.fail(denied(self._side, replicator.partition, Operation.DELETE), upto, FailureKind.DENIED)
        except Unreachable:
            raise
        except RemoteFault as error:  # a policy of the topic; others can be copied
            if replicator.ended:
                return
            replicator.fail(str(error), upto, FailureKind.REFUSED)
        replicator.settle()

    def _link(self, broker: int) -> ProduceLink[Tag]:
        if broker not in self.links:
            self.links[broker] = ProduceLink(self._connect(broker), most_bytes=self._most_bytes)
        return self.links[broker]

    def close(self) -> None:
        for link in self.links.values():
            link.connection.close()
        self.links = {}
        self._silent.clear()
