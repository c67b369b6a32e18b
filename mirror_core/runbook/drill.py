"""A drill: a real failover of a mirror made for it.

Its topic and group belong to no other mirror or application. Everything it creates carries its name, so the next
drill, or `clean`, finds what a killed one left.
"""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import Final

from mirror_core.dataplane.driver import Options, Replication
from mirror_core.dataplane.local import LocalRunner
from mirror_core.dataplane.results import raise_if_failed
from mirror_core.decide.drills import (
    Drilled,
    ReadOn,
    drill_name,
    drill_topic,
    drilled,
    expressions,
    group_of,
    is_drills,
    runs_of,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.heartbeats import Beats, ensure_topic
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.topics import await_leaders
from mirror_core.mirrors import verbs
from mirror_core.mirrors.creation import create
from mirror_core.model.clock import now_ms
from mirror_core.model.documents import Document
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.names import DRILL, Offset, Partition
from mirror_core.model.parity import Verdict
from mirror_core.model.run import Mode
from mirror_core.model.sighting import Heartbeat
from mirror_core.parity.scope import scope
from mirror_core.runbook.drill_clean import Say, clean
from mirror_core.runbook.drill_group import DrillGroup, sync_groups
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.services import Services
from mirror_core.state.link import Link, find, link_of, state_on
from mirror_core.state.records import State
from mirror_core.state.writer import StateWriter, control_id

COPIED: Final = 200
TAIL: Final = 50


class Outcome(Document, frozen=True, kw_only=True):
    """A drill's result. Everything in it was verified: what could not be is an error instead."""

    drilled: Drilled
    written: int
    """Source offsets acknowledged before the failover."""
    lost: int
    """How many of those the promoted side lacks."""
    compared: int
    """Records equal on both sides after the promotion."""
    group: ReadOn
    """The drill's group: half read when its offsets were synced, most read in the end."""


def drill(config: Config, mirror: str, mode: Mode, services: Services, *, started_by: str, say: Say) -> Outcome:
    """Create, fail over, verify, remove.

    An unplanned drill's source is alive, so the loss is known exactly.
    """
    real, _ = find(config, mirror)
    if is_drills(real.mirror):
        what = f"it is what a drill has left: `mirrorbook drill clean {mirror.removeprefix(DRILL)}` takes it away"
        raise Refused(f"drill of mirror {mirror}", [what])
    clean(config, mirror, services, started_by=started_by, say=say)
    try:
        link, topic = _made(config, mirror, real), drill_topic(mirror)
        begun_at = _ends(link.source, topic)
        _write(link, topic, COPIED)
        _copy(link)
        group = DrillGroup(link, group_of(mirror), begun_at).works(COPIED // 2)
        sync_groups(link)
        _write(link, topic, TAIL)
        group = group.works(COPIED // 2 + TAIL // 2)
        written = _ends(link.source, topic)
        failover = Failover(link, services, started_by=started_by, say=say)
        decision = failover.decide(mode)
        if decision.reasons:
            raise Refused(f"drill of mirror {mirror}", decision.reasons)
        begun = failover.begin(decision.plan.hash, mode, approved_by=started_by)
        run = failover.drive(begun.id)
        found = _looked_at(link, services, run.id, written, group.reads_on(run.id))
        _write_down(link, found)
        return found
    finally:
        clean(config, mirror, services, started_by=started_by, say=say)


def past(state: State, mirror: str) -> list[Drilled]:
    return [drilled(run, state.steps_of(run)) for run in runs_of(state.runs.values(), mirror)]


def _made(config: Config, mirror: str, real: Link) -> Link:
    with ClusterClient(real.source) as source:
        ensure_topic(source, drill_topic(mirror))
        await_leaders(source, [drill_topic(mirror)])
    made = create(
        config,
        drill_name(mirror),
        source=real.source.name,
        destination=real.destination.name,
        topics=expressions(mirror),
        groups=(re.escape(group_of(mirror)),),
        gaps=real.mirror.gaps,
    )
    link = link_of(config, made)
    return link_of(config, verbs.start(link))


def _write(link: Link, topic: str, count: int) -> None:
    partitions = _ends(link.source, topic)
    beats = [
        Heartbeat(partition=p.index, number=number, at_ms=now_ms(), mirror=link.mirror.name, driver="drill")
        for number in range(1, count + 1)
        for p in partitions
    ]
    acknowledged, trouble, _ = Beats(link.source, topic).write(beats)
    if acknowledged < len(beats):
        raise MirrorError(f"cluster {link.source.name}, {topic}: {len(beats) - acknowledged} not taken: {trouble}")


def _copy(link: Link) -> None:
    options = Options(until_caught_up=True)
    raise_if_failed(Replication(link, LocalRunner, options, stop=threading.Event(), say=lambda line: None).run())


def _ends(side: ClusterConfig, topic: str) -> dict[Partition, Offset]:
    with ClusterClient(side) as client:
        partitions = [Partition(topic, index) for index in client.metadata([topic]).topics[topic].partitions]
        return list_offsets(client, partitions, Point.HIGH_WATERMARK)


def _looked_at(link: Link, services: Services, run_id: str, written: dict[Partition, Offset], group: ReadOn) -> Outcome:
    state = state_on(link.config, link.destination.name)
    run = state.runs[run_id]
    ranges = scope(link, state).ranges
    found = services.quick_parity(link.source.name, link.destination.name, ranges, None)
    if found.verdict is not Verdict.PASSED:
        shown = [*found.reasons, *(f"{f.partition} at {f.offset}: {f.kind}: {f.detail}" for f in found.findings)]
        raise MirrorError(f"drill {run_id}: {found.verdict}: what was promoted is not what was written: {shown[:3]}")
    kept = {one.partition: one.end for one in ranges}
    lost = sum(max(0, end - kept.get(partition, 0)) for partition, end in written.items())
    if lost and run.plan.mode is Mode.PLANNED:
        raise MirrorError(f"drill {run_id}: {lost} of the offsets that were written are missing, and it was planned")
    return Outcome(
        drilled=drilled(run, state.steps_of(run)),
        written=sum(written.values()),
        lost=lost,
        compared=found.records,
        group=group,
    )


def _write_down(link: Link, found: Outcome) -> None:
    """An unmarked run has not succeeded, whoever was killed."""
    with StateWriter(link.destination, control_id(link.mirror.name)) as writer:
        run = writer.state.runs[found.drilled.run]
        writer.put(replace(run, note=f"{found.compared} records equal, {found.lost} offsets lost"))
