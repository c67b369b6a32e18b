"""The pump: what one task does for one epoch. A plain function of its assignment; it knows nothing of Spark.

Whole batches go from Fetch to Produce in the buffer they came in. The destination's log end is the position; every
answer's base offset is checked; what was in flight when something broke is looked up, never guessed or sent blindly.
A gap is a barrier of its partition: all batches before it are acknowledged before it is filled, and it is known to be
full before the next batch is sent. Data and markers are protected in different ways, and neither protects the other.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from mirror_core.copy.align import Aligner
from mirror_core.copy.beacon import Beacon
from mirror_core.copy.errors import fetch_refused, nothing_up_to, produce_refused
from mirror_core.copy.gap_hidden import first_hidden
from mirror_core.copy.gap_markers import Filler
from mirror_core.copy.handover import Heir
from mirror_core.copy.partition import Gap, Hidden, Lane, LaneState, Sent, by_broker, denied
from mirror_core.copy.report import report
from mirror_core.copy.rewrite import PRODUCER_EPOCH, Intake, look_again
from mirror_core.copy.seed import seeds
from mirror_core.decide.rate import RateLimiter
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetching import FetchLink
from mirror_core.kafka.producing import ProduceLink, Row
from mirror_core.kafka.topics import delete_records
from mirror_core.model.copying import Assignment, TaskReport
from mirror_core.model.errors import MissingPermission, Unreachable
from mirror_core.model.mirror import FailureKind, Gaps
from mirror_core.model.names import Offset
from mirror_core.wire import fetch
from mirror_core.wire.batch import SEQUENCE_MASK

_DEPTH: Final = 16
"""Produce requests in flight per destination broker."""
_REQUEST_BYTES: Final = 4 << 20
_PARTITION_BYTES: Final = 1 << 20
_MAX_WAIT_MS: Final = 500
_SHORT_WAIT_MS: Final = 20
_ANSWER_TIMEOUT_S: Final = 40.0
"""Longer than the broker's own limit for a Produce, so that its answer comes before we give the connection up."""
_CONTROL_TIMEOUT_S: Final = 10.0
_RETRY_WAIT_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_MARK: Final = struct.Struct(">qi")
_ALIGN_AGAIN_S: Final = 0.1
_IN_A_ROW: Final = 64
"""Batches of a lane's line before answers are looked at: one that holds a wide gap must not keep the others waiting."""
_FILL_MARGIN_S: Final = 0.1
"""Markers are not sent in the last moments of an epoch: two tasks' clocks may differ, and only the sequences of data
don't mind."""


def never() -> bool:
    """Not cancelled."""
    return False


def run(assignment: Assignment, cancelled: Callable[[], bool] = never) -> TaskReport:
    """Copy the assignment's partitions from `start_ms` to `stop_ms`, or until all have reached their `until`.

    Raises BadRequest and MissingPermission for what no retry mends; trouble with brokers is retried until `stop_ms` and
    then reported.
    """
    config = load_config(Path(assignment.config_path))
    source = ClusterClient(config.cluster(assignment.source), Principal.DATA, timeout_s=_CONTROL_TIMEOUT_S)
    destination = ClusterClient(config.cluster(assignment.destination), Principal.DATA, timeout_s=_CONTROL_TIMEOUT_S)
    with source, destination, closing(Pump(assignment, source, destination, cancelled)) as pump:
        return pump.run()


