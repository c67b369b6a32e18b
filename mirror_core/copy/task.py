"""The copying task of one epoch: a plain function of its assignment, independent of Spark."""

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
_SOON_S: Final = 1.0
_DRAIN_S: Final = 10.0
"""For responses after the task's end. The assignment says how long comparisons may go on."""
_IN_A_ROW: Final = 64
"""Of one partition before responses are processed: a wide gap must not delay the others."""
_FILL_MARGIN_S: Final = 0.1
"""No markers in the last moments of an epoch: two tasks' clocks may differ, and only sequences of data
tolerate that."""


def never() -> bool:
    return False


def run(assignment: Assignment, cancelled: Callable[[], bool] = never) -> TaskReport:
    """Copies from `start_ms` to `stop_ms`, or until all partitions have reached their `until`.

    Raises BadRequest for what no retry can fix. Broker errors and malformed responses are retried until `stop_ms`, then
    reported.
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
        # A late task may follow a killed attempt of it.
        late = self._now_s() * 1000 > assignment.start_ms
        given = (replace(one, answered=one.answered and not late) for one in assignment.partitions)
        ordered = sorted(given, key=lambda assigned: assigned.partition)
        waiting = Waiting(assignment.max_bytes_in_flight)
        told = assignment.driver is not None
        self._awake = set[PartitionReplicator]()
        """Partitions that a turn may have work for: after a change of state or new data, until they are idle.
        Scanning thousands of idle ones would take most of a turn."""
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
        """Waits for responses, and releases claims to the next task twice: it need not wait for a hung broker."""
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
        if self._now_s() >= self.stop_s or self.cancelled():
            return True
        return all(replicator.ended or replicator.deletions.holds for replicator in self.replicators)

    def _warm(self) -> None:
        """Before the epoch starts: connects, authenticates, finds leaders."""
        try:
            sources, destinations = self._aligner.leaders([replicator.partition for replicator in self.replicators])
            self._from.begin(sources)
            self._to.begin(destinations)
        except RemoteFault as error:
            self._trouble = str(error)
        while (rest := self.assignment.start_ms / 1000 - self._now_s()) > 0 and not self.cancelled():
            time.sleep(min(rest, 0.05))

    def _turn(self) -> None:
        now = self._now_s()
        self._aligner.take_in()
        if self._aligner.may_begin and (due := self._ranked(one for one in self._awake if one.due())):
            self._aligner.align(due)
        for replicator in list(self._awake):
            replicator.settle()
        self.receiver.ask(now)
        self._awake -= {replicator for replicator in self._awake if _rests(replicator)}
        heard = self._wait(self._advance())
        if heard and heard.issubset(self._filler.sockets):  # send what is queued after markers
            heard = self._wait(self._advance())
        self.sender.flush()
        for broker, produce_link in list(self.sender.links.items()):
            if produce_link.outstanding and (produce_link.connection.sock in heard or produce_link.buffered):
                self.sender.answers(broker)
        # Responses of several links share requests.
        links = [link for link in self.receiver.pending if link.connection.sock in heard]
        self.sender.send_all([item for link in links for item in self.receiver.take(link)])
        self.receiver.give_up()
        self.sender.give_up()

    def _ranked(self, some: Iterable[PartitionReplicator]) -> list[PartitionReplicator]:
        return sorted(some, key=self._rank.__getitem__)

    # -- gaps and seeds ------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Fills gaps, sends what was queued after them, and seeds. True when something advanced."""
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
    idle = one.state is State.READY and not (one.outbox.items or one.place.in_flight or one.place.seeding)
    return one.ended or (idle and not one.beside)
