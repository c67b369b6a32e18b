"""The copy task: what is done for one epoch. A plain function of its assignment; it knows nothing of Spark.

Whole batches go from Fetch to Produce in the buffer they came in. The destination's log end is the position; every
answer's base offset is checked; what was in flight when something broke is looked up, never guessed or sent blindly.
A gap is a barrier of its partition: all batches before it are acknowledged before it is filled, and it is known to be
full before the next batch is sent. Data and markers are protected in different ways, and neither protects the other.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirror_core.copy.ahead import Ahead, await_first
from mirror_core.copy.align import Aligner
from mirror_core.copy.beacon import Beacon
from mirror_core.copy.beside import Beside
from mirror_core.copy.datagrams import Line
from mirror_core.copy.gap_hidden import first_hidden
from mirror_core.copy.gap_markers import GapFiller
from mirror_core.copy.handover import Successor
from mirror_core.copy.outbox import Hidden, Waiting
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.receiving import Receiver
from mirror_core.copy.report import report
from mirror_core.copy.rewrite import PRODUCER_EPOCH
from mirror_core.copy.seed import seeds
from mirror_core.copy.sending import Item, Sender
from mirror_core.copy.states import State
from mirror_core.copy.words import began_too_late
from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.sockets import readable
from mirror_core.model.clock import SteadyClock
from mirror_core.model.copying import Assignment, TaskReport
from mirror_core.model.errors import RemoteFault
from mirror_core.model.logs import about, logger
from mirror_core.model.mirror import Gaps

_log = logger(__name__)

_CONTROL_TIMEOUT_S: Final = 10.0
_CONNECT_S: Final = 1.0
"""To wait for connections at most, while nothing is copied anyway."""
_SOON_S: Final = 1.0
"""Within which brokers at work have answered."""
_DRAIN_S: Final = 10.0
"""After its end a task waits for answers for so long at most. How long it goes on looking into logs it is told."""
_IN_A_ROW: Final = 64
"""Batches of a partition's line before answers are looked at: one that holds a wide gap must not keep the others
waiting."""
_FILL_MARGIN_S: Final = 0.1
"""Markers are not sent in the last moments of an epoch: two tasks' clocks may differ, and only the sequences of data
don't mind."""


def never() -> bool:
    """Not cancelled."""
    return False


def run(assignment: Assignment, cancelled: Callable[[], bool] = never) -> TaskReport:
    """Copy the assignment's partitions from `start_ms` to `stop_ms`, or until all have reached their `until`.

    Raises BadRequest for what no retry mends; trouble with brokers, and answers that make no sense, are retried until
    `stop_ms` and then reported.
    """
    with about(mirror=assignment.mirror, epoch=assignment.epoch, task=assignment.task):
        return _run(assignment, cancelled)


def _run(assignment: Assignment, cancelled: Callable[[], bool]) -> TaskReport:
    config = load_config(Path(assignment.config_path), only=Principal.DATA)
    source = ClusterClient(config.cluster(assignment.source), Principal.DATA, timeout_s=_CONTROL_TIMEOUT_S)
    destination = ClusterClient(config.cluster(assignment.destination), Principal.DATA, timeout_s=_CONTROL_TIMEOUT_S)
    with source, destination, closing(CopyTask(assignment, source, destination, cancelled)) as task:
        return task.run()


