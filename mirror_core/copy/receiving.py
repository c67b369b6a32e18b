"""Fetches from the source: which partitions go into which request, and what a response enqueues."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from mirror_core.copy.errors import fetch_refused
from mirror_core.copy.lanes import Lanes
from mirror_core.copy.led import Led, many_calm
from mirror_core.copy.outbox import Ready
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.rewrite import Rewriter
from mirror_core.copy.words import Side, not_now
from mirror_core.decide.rate import LEAST_ANSWER, RateLimiter
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.empty_answers import Proof
from mirror_core.kafka.fetch_size import share
from mirror_core.kafka.fetching import FetchLink
from mirror_core.kafka.sockets import readable
from mirror_core.kafka.tiered import local_start
from mirror_core.model.copying import Assignment
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.logs import logger
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.wire import fetch

_log = logger(__name__)

_PARTITION_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 8 << 20
_SOCKET_BYTES: Final = 4 << 20
_MAX_WAIT_MS: Final = 500
"""Brokers of 3.6 and 3.7 wait this long for remote storage, and no longer; newer ones have a setting."""
_SHORT_WAIT_MS: Final = 20
_CALM_WAIT_MS: Final = 2_000
_CALM_BYTES: Final = 1 << 20
_CALM_PART: Final = 8
_QUESTIONS: Final = 4
_PATIENCE_S: Final = 10.0
"""For a response later than requested: a half-open connection shows no error."""
_BRIEF_S: Final = 0.2
_UNSEEN: Final = "there is something to copy, and the destination's leader has forgotten who wrote the end of its log"


class Receiver:
    def __init__(
        self,
        assignment: Assignment,
        source: ClusterClient,
        replicators: Mapping[Partition, PartitionReplicator],
        connect: Callable[[int], Connection],
        takes: Callable[[int], bool],
        awake: set[PartitionReplicator],
        now_s: Callable[[], float] = lambda: time.time(),
    ) -> None:
        self.lanes: dict[int, Lanes] = {}
        self.rate = RateLimiter(assignment.throttle)
        self._source = source
        self._side = Side.of(source)
        self._replicators = replicators
        self._rewriter = Rewriter(source.name, assignment.producer_id)
        self._connect = connect
        self._takes = takes
        self._most_bytes = min(_MOST_BYTES, assignment.max_bytes_in_flight // 4)
        self._budget = assignment.max_bytes_in_flight // 2
        self._stop_s, self._now_s = assignment.stop_ms / 1000, now_s
        self._awake = awake
        self._led: dict[int, Led] = {}
        self._led_by: dict[PartitionReplicator, int] = {}
        self._leading = set[int]()

    def ask(self, now: float) -> None:
        self._route()
        wanted = {broker: self._of_lanes(broker) for broker in self._led if self._free(broker)}
        self._leading = {b for b, led in self._led.items() if (b in self.lanes or wanted.get(b)) and not led.ended}
        for broker in self.lanes.keys() - self._leading:  # they send no next Fetch that would shrink it
            for link in self.lanes[broker].every:
                if not link.pending:
                    link.limit(0, 0)
        if self.rate.wait_s(now):
            return
        for broker in self._leading & wanted.keys():
            try:
                lanes = self._lanes(broker)
                for link in lanes.idle() if wanted[broker] else ():
                    self._ask(lanes, link, wanted[broker], now)
                if self._calm_is_free(broker, lanes):
                    self._ask_calm(broker, lanes, now)
            except RemoteFault as error:
                self.lost(broker, str(error))

    @property
    def pending(self) -> list[FetchLink]:
        return [link for lanes in self.lanes.values() for link in lanes.every if link.pending]

    def lost(self, broker: int, why: str) -> None:
        if (lanes := self.lanes.pop(broker, None)) is not None:
            lanes.close()
        for replicator in self._replicators.values():
            if replicator.source_broker == broker and replicator.working:
                replicator.source.disconnected()
                replicator.lose(why)

    def _lost_calm(self, broker: int, lanes: Lanes, why: str) -> None:
        _log.info("goes on without the calm link: %s", why)
        lanes.together()
        self._led[broker].whole()

    def give_up(self) -> None:
        for broker, lanes in list(self.lanes.items()):
            for link in lanes.every:
                if link.waits_s > _PATIENCE_S and not readable([link.connection.sock], 0.0):
                    why = f"{link.connection.where}: no answer to a Fetch for {link.waits_s:.0f} s"
                    if link is lanes.calm:
                        self._lost_calm(broker, lanes, why)
                        continue
                    self.lost(broker, why)
                    break

    def take(self, link: FetchLink) -> list[tuple[PartitionReplicator, list[Ready]]]:
        """Processes one response; returns what is to be sent at once. The next one waits in the socket
        meanwhile."""
        for broker, lanes in self.lanes.items():
            if link not in lanes.every:
                continue
            try:
                return self._take(broker, lanes, link) if link.arrived() else []
            except Unreachable as error:  # what was enqueued is dropped
                if link is lanes.calm:
                    self._lost_calm(broker, lanes, str(error))
                else:
                    self.lost(broker, str(error))
                break
            except RemoteFault as error:
                self.lost(broker, str(error))
                self._senseless(link, str(error))
                break
        return []

    def _senseless(self, link: FetchLink, why: str) -> None:
        for partition in link.asked_for:
            replicator = self._replicators[partition]
            if link.alone and replicator.source.alone and not replicator.ended:
                replicator.fail(why, replicator.place.acknowledged, FailureKind.OTHER)
            replicator.source.senseless()

    def _take(self, broker: int, lanes: Lanes, link: FetchLink) -> list[tuple[PartitionReplicator, list[Ready]]]:
        found: list[tuple[PartitionReplicator, list[Ready]]] = []
        nothing: list[tuple[PartitionReplicator, fetch.Fetched]] = []
        size, read, began = 0, 0, time.monotonic()
        for answer in link.take():
            read += len(answer.records)
            replicator = self._replicators[answer.partition]
            if not self._brings(replicator, answer, link):
                continue
            size += len(answer.records)
            self._awake.add(replicator)
            ready = self._rewriter.accept(replicator, answer)
            if ready:
                found.append((replicator, ready))
            if replicator.place.position != replicator.source.asked:
                replicator.source.came(began)
            elif not replicator.finished:
                nothing.append((replicator, answer))
        if link.alone or size <= link.room:  # otherwise others used up the response
            for replicator, answer in nothing:
                self._nothing(replicator, answer, honest=link.alone and not link.throttle_ms)
        now = self._now_s()
        self.rate.took(read, now)
        if link is not lanes.calm:
            lanes.heard(link.filled)
        if now < self._stop_s and not self.rate.wait_s(now):
            self._ask_again(broker, lanes, link, now)
        return found

    def _brings(self, replicator: PartitionReplicator, answer: fetch.Fetched, link: FetchLink) -> bool:
        if not replicator.awaits or replicator.source.asked_on is not link:
            return False  # aligned since, or fetched on another link
        if answer.error:
            fetch_refused(replicator, answer.error, self._side)
            return False
        position = replicator.place.position
        replicator.source.told(answer.last_stable)
        if not answer.records and answer.last_stable <= position:
            replicator.source.gave()  # nearly always: nothing new
            return False
        if replicator.end_unseen and answer.last_stable > position:
            replicator.lose(not_now(self._source.name, answer.partition, position, _UNSEEN))
            return False
        return True

    def _ask_again(self, broker: int, lanes: Lanes, link: FetchLink, now: float) -> None:
        if link is lanes.calm:
            self._ask_calm(broker, lanes, now)
        elif wanted := self._of_lanes(broker):
            self._ask(lanes, link, wanted, now)

    def _ask(self, lanes: Lanes, link: FetchLink, replicators: list[PartitionReplicator], now: float) -> None:
        free = lanes.free(link, replicators)
        if not free:
            return
        alone = next((one for one in free if one.source.suspect or one.source.alone), None)
        mine = free[: lanes.share(len(replicators))] if alone is None else [alone]
        if not lanes.parted and link.asked > _QUESTIONS and many_calm(mine, time.monotonic()):
            lanes.apart()
        # A partition that waits for the destination soon needs a Fetch, and cannot join one in flight.
        soon = any(
            (one.outbox.items or one.place.first_waits) and self._takes(one.destination_broker) for one in self._awake
        )
        patience_ms = _SHORT_WAIT_MS if soon else _MAX_WAIT_MS
        if any(one.source.remote(one.place.position) for one in mine):
            patience_ms = _MAX_WAIT_MS
        elif alone is not None:
            patience_ms = 0
        self._limit(lanes)
        self._send(link, mine, patience_ms, now)

    def _ask_calm(self, broker: int, lanes: Lanes, now: float) -> None:
        """Fetches idle partitions. Free active links fetch the active ones first, which would otherwise have
        to wait with the idle ones."""
        led, at = self._led[broker], time.monotonic()
        lively, calm = led.parted(at)
        for link in lanes.idle():
            if wanted := [one for one in lively if self._wanted(one)]:
                self._ask(lanes, link, wanted, now)
        mine = led.for_calm(lively, calm, set(lanes.links[0].partitions), at, self._wanted)
        if mine and lanes.calm is not None:
            most = max(LEAST_ANSWER, min(_CALM_BYTES, self._budget // (_CALM_PART * max(1, len(self._leading)))))
            most = self.rate.answer_bytes(most, len(lanes.every))
            lanes.calm.limit(most, most)
            try:
                self._send(lanes.calm, mine, _SHORT_WAIT_MS if led.hurries else _CALM_WAIT_MS, now)
            except Unreachable as error:
                self._lost_calm(broker, lanes, str(error))

    def _calm_is_free(self, broker: int, lanes: Lanes) -> bool:
        free = lanes.calm is not None and not lanes.calm.pending
        return free and self._led[broker].calm_due(time.monotonic())

    def _send(self, link: FetchLink, mine: Collection[PartitionReplicator], patience_ms: int, now: float) -> None:
        wanted = []
        for replicator in mine:
            position = replicator.place.position
            replicator.source.ask(position, link, now)
            wanted.append(fetch.Wanted(replicator.partition, position, replicator.source_epoch))
        wait_ms = min(patience_ms, max(1, int((self._stop_s - now) * 1000)))
        link.ask(wanted, max_wait_ms=wait_ms, isolation=fetch.Isolation.READ_COMMITTED)

    def _wanted(self, one: PartitionReplicator) -> bool:
        """A destination broker that accepts nothing leaves half of the queue budget to others, whatever it
        leads."""
        return one.fetchable and not (one.outbox.waiting.half_full and not self._takes(one.destination_broker))

    def _route(self) -> None:
        for one in self._awake:
            broker, was = one.source_broker, self._led_by.get(one)
            if broker < 0 or (broker == was and not (one.working and one.source.unasked)):
                continue
            if was is not None and was != broker:
                self._led[was].drop(one)
            self._led.setdefault(broker, Led()).add(one)
            self._led_by[one] = broker

    def _free(self, broker: int) -> bool:
        lanes = self.lanes.get(broker)
        return lanes is None or bool(lanes.idle()) or self._calm_is_free(broker, lanes)

    def _of_lanes(self, broker: int) -> list[PartitionReplicator]:
        return [one for one in self._led[broker].for_lanes() if self._wanted(one)]

    def _nothing(self, replicator: PartitionReplicator, answer: fetch.Fetched, *, honest: bool) -> None:
        """Applies an empty response: a gap up to the last stable offset, if that is certain."""
        partition, position, end = replicator.partition, replicator.place.position, answer.last_stable
        found = replicator.source.gave_nothing(position, answer, honest=honest)
        if found is Proof.TORN:
            words = "an answer without a whole batch"
            replicator.end(not_now(self._source.name, partition, position, words), position, FailureKind.CORRUPT)
        elif found is Proof.ASK_LEADER:
            start = local_start(self._source, partition, replicator.source_epoch)
            if start is None:
                words = "the leader does not tell which part of the log it holds itself"
                replicator.lose(not_now(self._source.name, partition, position, words))
            elif replicator.source.leader_holds(position, start, end) is Proof.GAP:
                replicator.skip_to(end)
                replicator.source.gave()

    def _lanes(self, broker: int) -> Lanes:
        if broker not in self.lanes:
            self.lanes[broker] = Lanes(self._connect(broker), self._link)
        return self.lanes[broker]

    def _link(self, connection: Connection, far: bool) -> FetchLink:
        # Limits are set before each Fetch.
        if not far:  # the system sizes a far link's buffers
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        return FetchLink(connection, max_bytes=0, partition_max_bytes=0, at_once=far, brief_s=_BRIEF_S)

    def _limit(self, lanes: Lanes) -> None:
        """Sets how much a broker's free links may request, within a budget for all responses. Socket buffers
        are not part of it."""
        quiet = sum(self.lanes[broker].quiet for broker in self.lanes.keys() & self._leading)
        room = share(self._budget, len(self._leading) - quiet, quiet, gives=not lanes.quiet)
        mine = lanes.idle()
        # A broker shrinks its share at its next Fetch only: until then its links hold their limits.
        held = sum(link.most for one in self.lanes.values() for link in one.every) - sum(link.most for link in mine)
        most = min(self._most_bytes, room // lanes.most, (self._budget - held) // len(mine))
        links = max(lanes.most, len(lanes.every))
        most = self.rate.answer_bytes(max(most, LEAST_ANSWER if lanes.far else _PARTITION_BYTES), links)
        for link in mine:
            link.limit(most, most if lanes.far else min(most, _PARTITION_BYTES))

    def close(self) -> None:
        for lanes in self.lanes.values():
            lanes.close()
        self.lanes = {}
