"""Both sides of a mirror, looked at together and answered within seconds, also when a side is dead or hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from mirror_core.decide.acls import covers, may_change
from mirror_core.decide.filters import group_filter, topic_filter
from mirror_core.decide.steps import standing_still
from mirror_core.decide.view import DestinationView, SourceView, Topic, Unseen, View, healthy
from mirror_core.kafka.acls import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.groups import fetch_offsets, list_groups
from mirror_core.kafka.heartbeats import newest
from mirror_core.kafka.offsets import Point, led_offsets
from mirror_core.kafka.transactions import open_transactions
from mirror_core.model.acl import AclPurpose
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Offset, Partition, heartbeat_topic
from mirror_core.model.run import Mode, RunKind, RunState
from mirror_core.runbook.hook_calls import hook_problems
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.sync.access import own_principals, promotion_remarks

CALL_S: Final = 2.5
"""One request, or one connection."""
SIDE_S: Final = 4.0
"""Everything that is asked of one side."""
GROUPS_S: Final = 1.0
"""Of that, for the offsets of its groups."""
OFFSETS_S: Final = 1.0
"""For log ends that a leader does not know yet: a new one learns them within moments."""
HEARTBEATS_S: Final = 2.0

T = TypeVar("T")


def observe(link: Link, state: State, mode: Mode) -> View:
    """The view that a failover plan is made from. A side that fails or is late becomes `Unseen`; nothing is raised.

    The destination's groups are asked apart: they need an answer of every broker, and one that hangs must not keep
    everything else from being seen until the controllers have given it up.
    """
    mirror = link.mirror
    statuses = state.partitions.get(mirror.name, {})
    partitions = tuple(healthy(statuses))
    positions_read = threading.Event()
    source = Ask(lambda: _look_at_source(link, partitions, positions_read))
    destination = Ask(lambda: _look_at_destination(link, state, positions_read))
    deadline = time.monotonic() + SIDE_S
    seen_there, seen_here = destination.answer(deadline), source.answer(deadline)
    if mode is Mode.UNPLANNED and isinstance(seen_here, SourceView) and seen_here.cluster_id != mirror.source_id:
        # Its name may lead elsewhere by now, to the destination even, which has lost nothing.
        seen_here = Unseen(f"its address leads to cluster {seen_here.cluster_id}, not to {mirror.source_id}")
    active = state.active_run(mirror.name)
    staged = tuple(sorted(str(e.acl) for e in state.ledger_of(mirror.name) if e.purpose is AclPurpose.STAGED))
    return View(
        mirror=mirror,
        mode=mode,
        statuses=statuses,
        source=seen_here,
        destination=seen_there,
        lease=state.leases.get(mirror.name),
        active_run=active.id if active else None,
        debt=state.debts.get(mirror.name),
        grants=seen_here.grants if isinstance(seen_here, SourceView) and mode is Mode.PLANNED else staged,
        earlier_seconds=earlier_seconds(state, mirror),
        now_ms=now_ms(),
        hooks={hook.name: hook.words for hook in link.config.hooks(mirror.name)},
        hook_problems=tuple(hook_problems(link.config, mirror.name)),
        sighting=state.sightings.get(mirror.name),
        groups=state.groups.get(mirror.name),
    )


def earlier_seconds(state: State, mirror: Mirror) -> float | None:
    """Seconds without writes in the newest finished failover of this mirror, steps only; None without one."""
    runs = [
        r
        for r in state.runs.values()
        if r.plan.mirror == mirror.name and r.plan.kind is RunKind.FAILOVER and r.state is RunState.DONE
    ]
    if not runs:
        return None
    newest = max(runs, key=lambda r: r.started_ms)
    timed = standing_still(RunKind.FAILOVER)
    records = [s for s in state.steps.values() if s.run == newest.id and s.step in timed and s.ended_ms]
    return sum((s.ended_ms or 0) - s.started_ms for s in records) / 1000


@dataclass(slots=True)
class Ask(Generic[T]):
    """A question in a thread of its own, left behind when it hangs: a plan must not wait for a dead cluster."""

    question: Callable[[], T]
    _found: list[T | Unseen] = field(default_factory=list)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self.question())
        except MirrorError as error:
            self._found.append(Unseen(str(error)))

    def answer(self, deadline: float) -> T | Unseen:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self._found[0] if self._found else Unseen(f"no complete answer within {SIDE_S:.0f} s")


def _look_at_source(link: Link, partitions: tuple[Partition, ...], positions_read: threading.Event) -> SourceView:
    mirror = link.mirror
    with ClusterClient(link.source, timeout_s=CALL_S) as client:
        view = client.metadata()
        topics = _topics({t: v for t, v in view.topics.items() if t in topic_filter(mirror) and not v.internal})
        present = [p for p in partitions if p.topic in topics and p.index < topics[p.topic].partitions]
        acls = describe_acls(client)
        transactions = open_transactions(client, set(topics))
        groups, committed, _ = _groups(client, mirror, topics)
        own = own_principals(link)
        grants = (
            ()
            if isinstance(acls, AuthorizerOff)
            else tuple(
                str(a)
                for a in sorted(acls.entries)
                if may_change(a) and a.principal not in own and any(covers(a, t) for t in topics)
            )
        )
        # Ends after positions: the other way round a mirror that copies meanwhile would seem to be ahead of its source.
        positions_read.wait(SIDE_S / 2)
        ends = led_offsets(client, present, Point.STABLE_END, within_s=OFFSETS_S)
        return SourceView(
            cluster_id=view.cluster_id,
            topics=topics,
            stable_ends=ends.offsets,
            authorizer=not isinstance(acls, AuthorizerOff),
            transactions=tuple(t.id for t in transactions),
            groups=groups,
            committed=committed,
            grants=grants,
            leaderless=tuple(sorted(ends.leaderless)),
        )


def _look_at_destination(link: Link, state: State, positions_read: threading.Event) -> DestinationView:
    heartbeats = Ask(lambda: newest(link.destination, heartbeat_topic(link.mirror.name), timeout_s=HEARTBEATS_S))
    recorded_topics = {p.topic for p in state.partitions.get(link.mirror.name, {})}
    groups = Ask(lambda: _groups_there(link, recorded_topics))
    deadline = time.monotonic() + SIDE_S - 0.5
    try:
        with ClusterClient(link.destination, timeout_s=CALL_S) as client:
            view = client.metadata()
            recorded = sorted(state.partitions.get(link.mirror.name, {}))
            topics = _topics({t: v for t, v in view.topics.items() if t in recorded_topics})
            present = [p for p in recorded if p.topic in topics and p.index < topics[p.topic].partitions]
            positions = led_offsets(client, present, Point.LOG_END, within_s=OFFSETS_S)
            positions_read.set()
            held = describe_acls(client)
            rights = promotion_remarks(link, state, held, view.topics)
            beats = heartbeats.answer(deadline)
            asked = groups.answer(deadline)
            committed, joined = ({}, ()) if isinstance(asked, Unseen) else asked
            return DestinationView(
                cluster_id=view.cluster_id,
                topics=topics,
                positions=positions.offsets,
                authorizer=not isinstance(held, AuthorizerOff),
                rights=rights,
                committed=committed,
                joined=joined,
                groups_unseen=isinstance(asked, Unseen),
                heartbeats=() if isinstance(beats, Unseen) else beats,
                leaderless=tuple(sorted(positions.leaderless)),
            )
    finally:
        positions_read.set()


def _topics(found: Mapping[str, TopicView]) -> dict[str, Topic]:
    return {name: Topic(id=view.id, partitions=len(view.partitions)) for name, view in found.items()}


def _groups_there(link: Link, topics: Collection[str]) -> tuple[dict[str, dict[Partition, Offset]], tuple[str, ...]]:
    with ClusterClient(link.destination, timeout_s=CALL_S) as client:
        _, committed, joined = _groups(client, link.mirror, topics)
        return committed, joined


def _groups(
    client: ClusterClient, mirror: Mirror, topics: Collection[str]
) -> tuple[tuple[str, ...], dict[str, dict[Partition, Offset]], tuple[str, ...]]:
    """Groups in scope; what they committed on these topics, as far as there is time to ask; of those, the ones that
    have members."""
    chosen = group_filter(mirror)
    groups = [g for _, g in sorted(list_groups(client).items()) if g.id in chosen and g.kind in ("classic", "consumer")]
    committed: dict[str, dict[Partition, Offset]] = {}
    deadline = time.monotonic() + GROUPS_S
    for group in groups:
        if time.monotonic() > deadline:
            break
        offsets = fetch_offsets(client, group.id, group.coordinator).committed
        committed[group.id] = {p: c.offset for p, c in offsets.items() if p.topic in topics}
    found = {g: offsets for g, offsets in committed.items() if offsets}
    return tuple(g.id for g in groups), found, tuple(g.id for g in groups if g.id in found and not g.idle)
