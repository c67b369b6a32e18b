"""Finds where each lost partition resumes: requests both logs' ends, then `copy.resume_decision`
decides."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from mirror_core.copy.asking import Asking, Expected, Logs, Views
from mirror_core.copy.beside import Beside
from mirror_core.copy.looks import AT_ONCE, Case, Looks, Told, unreadable
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.routing import route
from mirror_core.copy.states import State
from mirror_core.copy.verdict import Resumes, take_in
from mirror_core.decide.assign import in_turn
from mirror_core.kafka.at_once import Late
from mirror_core.kafka.client import ClusterClient, ClusterView, by_leader
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition

_ROUNDS: Final = 4
_LONG_S: Final = 0.5
_AGAIN_S: Final = 0.1
_PAUSE_S: Final = 0.05
_MOST_PAUSE_S: Final = 2.0
_BRIEF_S: Final = 0.5
_KEPT_S: Final = 10.0
"""How long a decision, which may have taken minutes, waits for connections and for the driver."""
_TURN: Final = AT_ONCE // 2


class _Kept(NamedTuple):
    found: Resumes
    until: float


class _Round:
    def __init__(
        self, wanted: Mapping[Partition, PartitionReplicator], asking: Asking, begun: Future[Views], hurry: bool
    ) -> None:
        self.wanted = wanted
        self.asking = asking
        self.hurry = hurry
        self.question: Future[Views] | Future[Logs] = begun
        self.began = time.monotonic()

    @property
    def lost(self) -> list[PartitionReplicator]:
        return [one for one in self.wanted.values() if one.state is State.LOST]

    def goes_on(self, wanted: Iterable[PartitionReplicator], question: Future[Logs]) -> None:
        self.over()
        self.wanted, self.question = {one.partition: one for one in wanted}, question
        self.begins()

    def begins(self) -> None:
        for one in self.wanted.values():
            one.sought(beside=True)

    def over(self) -> None:
        for one in self.wanted.values():
            one.sought(beside=False)


class Aligner:
    """Finds the resume offset of partitions that lost it. Control requests only; nothing of theirs is in
    flight.

    All requests run in background threads. A round that takes long, because a broker hangs, does not hold up the next
    one.
    """

    def __init__(
        self,
        source: ClusterClient,
        destination: ClusterClient,
        producer_id: int,
        learn: Callable[[ClusterView, ClusterView], None],
        connected: Callable[[list[PartitionReplicator]], list[PartitionReplicator]],
        beside: Beside,
        epoch: int = 0,
    ) -> None:
        """`learn` receives the brokers' addresses. `connected` returns those whose leaders are connected on
        both sides and records why the others wait. `epoch` decides which comparisons start first."""
        self.source = source
        self.destination = destination
        self.producer_id = producer_id
        self._learn = learn
        self._connected = connected
        self._beside = beside
        self._rounds: list[_Round] = []
        self._idle: list[Asking] = []
        self._failed = 0
        self._begin_at = 0.0
        self._looks = Looks(source, destination, producer_id, beside)
        self._kept: dict[PartitionReplicator, _Kept] = {}
        self._connect_at = 0.0
        self._shift = epoch * _TURN

    @property
    def may_begin(self) -> bool:
        now = time.monotonic()
        if now < self._begin_at or len(self._rounds) >= _ROUNDS:
            return False
        return all(now - one.began >= _LONG_S for one in self._rounds)

    def align(self, replicators: Iterable[PartitionReplicator], *, hurry: bool = True) -> None:
        """Starts a round. Each partition ends READY, DONE or FAILED, or stays LOST while its leader is away or
        its logs are compared.

        `hurry`: partitions of brokers that respond late move to a slow round of their own.
        """
        self._begin_at = time.monotonic() + _AGAIN_S
        wanted = {one.partition: one for one in replicators}
        expected = [
            Expected(one.partition, one.assigned.source_topic_id, one.assigned.destination_topic_id)
            for one in wanted.values()
        ]
        asking = self._idle.pop() if self._idle else self._asking()
        asking.hurries(hurry)
        begun = _Round(wanted, asking, self._beside.begin(partial(asking.views, expected)), hurry)
        begun.begins()
        self._rounds.append(begun)

    def leaders(self, partitions: Collection[Partition]) -> tuple[set[int], set[int]]:
        """Brokers that lead any of these partitions, on both sides. Blocks. Raises RemoteFault when a cluster
        does not respond."""
        asking = self._asking()
        self._idle.append(asking)
        views = asking.views([Expected(partition, None, None) for partition in partitions])
        self._learn(views.source.cluster, views.destination.cluster)
        return _leading(partitions, views.source.cluster), _leading(partitions, views.destination.cluster)

    def _asking(self) -> Asking:
        return Asking(self.source.alike(), self.destination.alike(), self.producer_id)

    def _go_on(self, now: float) -> None:
        for one in [one for one in self._rounds if one.question.done()]:
            self._rounds.remove(one)
            try:
                found = one.question.result()
            except RemoteFault as error:
                self._unanswered(one, str(error), now)
                continue
            self._failed = 0
            if isinstance(found, Views):
                self._ask_logs(one, found)
            else:
                self._begin_looks(one, found)

    def _unanswered(self, one: _Round, why: str, now: float) -> None:
        # Jitter: a recovering cluster must not meet all tasks at once.
        pause_s = min(_PAUSE_S * 2.0**self._failed, _MOST_PAUSE_S) * random.uniform(0.5, 1.5)
        self._failed, self._begin_at = min(self._failed + 1, 10), now + pause_s
        self._end(one)
        for replicator in one.lost:
            replicator.lose(why)

    def _ask_logs(self, one: _Round, views: Views) -> None:
        self._learn(views.source.cluster, views.destination.cluster)
        lost = one.lost
        routed = {r: asked for r in lost if (asked := route(r, views, one.asking)) is not None}
        if wanted := self._connected(list(routed)):
            mine = [routed[replicator] for replicator in wanted]
            one.goes_on(wanted, self._beside.begin(partial(one.asking.logs, mine)))
            self._rounds.append(one)
        else:
            self._end(one)
        if one.hurry:
            undecided = {r.partition.topic for r in lost if any(view.undecided(r.partition.topic) for view in views)}
            self._apart([r for r in lost if r not in routed and r.partition.topic in undecided])

    def _begin_looks(self, one: _Round, logs: Logs) -> None:
        self._end(one)
        late = []
        for replicator in one.lost:
            if (unsure := logs.unsure.get(replicator.partition)) is None:
                continue
            if isinstance(unsure.why, Late):
                replicator.lose(str(unsure.why))
                late.append(replicator)
            elif isinstance(unsure.why, RemoteFault):
                unreadable(replicator, unsure.why, unsure.misled)
            else:
                replicator.lose(unsure.why, unsure.misled)
        self._apart(late)
        # Connections may be lost meanwhile.
        known = {r.partition: r for r in self._connected([r for r in one.lost if r.partition in logs.seen])}
        # Largest lag first; the rest waits for the next round.
        behind = sorted(known, key=lambda p: logs.seen[p].log_end - logs.seen[p].source_end)
        cases = [Case(known[p], logs.seen[p], logs.agreed.get(p), logs.asked) for p in in_turn(behind, self._shift)]
        self._take(self._looks.begin(cases))

    def _apart(self, late: list[PartitionReplicator]) -> None:
        if (late := [one for one in late if one.state is State.LOST]) and len(self._rounds) < _ROUNDS - 1:
            self.align(late, hurry=False)

    def _end(self, one: _Round) -> None:
        one.over()
        if len(self._idle) < _ROUNDS:
            self._idle.append(one.asking)
        else:
            one.asking.close()

    @property
    def at_work(self) -> bool:
        return self._looks.at_work or bool(self._rounds)

    def take_in(self) -> None:
        now = time.monotonic()
        self._go_on(now)
        for one, found in self._told():
            if isinstance(found, Resumes):
                self._kept[one], self._connect_at = _Kept(found, now + _KEPT_S), now
            else:
                self._take([(one, found)])
        if self._kept and now >= self._connect_at:
            self._connect_at = now + _BRIEF_S
            self._resume_connected(now)

    def _resume_connected(self, now: float) -> None:
        """Resumes all partitions at once whose leaders are connected; the others are tried again.

        Connections are waited for here while nothing is copied.
        """
        kept = self._released()
        for one in self._connected([one for one in kept if not one.ended]):
            self._take([(one, kept[one].found)])
        self._kept = {one: verdict for one, verdict in kept.items() if one.state is State.LOST and now < verdict.until}
        for one in self._kept:
            one.wait(one.lost_why, beside=True)

    def finish(self, limit_s: float, cancelled: Callable[[], bool]) -> int:
        """Waits for running comparisons, at most `limit_s`; their decisions count although nothing is sent.
        Returns how many the limit interrupted."""
        end = time.monotonic() + limit_s
        self._take((one, verdict.found) for one, verdict in self._released().items() if not one.ended)
        self._take(self._told())
        while self._looks.at_work and not cancelled() and (rest_s := end - time.monotonic()) > 0:
            self._looks.wait(min(rest_s, _BRIEF_S))
            self._take(self._told())
        cut_short = 0 if cancelled() else self._looks.under_way
        self.close()
        return cut_short

    def _released(self) -> dict[PartitionReplicator, _Kept]:
        kept, self._kept = self._kept, {}
        for one in kept:
            one.wait(one.lost_why)
        return kept

    def _told(self) -> Iterator[Told]:
        return ((one, found) for one, found in self._looks.told() if not one.ended)

    def _take(self, told: Iterable[Told]) -> None:
        for replicator, found in told:
            if isinstance(found, RemoteFault):
                unreadable(replicator, found)
            else:
                take_in(replicator, found, self.source.name)

    def close(self) -> None:
        self._looks.close()
        self._released()
        for one in self._rounds:
            one.over()
            one.asking.close_after(one.question)
        for asking in self._idle:
            asking.close()
        self._rounds, self._idle = [], []


def _leading(partitions: Iterable[Partition], view: ClusterView) -> set[int]:
    return {broker for broker in by_leader(partitions, view.topics) if broker >= 0}