class CopyTask:
    """Partitions, links to brokers, and the loop between them."""

    def __init__(
        self, assignment: Assignment, source: ClusterClient, destination: ClusterClient, cancelled: Callable[[], bool]
    ) -> None:
        self.assignment = assignment
        self.source = source
        self.destination = destination
        self.cancelled = cancelled
        self.stop_s = assignment.stop_ms / 1000
        self._now_s = SteadyClock()
        hides = assignment.gaps is Gaps.HIDDEN
        # Who begins late may come after another attempt at the same task, which was killed.
        late = self._now_s() * 1000 > assignment.start_ms
        given = (replace(one, answered=one.answered and not late) for one in assignment.partitions)
        ordered = sorted(given, key=lambda assigned: assigned.partition)
        waiting = Waiting(assignment.max_bytes_in_flight)
        told = assignment.driver is not None
        self._awake = set[PartitionReplicator]()
        """Those for which a turn may have something to do: whoever has come into another state, or been given
        something, until it rests. Looking through thousands that rest would take most of a turn's time."""
        self.replicators = [
            PartitionReplicator(one, hides=hides, waiting=waiting, awake=self._awake, told=told) for one in ordered
        ]
        self.replicator_of = {replicator.partition: replicator for replicator in self.replicators}
        self._rank = {replicator: number for number, replicator in enumerate(self.replicators)}
        self._from, self._to = Ahead(source), Ahead(destination)
        self.sender = Sender(
            destination, self.replicators, self.stop_s, assignment.max_bytes_in_flight, self._to.connect, self._now_s
        )
        self.receiver = Receiver(
            assignment, source, self.replicator_of, self._from.connect, self.sender.takes, self._awake, self._now_s
        )
        self._beside = Beside()
        self._aligner = Aligner(
            source,
            destination,
            assignment.producer_id,
            self._learn,
            self._connected,
            self._beside,
            assignment.epoch,
        )
        self._filler = GapFiller(
            destination,
            assignment.producer_id,
            PRODUCER_EPOCH,
            assignment.epoch,
            self._to.later,
            self.sender.lost,
            self._beside,
            self._now_s,
        )
        self._trouble = ""
        self._cut_short = 0
        """Looks into logs that its end has cut short."""
        self._line = Line(assignment.epoch, assignment.driver)
        self._beacon = Beacon(assignment.task, self._line)
        self._successor = Successor(self._line)

    def run(self) -> TaskReport:
        started = self._now_s()
        cpu = time.process_time()
        self._warm()
        if started >= self.stop_s:
            begin_s = self.assignment.start_ms / 1000
            self._trouble = began_too_late(self.assignment.task, started - begin_s, self.stop_s - begin_s)
        while not self.finished():
            self._turn()
            self._beacon.tell(self.replicators)
        self._end()
        self._beacon.tell(self.replicators, last=True)
        cpu_s = time.process_time() - cpu
        return report(
            self.assignment,
            self.replicators,
            self._trouble,
            started,
            cpu_s,
            self.sender.waits_for,
            self._cut_short,
        )

    def _end(self) -> None:
        """Wait for what is in flight, and leave what is certain to who comes next: he does not wait for a broker that
        hangs."""
        for limit_s in (_SOON_S, _DRAIN_S - _SOON_S):
            end = time.monotonic() + limit_s
            try:
                self.sender.drain(limit_s)
            except RemoteFault as error:
                self._trouble = str(error)
            self._filler.drain(end - time.monotonic())
            self._successor.leave(self.replicators)
        self._filler.give_up(0.0)
        looks_until = self.stop_s + self.assignment.looks_s
        self._cut_short = self._aligner.finish(looks_until - self._now_s(), self.cancelled)

    def finished(self) -> bool:
        """Nothing more may be sent, or nothing is left to send."""
        if self._now_s() >= self.stop_s or self.cancelled():
            return True
        return all(replicator.ended or replicator.deletions.holds for replicator in self.replicators)

    def _warm(self) -> None:
        """All that can be done before the epoch begins: connect, authenticate, learn who leads."""
        try:
            sources, destinations = self._aligner.leaders([replicator.partition for replicator in self.replicators])
            self._from.begin(sources)
            self._to.begin(destinations)
        except RemoteFault as error:
            self._trouble = str(error)
        while (rest := self.assignment.start_ms / 1000 - self._now_s()) > 0 and not self.cancelled():
            time.sleep(min(rest, 0.05))

    def _turn(self) -> None:
        """Align whoever is lost, ask every source broker, and handle what has arrived."""
        now = self._now_s()
        self._aligner.take_in()
        if self._aligner.may_begin and (due := self._ranked(one for one in self._awake if one.due())):
            self._aligner.align(due)
        for replicator in list(self._awake):
            replicator.settle()
        self.receiver.ask(now)
        self._awake -= {replicator for replicator in self._awake if _rests(replicator)}
        heard = self._wait(self._advance())
        if heard and heard.issubset(self._filler.sockets):  # send at once what waits behind markers
            heard = self._wait(self._advance())
        self.sender.flush()
        for broker, produce_link in list(self.sender.links.items()):
            if produce_link.outstanding and (produce_link.connection.sock in heard or produce_link.buffered):
                self.sender.answers(broker)
        # What came on several links shares requests. Each link has a buffer of its own.
        links = [link for link in self.receiver.pending if link.connection.sock in heard]
        self.sender.send_all([item for link in links for item in self.receiver.take(link)])
        self.receiver.give_up()
        self.sender.give_up()

    def _ranked(self, some: Iterable[PartitionReplicator]) -> list[PartitionReplicator]:
        """By partition: those of a topic are neighbours."""
        return sorted(some, key=self._rank.__getitem__)

    # -- gaps and seeds ------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Fill gaps, and send what waited behind them; seed what begins late. True when something came further."""
        waiting = self._ranked(one for one in self._awake if one.outbox.items)
        self._successor.ask(self.replicator_of)
        moved = self._filler.fill(waiting, self.stop_s - _FILL_MARGIN_S)
        for _ in range(_IN_A_ROW):
            ready = [self._next(one) for one in waiting if one.sendable and self.sender.takes(one.destination_broker)]
            if not ready:
                break
            self.sender.send(ready)
            moved = True
        for replicator in list(self._awake):
            place, waits = replicator.place, bool(replicator.outbox.items)
            if place.seeding and replicator.working and not (place.in_flight or waits):
                for seed in seeds(replicator, self.assignment.producer_id, PRODUCER_EPOCH):
                    self.sender.send([(replicator, *seed)])
        return moved

    def _next(self, replicator: PartitionReplicator) -> Item:
        item = replicator.take()
        if isinstance(item, Hidden):
            item = first_hidden(replicator.outbox, item, self.assignment.producer_id, PRODUCER_EPOCH)
        return replicator, *item

    def _wait(self, moved: bool) -> set[socket.socket]:
        """Sockets with something to read, waiting briefly when there is none and nothing has `moved`."""
        waiting = [link.connection.sock for link in self.receiver.pending]
        waiting += [link.connection.sock for link in self.sender.links.values() if link.outstanding]
        waiting += self._filler.sockets
        if self._filler.connecting or self._aligner.at_work:
            waiting.append(self._beside.woken)
        if any(link.outstanding and link.buffered for link in self.sender.links.values()):
            return readable(waiting, 0.0)
        now = self._now_s()
        soon = any(r.state is State.LOST or r.gap is not None for r in self._awake)
        patience = min(0.05 if soon else 0.5, self.receiver.rate.wait_s(now) or 0.5)
        limit = 0.0 if moved else min(patience, max(0.0, self.stop_s - now))
        if not waiting:
            time.sleep(min(limit, 0.05))
            return set()
        heard = readable(waiting, limit, until_writable=self.sender.unsent)
        if self._beside.woken in heard:
            self._beside.heard()
        return heard

    # -- links ---------------------------------------------------------------------------------------------------

    def _connected(self, routed: list[PartitionReplicator]) -> list[PartitionReplicator]:
        """Those whose leaders have connected us, on both sides, and take something. The others wait, and hold up
        nobody."""
        sources = {replicator.source_broker for replicator in routed} - self.receiver.lanes.keys()
        destinations = {replicator.destination_broker for replicator in routed} - self.sender.links.keys()
        if not (self._aligner.at_work or any(replicator.working for replicator in self.replicators)):
            self._await_connections(routed, sources, destinations)
        from_why, to_why = self._from.missing(sources), self._to.missing(destinations)
        found = []
        for replicator in routed:
            broker = replicator.destination_broker
            if why := from_why.get(replicator.source_broker):
                replicator.lose(why, self.source.name if self._from.failed(replicator.source_broker) else None)
            elif why := to_why.get(broker):
                replicator.lose(why, self.destination.name if self._to.failed(broker) else None)
            elif why := self.sender.owed(broker):
                replicator.lose(why)
            else:
                found.append(replicator)
        return found

    def _await_connections(self, routed: list[PartitionReplicator], sources: set[int], destinations: set[int]) -> None:
        """Until something can be copied: it is waited for while nothing else is to be done."""
        nobody = (self._from.begin_some(sources), self._to.begin_some(destinations))
        needed = []
        for one, other in {(replicator.source_broker, replicator.destination_broker) for replicator in routed}:
            if not (one in nobody[0] or other in nobody[1]):
                needed.append({b for b in (self._from.begun(one), self._to.begun(other)) if b is not None})
        await_first(needed, _CONNECT_S)

    def _learn(self, source: ClusterView, destination: ClusterView) -> None:
        self._from.learn(source)
        self._to.learn(destination)

    def close(self) -> None:
        for links in (self.receiver, self.sender, self._filler, self._aligner, self._beside):
            links.close()
        self._from.close()
        self._to.close()
        self._line.close()


def _rests(one: PartitionReplicator) -> bool:
    """Whether nothing is to be done for it before its source gives something, or something else happens to it."""
    idle = one.state is State.READY and not (one.outbox.items or one.place.in_flight or one.place.seeding)
    return one.ended or (idle and not one.beside)
