"""Filling gaps with markers: who may, how many at a time, and what the log end says of it.

Markers know no sequence, so a copier never relies on being alone. The one whose marker is the newest in the partition
goes on filling. Any other one (a new epoch's task, a second process, ourselves after an unanswered request) waits until
the log end has stood still for a while, though a gap is due: then the owner is gone. Its first marker then carries a
higher number, which makes the broker refuse whatever the old owner has still on its way (`decide.gaps`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from mirror_core.copy.gap_round import LOOK_AGAIN_S, GapRound, Look, Reply
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import Side
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.marking import MarkerLink
from mirror_core.model.errors import RemoteFault


class GapFiller:
    """Fills the gaps of one task's partitions, one request at a time per broker."""

    def __init__(
        self,
        destination: ClusterClient,
        producer_id: int,
        producer_epoch: int,
        epoch: int,
        connect: Callable[[int], Connection],
        lost: Callable[[int, str], None],
    ) -> None:
        """`epoch`: the task's, of the data plane. `lost`: told which broker gave no answer, and why."""
        self.destination = Side.of(destination)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.epoch = epoch
        self._connect = connect
        self._lost = lost
        self._links: dict[int, MarkerLink] = {}
        self._poll_at = 0.0

    def fill(self, replicators: Iterable[PartitionReplicator], until: float) -> bool:
        """Fill what may be filled now; nothing is sent after `until` (wall clock). True when any came further.

        A broker that gives no answer may append what it was sent at any time from then on.
        """
        now = time.monotonic()
        watch = now >= self._poll_at
        by_broker: dict[int, list[PartitionReplicator]] = {}
        for replicator in replicators:
            if replicator.gap is not None and (replicator.gaps.owned or watch):
                by_broker.setdefault(replicator.destination_broker, []).append(replicator)
        moved = False
        for broker, mine in by_broker.items():
            try:
                moved |= self._fill_at(self._link(broker), mine, until)
            except RemoteFault as error:
                if (link := self._links.pop(broker, None)) is not None:
                    link.connection.close()
                self._lost(broker, str(error))
        if watch:
            self._poll_at = time.monotonic() + LOOK_AGAIN_S
        return moved

    def _fill_at(self, link: MarkerLink, replicators: list[PartitionReplicator], until: float) -> bool:
        filling = GapRound(
            destination=self.destination,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            epoch=self.epoch,
            until=until,
            stale=link.stale,
            round_trip_s=link.round_trip_s,
            monotonic=time.monotonic,
            wall=time.time,
        ).run(replicators)
        try:
            request = next(filling)
            while True:
                if isinstance(request, Look):
                    reply = Reply(ends=link.log_ends(request.partitions))
                else:
                    reply = Reply(codes=link.write(request.entries))
                request = filling.send(reply)
        except StopIteration as ended:
            return bool(ended.value)

    def _link(self, broker: int) -> MarkerLink:
        if broker not in self._links:
            self._links[broker] = MarkerLink(self._connect(broker))
        return self._links[broker]

    def close(self) -> None:
        for link in self._links.values():
            link.connection.close()
        self._links = {}
