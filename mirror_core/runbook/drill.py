"""A drill: a real failover of a mirror made for it.

Its topic and group belong to no other mirror or application. Everything it creates carries its name, so the next
drill, or `clean`, finds what a killed one left.
"""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import Final

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.local import LocalRunner
from mirror_core.dataplane.results import raise_if_failed
from mirror_core.decide.drills import (
    DrillSummary,
    GroupReadResult,
    is_drill_mirror,
    list_drill_expressions,
    list_drill_runs,
    summarize_drill,
    to_drill_group,
    to_drill_name,
    to_drill_topic,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.heartbeats import HeartbeatProducer, ensure_heartbeat_topic
from mirror_core.kafka.offsets import OffsetPoint, list_offsets
from mirror_core.kafka.topics import wait_for_leaders
from mirror_core.mirrors import verbs
from mirror_core.mirrors.creation import create_mirror
from mirror_core.model.clock import now_ms
from mirror_core.model.documents import JsonDocument
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.names import DRILL_PREFIX, Offset, Partition
from mirror_core.model.parity import ParityVerdict
from mirror_core.model.run import RunMode
from mirror_core.model.sighting import Heartbeat
from mirror_core.parity.scope import read_parity_scope
from mirror_core.runbook.drill_clean import PrintLine, clean_drill
from mirror_core.runbook.drill_group import DrillGroup, sync_drill_groups
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.services import Services
from mirror_core.state.link import MirrorLink, find_mirror_link, make_mirror_link, read_cluster_state
from mirror_core.state.records import State
from mirror_core.state.writer import StateWriter, make_control_id

COPIED_RECORDS: Final = 200
TAIL_RECORDS: Final = 50


class DrillOutcome(JsonDocument, frozen=True, kw_only=True):
    """A drill's result. Everything in it was verified: what could not be is an error instead."""

    drilled: DrillSummary
    written: int
    """Source offsets acknowledged before the failover."""
    lost: int
    """How many of those the promoted side lacks."""
    compared: int
    """Records equal on both sides after the promotion."""
    group: GroupReadResult
    """The drill's group: half read when its offsets were synced, most read in the end."""


def run_drill(
    config: Config, mirror: str, mode: RunMode, services: Services, *, started_by: str, print_line: PrintLine
) -> DrillOutcome:
    """Create, fail over, verify, remove.

    An unplanned drill's source is alive, so the loss is known exactly.
    """
    base_link, _ = find_mirror_link(config, mirror)
    if is_drill_mirror(base_link.mirror):
        advice = (
            f"it is what a drill has left: `mirrorbook drill clean {mirror.removeprefix(DRILL_PREFIX)}` takes it away"
        )
        raise Refused(f"drill of mirror {mirror}", [advice])
    clean_drill(config, mirror, services, started_by=started_by, print_line=print_line)
    try:
        link, topic = _create_drill_mirror(config, mirror, base_link), to_drill_topic(mirror)
        start_offsets = _list_high_watermarks(link.source, topic)
        _produce_records(link, topic, COPIED_RECORDS)
        _copy_until_caught_up(link)
        group = DrillGroup(link, to_drill_group(mirror), start_offsets).consume(COPIED_RECORDS // 2)
        sync_drill_groups(link)
        _produce_records(link, topic, TAIL_RECORDS)
        group = group.consume(COPIED_RECORDS // 2 + TAIL_RECORDS // 2)
        written = _list_high_watermarks(link.source, topic)
        failover = Failover(link, services, started_by=started_by, print_line=print_line)
        decision = failover.decide(mode)
        if decision.reasons:
            raise Refused(f"drill of mirror {mirror}", decision.reasons)
        begun = failover.begin(decision.plan.hash, mode, approved_by=started_by)
        run = failover.drive(begun.id)
        outcome = _verify_promotion(link, services, run.id, written, group.resume_on_destination(run.id))
        _record_outcome(link, outcome)
        return outcome
    finally:
        clean_drill(config, mirror, services, started_by=started_by, print_line=print_line)


def list_past_drills(state: State, mirror: str) -> list[DrillSummary]:
    return [summarize_drill(run, state.steps_of(run)) for run in list_drill_runs(state.runs.values(), mirror)]


def _create_drill_mirror(config: Config, mirror: str, base_link: MirrorLink) -> MirrorLink:
    with ClusterClient(base_link.source) as source:
        ensure_heartbeat_topic(source, to_drill_topic(mirror))
        wait_for_leaders(source, [to_drill_topic(mirror)])
    drill_mirror = create_mirror(
        config,
        to_drill_name(mirror),
        source=base_link.source.name,
        destination=base_link.destination.name,
        topics=list_drill_expressions(mirror),
        groups=(re.escape(to_drill_group(mirror)),),
        gaps=base_link.mirror.gaps,
    )
    link = make_mirror_link(config, drill_mirror)
    return make_mirror_link(config, verbs.start_mirror(link))


def _produce_records(link: MirrorLink, topic: str, count: int) -> None:
    partitions = _list_high_watermarks(link.source, topic)
    beats = [
        Heartbeat(partition=p.index, number=number, at_ms=now_ms(), mirror=link.mirror.name, driver="drill")
        for number in range(1, count + 1)
        for p in partitions
    ]
    acknowledged, trouble, _ = HeartbeatProducer(link.source, topic).write(beats)
    if acknowledged < len(beats):
        raise MirrorError(f"cluster {link.source.name}, {topic}: {len(beats) - acknowledged} not taken: {trouble}")


def _copy_until_caught_up(link: MirrorLink) -> None:
    options = ReplicationOptions(until_caught_up=True)
    raise_if_failed(
        Replication(link, LocalRunner, options, stop=threading.Event(), report_line=lambda line: None).run()
    )


def _list_high_watermarks(cluster: ClusterConfig, topic: str) -> dict[Partition, Offset]:
    with ClusterClient(cluster) as client:
        partitions = [Partition(topic, index) for index in client.metadata([topic]).topics[topic].partitions]
        return list_offsets(client, partitions, OffsetPoint.HIGH_WATERMARK)


def _verify_promotion(
    link: MirrorLink, services: Services, run_id: str, written: dict[Partition, Offset], group: GroupReadResult
) -> DrillOutcome:
    state = read_cluster_state(link.config, link.destination.name)
    run = state.runs[run_id]
    ranges = read_parity_scope(link, state).ranges
    comparison = services.quick_parity(link.source.name, link.destination.name, ranges, None)
    if comparison.verdict is not ParityVerdict.PASSED:
        finding_lines = [
            *comparison.reasons,
            *(f"{f.partition} at {f.offset}: {f.kind}: {f.detail}" for f in comparison.findings),
        ]
        raise MirrorError(
            f"drill {run_id}: {comparison.verdict}: what was promoted is not what was written: {finding_lines[:3]}"
        )
    promoted_ends = {parity_range.partition: parity_range.end for parity_range in ranges}
    lost = sum(max(0, end - promoted_ends.get(partition, 0)) for partition, end in written.items())
    if lost and run.plan.mode is RunMode.PLANNED:
        raise MirrorError(f"drill {run_id}: {lost} of the offsets that were written are missing, and it was planned")
    return DrillOutcome(
        drilled=summarize_drill(run, state.steps_of(run)),
        written=sum(written.values()),
        lost=lost,
        compared=comparison.records,
        group=group,
    )


def _record_outcome(link: MirrorLink, outcome: DrillOutcome) -> None:
    """An unmarked run has not succeeded, whoever was killed."""
    with StateWriter(link.destination, make_control_id(link.mirror.name)) as writer:
        run = writer.state.runs[outcome.drilled.run]
        writer.put(replace(run, note=f"{outcome.compared} records equal, {outcome.lost} offsets lost"))
