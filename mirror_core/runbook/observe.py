"""Snapshots both clusters in parallel, within seconds, even if one is dead or hangs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from mirror_core.decide.access import strangers
from mirror_core.decide.clocks import now_of_owner
from mirror_core.decide.drills import forecast
from mirror_core.decide.filters import topic_filter
from mirror_core.decide.promotion import STAGED, as_synced, promotion, unbacked
from mirror_core.decide.reappeared import warned
from mirror_core.decide.strategies import came
from mirror_core.decide.view import NOTHING_HIDDEN, DestinationView, Hidden, SourceView, Topic, Unseen, View, healthy
from mirror_core.kafka.acls import Acls, AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.existing import hidden_among, undescribed
from mirror_core.kafka.hearing import Hearing, reading
from mirror_core.kafka.heartbeats import newest
from mirror_core.kafka.leaderless import offsets_by_two
from mirror_core.kafka.offsets import Point, led_offsets
from mirror_core.kafka.quorum import clock_ahead_ms
from mirror_core.kafka.transactions import open_transactions
from mirror_core.kafka.users import scram_users
from mirror_core.mirrors.first_acl import fence_shuts_out
from mirror_core.mirrors.reappeared import reappeared_on
from mirror_core.model.acl import Acl
from mirror_core.model.clock import now_ms
from mirror_core.model.defects import type_and_line
from mirror_core.model.errors import MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Partition, heartbeat_topic
from mirror_core.model.run import Mode
from mirror_core.rights.acls import Names, may_change
from mirror_core.rights.needed import others_who_change
from mirror_core.runbook.beside import look_beside
from mirror_core.runbook.hook_calls import command_problems, hook_problems
from mirror_core.runbook.observed_groups import Groups, groups_on, observed_groups
from mirror_core.state.link import Link
from mirror_core.state.records import TOPIC as STATE
from mirror_core.state.records import State
from mirror_core.state.watchers import watched
from mirror_core.sync.access import promotion_remarks
from mirror_core.sync.final_settings import few_in_sync
from mirror_core.sync.principals import own_principals

_LOOK_S: Final = 0.5
_HELD_UP_S: Final = 1.0
"""If we wake this late, our process was suspended: replies may be unread."""

_log = logger(__name__)

T = TypeVar("T")


def observe(
    link: Link, state: State, mode: Mode, *, offsets: bool = True, fences: bool = False, conductor: str | None = None
) -> View:
    """The snapshot for a failover plan. A failed or late cluster becomes `Unseen`; never raises.

    `offsets`: with committed group offsets, for figures only. `fences`: check whether a planned fence would shut
    readers out. `conductor`: for the forecast. Destination groups need every broker, so they are read apart: one that
    hangs must not hide the rest.
    """
    mirror = link.mirror
    statuses = state.partitions.get(mirror.name, {})
    partitions = tuple(healthy(statuses))
    positions_read = threading.Event()
    destination = Ask(lambda: _look_at_destination(link, state, positions_read, offsets=offsets))
    fences = (offsets or fences) and mode is Mode.PLANNED
    source = Ask(
        lambda: _look_at_source(link, state, partitions, positions_read, destination, offsets=offsets, fences=fences)
    )
    clocks = {
        side.name: Ask(partial(clock_ahead_ms, side, timeout_s=LIMITS.planned_answer_s))
        for side in ((link.source, link.destination) if offsets else (link.destination,))
    }
    users = [Ask(partial(_users, side)) for side in (link.source, link.destination)] if offsets else []
    beside = list[tuple[Mirror, frozenset[str]]]()
    thirds = [Ask(partial(look_beside, link, {p.topic for p in statuses}, beside))] if offsets else []
    deadline = time.monotonic() + LIMITS.planned_side_s
    seen_there, seen_here = destination.while_heard(deadline), source.while_heard(deadline)
    if mode is Mode.UNPLANNED and isinstance(seen_here, SourceView) and seen_here.cluster_id != mirror.source_id:
        # Its address may lead to another cluster by now, even the destination.
        seen_here = Unseen(f"its address leads to cluster {seen_here.cluster_id}, not to {mirror.source_id}")
    for third in thirds:
        third.answer(deadline)
    told = {name: one.answer(deadline) for name, one in clocks.items()}
    ahead_ms = {name: found for name, found in told.items() if isinstance(found, int)}
    lease = state.leases.get(mirror.name)
    active = state.active_run(mirror.name)
    rights = rights_of(link, state, mode, seen_here, seen_there)
    here = seen_here.topics if isinstance(seen_here, SourceView) else {}
    matching = (Partition(topic, index) for topic, view in here.items() for index in range(view.partitions))
    return View(
        mirror=mirror,
        mode=mode,
        statuses=statuses,
        source=seen_here,
        destination=seen_there,
        lease=lease,
        active_run=active.id if active else None,
        debt=state.debts.get(mirror.name),
        unwatched="; ".join(watched(state, mirror.name).alarms()),
        grants=rights.bound,
        given=rights.given,
        unbacked=rights.unbacked,
        forecast=forecast(state.runs.values(), state.steps_of, mirror.name, mode, conductor),
        now_ms=now_of_owner(now_ms(), ahead_ms.get(mirror.destination), lease, state.appended_ms.get(mirror.name)),
        clocks_ahead_ms=ahead_ms,
        hooks={hook.name: hook.words for hook in link.config.hooks(mirror.name)},
        hook_problems=tuple(hook_problems(link.config, mirror.name)),
        command_problems=tuple(command_problems(link)),
        here=link.source.ruling,
        there=link.destination.ruling,
        sighting=state.sightings.get(mirror.name),
        proof=state.proofs.get(mirror.name),
        groups=state.groups.get(mirror.name),
        groups_left=state.groups_left.get(mirror.name),
        beside=tuple((third, len(topics)) for third, topics in sorted(beside, key=lambda one: one[0].name)),
        owner=link.config.owner(mirror.name),
        together=link.config.belonging(mirror.name),
        unmirrored=tuple(sorted(p for p in matching if p not in statuses)),
        strangers=_strangers(link, state, *(one.answer(deadline) for one in users)) if users else (),
    )


@dataclass(slots=True)
class Ask(Generic[T]):
    """A request in its own thread, abandoned if it hangs: a plan must not wait for a dead cluster.

    Our own defects are reported, and hide the cluster like silence.
    """

    question: Callable[[], T]
    _found: list[T | Unseen] = field(default_factory=list)
    _thread: threading.Thread = field(init=False)
    _began: float = field(default_factory=time.monotonic)
    _hearing: Hearing = field(default_factory=Hearing)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._hearing.here():
                self._found.append(self.question())
        except MirrorError as error:
            self._found.append(Unseen(str(error)))
        except Exception as error:  # noqa: BLE001 - reported by type only
            what = f"a defect of Mirrorbook: {type_and_line(error)}"
            _log.error("a look at a cluster failed by %s", what)
            self._found.append(Unseen(what))

    def answer(self, deadline: float) -> T | Unseen:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        waited_s = max(0.0, deadline - self._began)
        return self._found[0] if self._found else Unseen(f"no complete answer within {waited_s:.0f} s")

    def while_heard(self, deadline: float) -> T | Unseen:
        """As `await_result`, but the limit is for silence: each response extends it."""
        patience_s, last = deadline - self._began, self._began + LIMITS.answering_side_s
        looked, wait_s, awake = time.monotonic(), 0.0, -math.inf
        soonest = looked + _LOOK_S  # our process may have been suspended while waiting for the other side
        while self._thread.is_alive():
            now = time.monotonic()
            if (late_s := now - looked - wait_s) > _HELD_UP_S:
                awake, last = now, last + late_s
            until = max(soonest, min(max(deadline, max(self._hearing.last(), awake) + patience_s), last))
            if now >= until:
                silent = deadline < until < last
                words = f"no further answer for {patience_s:.0f} s"
                return Unseen(words if silent else f"no complete answer within {until - self._began:.0f} s")
            looked, wait_s = now, min(until - now, _LOOK_S)
            self._thread.join(wait_s)
        return self.answer(deadline)

    def while_waiting(self, event: threading.Event, patience_s: float) -> None:
        """Wait for `event`, at most `patience_s` after the last response."""
        looked = awake = time.monotonic()
        wait_s = 0.0
        while not event.wait(wait_s):
            now = time.monotonic()
            if now - looked - wait_s > _HELD_UP_S:
                awake = now
            left_s = max(awake, self._hearing.last()) + patience_s - now
            if left_s <= 0:
                return
            looked, wait_s = now, min(left_s, _LOOK_S)


def _users(side: ClusterConfig) -> frozenset[str] | None:
    with ClusterClient(side, timeout_s=LIMITS.planned_answer_s) as client:
        return scram_users(client)


class _Rights(NamedTuple):
    bound: tuple[str, ...]
    given: tuple[Acl, ...] | None
    unbacked: tuple[Acl, ...]


def rights_of(
    link: Link, state: State, mode: Mode, source: SourceView | Unseen, destination: DestinationView | Unseen
) -> _Rights:
    mirror, own = link.mirror, own_principals(link)
    ledger = tuple(e for e in state.ledger_of(mirror.name) if e.cluster == mirror.destination)
    held = source.grants if isinstance(source, SourceView) and source.authorizer else None
    bound = [e.acl for e in ledger if e.purpose in STAGED]
    if mode is Mode.PLANNED and isinstance(source, SourceView):
        bound = list(source.grants)
    if mode is Mode.PLANNED and held is not None:
        ledger = as_synced(ledger, mirror, held)
    topics = {p.topic for p in state.partitions.get(mirror.name, {})}
    given = None
    if isinstance(destination, DestinationView) and destination.authorizer:
        given = promotion(ledger, topics, destination.names, own).grants
    return _Rights(
        bound=tuple(sorted(map(str, bound))),
        given=given,
        unbacked=() if held is None else unbacked(ledger, topics, held),
    )


def _strangers(
    link: Link, state: State, here: frozenset[str] | Unseen | None, there: frozenset[str] | Unseen | None
) -> tuple[str, ...]:
    entries = [e for e in state.ledger_of(link.mirror.name) if e.cluster == link.mirror.destination]
    if isinstance(here, Unseen) or isinstance(there, Unseen):
        return ()
    return strangers(entries, here, there)


def _look_at_source(
    link: Link,
    state: State,
    partitions: tuple[Partition, ...],
    positions_read: threading.Event,
    destination: Ask[DestinationView],
    *,
    offsets: bool,
    fences: bool,
) -> SourceView:
    mirror = link.mirror
    with ClusterClient(link.source, timeout_s=LIMITS.planned_answer_s) as client:
        view = client.metadata()
        chosen = topic_filter(mirror)
        hidden = _hidden(client, {p.topic for p in partitions} - view.topics.keys())
        topics = _topics({t: v for t, v in view.topics.items() if t in chosen and not v.internal})
        present = [p for p in partitions if p.topic in topics and p.index < topics[p.topic].partitions]
        acls = describe_acls(client)
        transactions = open_transactions(client, set(topics))
        groups = observed_groups(client, mirror, topics, offsets=offsets)
        own, names = own_principals(link), Names(topics)
        held = acls.entries if isinstance(acls, Acls) else frozenset()
        grants = tuple(a for a in sorted(held) if may_change(a) and a.principal not in own and names.any_covered(a))
        # Ends after positions: else a copying mirror would seem ahead of its source.
        with reading():
            destination.while_waiting(positions_read, LIMITS.planned_side_s / 2)
        ends = offsets_by_two(client, present, Point.STABLE_END, within_s=LIMITS.new_leader_s)
        return SourceView(
            cluster_id=view.cluster_id,
            topics=topics,
            stable_ends=ends.offsets,
            authorizer=not isinstance(acls, AuthorizerOff),
            transactions=tuple(t.id for t in transactions),
            groups=groups.ids,
            other_groups=groups.others,
            committed=groups.committed,
            groups_unread=groups.unread,
            grants=grants,
            leaderless=tuple(sorted(ends.leaderless)),
            state_writers=_state_writers(link, acls),
            hidden=hidden,
            reappeared=warned(reappeared_on(link, state, mirror.source, held), mirror, mirror.source),
            shuts_out=fence_shuts_out(client, acls, topics, mirror.name) if fences else "",
        )


def _look_at_destination(
    link: Link, state: State, positions_read: threading.Event, *, offsets: bool
) -> DestinationView:
    topic = heartbeat_topic(link.mirror.name)
    heartbeats = Ask(lambda: newest(link.destination, topic, timeout_s=LIMITS.planned_heartbeats_s))
    recorded_topics = {p.topic for p in state.partitions.get(link.mirror.name, {})}
    groups = Ask(lambda: groups_on(link.destination, link.mirror, recorded_topics)) if offsets else None
    deadline = time.monotonic() + LIMITS.planned_side_s - 0.5
    try:
        with ClusterClient(link.destination, timeout_s=LIMITS.planned_answer_s) as client:
            view = client.metadata()
            made = {p.topic for p in came(state.partitions.get(link.mirror.name, {}))}  # never copied: not missing
            hidden = _hidden(client, made - view.topics.keys())
            recorded = sorted(state.partitions.get(link.mirror.name, {}))
            topics = _topics({t: v for t, v in view.topics.items() if t in recorded_topics})
            present = [p for p in recorded if p.topic in topics and p.index < topics[p.topic].partitions]
            positions = led_offsets(client, present, Point.LOG_END, within_s=LIMITS.new_leader_s)
            positions_read.set()
            held = describe_acls(client)
            rights = promotion_remarks(link, state, held, view.topics)
            beats = heartbeats.answer(deadline)
            asked = groups.while_heard(deadline) if groups else Groups()
            known = Groups() if isinstance(asked, Unseen) else asked
            return DestinationView(
                cluster_id=view.cluster_id,
                topics=topics,
                positions=positions.offsets,
                authorizer=not isinstance(held, AuthorizerOff),
                rights=rights,
                names=frozenset(view.topics),
                committed=known.committed,
                joined=known.joined,
                groups_unseen=isinstance(asked, Unseen),
                groups_unread=known.unread,
                heartbeats=() if isinstance(beats, Unseen) else beats,
                leaderless=tuple(sorted(positions.leaderless)),
                few_in_sync=few_in_sync(client, link.mirror, state, view.topics) if offsets else (),
                state_writers=_state_writers(link, held),
                hidden=hidden,
            )
    finally:
        positions_read.set()


def _state_writers(link: Link, held: Acls | AuthorizerOff) -> tuple[str, ...]:
    return () if isinstance(held, AuthorizerOff) else others_who_change(held.entries, STATE, own_principals(link))


def _hidden(client: ClusterClient, unlisted: Collection[str]) -> Hidden:
    denied = hidden_among(client, unlisted)
    return Hidden(denied, str(undescribed(client, denied))) if denied else NOTHING_HIDDEN


def _topics(found: Mapping[str, TopicView]) -> dict[str, Topic]:
    return {name: Topic(id=view.id, partitions=len(view.partitions)) for name, view in found.items()}