class Pump:
    """Lanes, links to brokers, and the loop between them."""

    def __init__(
        self, assignment: Assignment, source: ClusterClient, destination: ClusterClient, cancelled: Callable[[], bool]
    ) -> None:
        self.assignment = assignment
        self.source = source
        self.destination = destination
        self.cancelled = cancelled
        hides = assignment.gaps is Gaps.HIDDEN
        self.lanes = [Lane(a, hides=hides) for a in sorted(assignment.partitions, key=lambda a: a.partition)]
        self.lane_of = {lane.partition: lane for lane in self.lanes}
        self.aligner = Aligner(source, destination, assignment.producer_id)
        self.intake = Intake(source.name, assignment.producer_id)
        self.filler = Filler(
            destination,
            assignment.producer_id,
            PRODUCER_EPOCH,
            assignment.epoch,
            lambda broker: self._connect(destination, broker),
        )
        self.sources: dict[int, FetchLink] = {}
        self.destinations: dict[int, ProduceLink[Sent]] = {}
        self.stop_s = assignment.stop_ms / 1000
        self.align_due = 0.0
        self.trouble = ""
        self.rate = RateLimiter(assignment.throttle)
        self._beacon = Beacon(assignment)
        self._heir = Heir(assignment)

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> TaskReport:
        started = time.time()
        cpu = time.process_time()
        tries = 0
        self._warm()
        while not self.finished():
            try:
                self._turn()
                tries = 0 if any(lane.in_flight for lane in self.lanes) else tries
            except Unreachable as error:
                self.trouble = str(error)
                self._forget_links()
                # Not all tasks at the same moment: a broker that comes back would meet all of them at once.
                wait = _RETRY_WAIT_S[min(tries, len(_RETRY_WAIT_S) - 1)] * random.uniform(0.5, 1.5)
                tries += 1
                time.sleep(max(0.0, min(wait, self.stop_s - time.time())))
            self._beacon.tell(self.lanes)
        self._drain()
        self._heir.leave(self.lanes)
        self._beacon.tell(self.lanes, last=True)
        return report(self.assignment, self.lanes, self.trouble, started, time.process_time() - cpu)

    def finished(self) -> bool:
        """Nothing more may be sent, or nothing is left to send."""
        if time.time() >= self.stop_s or self.cancelled():
            return True
        return all(lane.state in (LaneState.DONE, LaneState.FAILED) for lane in self.lanes)

    def _warm(self) -> None:
        """All that can be done before the epoch begins: connect, authenticate, learn who leads."""
        try:
            topics = {lane.partition.topic for lane in self.lanes}
            for client in (self.source, self.destination):
                client.metadata(topics)
        except Unreachable as error:
            self.trouble = str(error)
        while (rest := self.assignment.start_ms / 1000 - time.time()) > 0 and not self.cancelled():
            time.sleep(min(rest, 0.05))

    def _turn(self) -> None:
        """Align whoever is lost, ask every source broker, and handle what has arrived."""
        now = time.time()
        lost = [lane for lane in self.lanes if lane.state is LaneState.LOST and not lane.in_flight]
        if lost and now >= self.align_due:
            self.align_due = now + _ALIGN_AGAIN_S
            if due := [lane for lane in lost if time.monotonic() >= lane.look_at]:
                self.aligner.align(due)
        for lane in self.lanes:
            lane.settle_end()
        if not self.rate.wait_s(now):
            for broker, lanes in by_broker(self.lanes).items():
                link = self._source_link(broker)
                if not link.pending:
                    self._ask(link, lanes, now)
        moved = self._advance()
        readable = self._wait(moved)
        for produce_link in list(self.destinations.values()):
            if produce_link.outstanding and (produce_link.connection.sock in readable or produce_link.buffered):
                self._answers(produce_link)
        for fetch_link in list(self.sources.values()):
            if fetch_link.pending and fetch_link.connection.sock in readable:
                self._forward(fetch_link)

    def _ask(self, link: FetchLink, lanes: list[Lane], now: float) -> None:
        """Ask for all of a broker's lanes; for one alone, where an empty answer has to be believed."""
        alone = next((lane for lane in lanes if lane.suspect), None)
        if alone is not None:
            lanes = [alone]
        # Another lane first each time: the answer's size may be used up before all have had their turn.
        first = link.asked % len(lanes)
        wanted = []
        for lane in lanes[first:] + lanes[:first]:
            lane.asked = lane.position
            wanted.append(fetch.Wanted(lane.partition, lane.position, lane.source_epoch))
        # Who has something in line soon wants more, and cannot be added to a question that has been asked.
        patience_ms = _MAX_WAIT_MS if not any(lane.queue for lane in self.lanes) else _SHORT_WAIT_MS
        wait_ms = 0 if alone is not None else max(1, min(patience_ms, int((self.stop_s - now) * 1000)))
        link.ask(wanted, max_wait_ms=wait_ms, isolation=fetch.Isolation.READ_COMMITTED)

    # -- gaps and seeds ------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Fill gaps, and send what waited behind them; seed what begins late. True when something came further."""
        waiting = [lane for lane in self.lanes if lane.queue]
        self._heir.ask(self.lane_of)
        moved = bool(waiting) and self.filler.fill(waiting, self.stop_s - _FILL_MARGIN_S)
        for _ in range(_IN_A_ROW):
            ready = [self._next(lane) for lane in waiting if lane.sendable]
            if not ready:
                break
            self._send(ready)
            moved = True
        for lane in self.lanes:
            if lane.state is LaneState.READY and lane.acknowledged < lane.seed_end and not lane.in_flight:
                for item in seeds(lane, self.assignment.producer_id, PRODUCER_EPOCH):
                    self._send([item])
        return moved

    def _next(self, lane: Lane) -> tuple[Sent, memoryview]:
        """Take the first thing out of a lane's line, which is not a gap for markers."""
        item = lane.queue.popleft()
        assert not isinstance(item, Gap)
        if isinstance(item, Hidden):
            return first_hidden(lane, item, self.assignment.producer_id, PRODUCER_EPOCH)
        lane.queued_bytes -= item[0].size
        return item

    def _seeded(self, lane: Lane) -> None:
        """What was seeded stands for nothing: nobody is to read it for longer than it takes to delete it."""
        try:
            delete_records(self.destination, {lane.partition: Offset(lane.acknowledged)})
        except MissingPermission:
            words = denied(self.destination, lane.partition, "DELETE")
            lane.fail(words, lane.acknowledged, FailureKind.DENIED)

    def _wait(self, moved: bool) -> set[socket.socket]:
        """Sockets with something to read, waiting briefly when there is none and nothing has `moved`."""
        waiting = [link.connection.sock for link in self.sources.values() if link.pending]
        waiting += [link.connection.sock for link in self.destinations.values() if link.outstanding]
        if any(link.outstanding and link.buffered for link in self.destinations.values()):
            return set(select.select(waiting, (), (), 0)[0])
        now = time.time()
        soon = any(lane.state is LaneState.LOST or lane.gap is not None for lane in self.lanes)
        patience = min(0.05 if soon else 0.5, self.rate.wait_s(now) or 0.5)
        limit = 0.0 if moved else min(patience, max(0.0, self.stop_s - now))
        if not waiting:
            time.sleep(min(limit, 0.05))
            return set()
        return set(select.select(waiting, (), (), limit)[0])

    # -- source to destination -----------------------------------------------------------------------------------

    def _forward(self, link: FetchLink) -> None:
        """Take one Fetch answer and send all that may cross, one batch a partition and request."""
        queues: list[list[tuple[Sent, memoryview]]] = []
        nothing: list[tuple[Lane, fetch.Fetched]] = []
        size = read = 0
        for fetched in link.take():
            read += len(fetched.records)
            lane = self.lane_of[fetched.partition]
            if not lane.fetchable or lane.asked != lane.position:
                continue  # found its place anew since it was asked for
            if fetched.error:
                fetch_refused(lane, fetched.error, self.source)
                continue
            lane.source_end = lane.readable_end = fetched.last_stable
            size += len(fetched.records)
            queue = self.intake.accept(lane, fetched)
            if queue:
                queues.append(queue)
            if lane.position != lane.asked:
                lane.suspect, lane.empty = False, 0
            elif lane.ending is None:
                nothing.append((lane, fetched))
        for lane, fetched in nothing:
            room = link.alone or size <= link.room  # others have left enough: no wonder, if there was something
            if room and look_again(lane, fetched, self.source.name, honest=link.alone and not link.throttle_ms):
                nothing_up_to(lane, fetched.last_stable, self.source)
        # The next answer travels while this one is sent: its bytes wait in the socket until the buffer is free again.
        now = time.time()
        self.rate.took(read, now)
        ready = [lane for lane in self.lanes if lane.fetchable and self.sources.get(lane.source_broker) is link]
        if ready and now < self.stop_s and not self.rate.wait_s(now):
            self._ask(link, ready, now)
        for turn in range(max(map(len, queues), default=0)):
            self._send([queue[turn] for queue in queues if turn < len(queue)])

    def _send(self, items: list[tuple[Sent, memoryview]]) -> None:
        """One batch each of several partitions, grouped by the broker that leads them."""
        groups: dict[int, list[Row[Sent]]] = {}
        for sent, batch in items:
            lane = sent.lane
            if lane.state is not LaneState.READY:
                continue  # lost or failed since: what follows a refused batch would be refused too, or be shifted
            groups.setdefault(lane.destination_broker, []).append(
                Row(lane.partition.topic, lane.partition.index, batch, sent)
            )
        for broker, rows in groups.items():
            start = 0
            while start < len(rows):
                size, end = 0, start
                while end < len(rows) and (end == start or size + rows[end].tag.size <= _REQUEST_BYTES):
                    size += rows[end].tag.size
                    end += 1
                self._send_rows(broker, rows[start:end])
                start = end

    def _send_rows(self, broker: int, rows: list[Row[Sent]]) -> None:
        link = self._destination_link(broker)
        while len(link.outstanding) >= _DEPTH:
            self._answers(link)
        rows = [row for row in rows if row.tag.lane.state is LaneState.READY]
        # Our own clock decides when this task stops; the sequences decide what may be written.
        if not rows or time.time() >= self.stop_s:
            for row in rows:
                row.tag.lane.state = LaneState.LOST
            return
        now = time.monotonic()
        for row in rows:
            row.tag.lane.in_flight += 1
            row.tag.lane.known_at = now
        link.send(rows)

    # -- answers -------------------------------------------------------------------------------------------------

    def _answers(self, link: ProduceLink[Sent]) -> None:
        for sent, produced in link.answers():
            lane = sent.lane
            lane.in_flight -= 1
            if produced.error == 0 and produced.base_offset == sent.base == lane.acknowledged:
                self._acknowledge(sent)
                continue
            if lane.state not in (LaneState.FAILED, LaneState.LOST):
                produce_refused(sent, produced, self.destination)

    def _acknowledge(self, sent: Sent) -> None:
        lane = sent.lane
        lane.losses = 0
        lane.acknowledged = sent.base + sent.records
        lane.acknowledged_sequence = (lane.acknowledged_sequence + sent.records) & SEQUENCE_MASK
        if not sent.payload:
            lane.gaps += sent.records
            if lane.acknowledged > lane.seed_end:
                lane.hiding.popleft()
            elif not lane.in_flight:
                self._seeded(lane)
            lane.finish_if_done()
            return
        lane.batches += 1
        lane.sent_bytes += sent.size
        if lane.digest is not None:
            lane.digest.update(_MARK.pack(sent.base, sent.records) + sent.payload)
        lane.finish_if_done()

    def _drain(self) -> None:
        """Wait for what is in flight; what stays unanswered is found by whoever copies next."""
        try:
            for link in self.destinations.values():
                while link.outstanding:
                    self._answers(link)
        except Unreachable as error:
            self.trouble = str(error)

    # -- links ---------------------------------------------------------------------------------------------------

    def _source_link(self, broker: int) -> FetchLink:
        if broker not in self.sources:
            connection = self._connect(self.source, broker)
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            self.sources[broker] = FetchLink(
                connection,
                max_bytes=self.rate.answer_bytes(min(8 << 20, self.assignment.max_bytes_in_flight // 4)),
                partition_max_bytes=self.rate.answer_bytes(_PARTITION_BYTES),
            )
        return self.sources[broker]

    def _destination_link(self, broker: int) -> ProduceLink[Sent]:
        if broker not in self.destinations:
            self.destinations[broker] = ProduceLink(self._connect(self.destination, broker))
        return self.destinations[broker]

    def _connect(self, client: ClusterClient, broker: int) -> Connection:
        address = client.address(broker)
        return Connection(client.config, Principal.DATA, *address, timeout_s=_ANSWER_TIMEOUT_S)

    def _forget_links(self) -> None:
        """After a broken connection: the outcome of what was in flight is unknown, so every lane looks again."""
        self._hang_up()
        for lane in self.lanes:
            lane.in_flight = 0
            lane.suspect = False
            if lane.state in (LaneState.READY, LaneState.LOST):
                lane.state, lane.lost_why = LaneState.LOST, self.trouble

    def _hang_up(self) -> None:
        links = [link.connection for link in self.sources.values()]
        for connection in links + [link.connection for link in self.destinations.values()]:
            connection.close()
        self.sources, self.destinations = {}, {}
        self.filler.close()

    def close(self) -> None:
        self._hang_up()
        self._heir.close()
        self._beacon.close()
