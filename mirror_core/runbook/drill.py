"""A drill: a real failover of a mirror made for it.

Everything it creates carries its name, so the next drill, or `clean`, finds what a killed one left.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.decide.drills import (
    DrillSummary,
    GroupReadResult,
    check_drill_mirror,
    compare_group_reads,
    is_drill_mirror,
    list_drill_acls,
    list_drill_expressions,
    list_drill_runs,
    list_forgettable_runs,
    summarize_drill,
    to_drill_group,
    to_drill_name,
    to_drill_topic,
)
from mirror_core.decide.set_schedule import measure_set_standstill_s
from mirror_core.kafka import drill_consumer
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.consumer_groups import delete_group, list_groups
from mirror_core.kafka.heartbeat_topic import HeartbeatProducer, ensure_heartbeat_topic
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.kafka.topics import delete_topics, wait_for_leaders
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, MissingPermission, Refused, RemoteFault
from mirror_core.model.json_documents import JsonDocument
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import DRILL_PREFIX, Offset, Partition
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import Heartbeat
from mirror_core.model.sync_state import SyncCategory
from mirror_core.model.text import format_count
from mirror_core.model.timing import now_ms
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_services import Services
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link, make_mirror_link, read_cluster_state
from mirror_core.state.point_of_no_return import is_past_no_return
from mirror_core.state.state_records import State, StateRecord, Tombstone
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.acl_ledger import delete_unshared_entries, forget_pending_fence
from mirror_core.sync.fence_acls import lift_fence
from mirror_core.sync.mirror_sync import sync_mirror


@dataclass(frozen=True, slots=True)
class DrillGroup:
    link: MirrorLink
    name: str
    committed: Mapping[Partition, Offset]
    skip_reason: str = ""

    def consume(self, count: int) -> DrillGroup:
        if self.skip_reason:
            return self
        target_offsets = {p: Offset(offset + count) for p, offset in self.committed.items()}
        try:
            drill_consumer.consume_and_commit(self.link.source, self.name, self.committed, target_offsets)
        except MissingPermission as error:
            return replace(self, skip_reason=f"not tried: {error}")
        return replace(self, committed=target_offsets)

    def resume_on_destination(self, run_id: str) -> GroupReadResult:
        """Raises if records were skipped."""
        link = self.link
        run = read_cluster_state(link.config, link.destination.name).runs[run_id]
        predicted = run.plan.predict_read_again(self.name)
        if self.skip_reason:
            return GroupReadResult(predicted, None, None, self.skip_reason)
        with ClusterClient(link.destination) as client:
            ends = list_offsets(client, self.committed, OffsetPoint.HIGH_WATERMARK)
        resumption = compare_group_reads(
            predicted, self.committed, ends, drill_consumer.consume_from_committed(link.destination, self.name, ends)
        )
        if resumption.skipped:
            raise MirrorError(
                f"drill {run_id}: group {self.name} has skipped {format_count(resumption.skipped, 'record')} on"
                f" {link.destination.name} that it had not done on {link.source.name}: an application's would have, too"
            )
        return resumption


def sync_drill_groups(link: MirrorLink) -> None:
    with StateWriter(link.destination, make_control_id(link.mirror.name)) as writer:
        sync_mirror(link, writer, only=frozenset({SyncCategory.GROUPS}))


def delete_drill_group(cluster: ClusterConfig, group: str, print_line: Callable[[str], None]) -> None:
    with ClusterClient(cluster) as client:
        if group not in list_groups(client):
            return
        try:
            delete_group(client, group)
        except MissingPermission as error:
            print_line(f"group {group} stays on cluster {cluster.name}: {error}")


PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _DrillLocation:
    clusters: tuple[ClusterConfig, ...]
    """First the one whose state topic has it."""
    link: MirrorLink | None


def clean_drill(config: Config, mirror: str, services: Services, *, started_by: str, print_line: PrintLine) -> None:
    """Idempotent. Raises Indeterminate if a cluster was unreachable; the other one is clean then."""
    location, unreachable = _locate_drill(config, mirror), dict[str, str]()

    @contextmanager
    def tolerate_unreachable(cluster: ClusterConfig) -> Iterator[None]:
        try:
            yield
        except MissingPermission:
            raise
        except RemoteFault as error:
            unreachable.setdefault(cluster.name, str(error))

    link = location.link
    if link is not None:
        check_drill_mirror(link.mirror, mirror)
        with tolerate_unreachable(link.source):
            _end_run(link, services, started_by)
        for cluster in location.clusters:
            with tolerate_unreachable(cluster):
                _lift_drill_fence(link, cluster)
        recorded = read_cluster_state(config, link.destination.name).mirrors.get(link.mirror.name)
        if recorded is None:
            link = None  # another clean was quicker
        elif not unreachable and recorded.desired is not DesiredState.STOPPED:
            mirror_commands.stop_mirror(link)
    for cluster in location.clusters:
        if cluster.name not in unreachable:
            with tolerate_unreachable(cluster):
                _delete_drill_topic(cluster, to_drill_topic(mirror), print_line)
                delete_drill_group(cluster, to_drill_group(mirror), print_line)
    if unreachable:
        silent = "; ".join(f"cluster {name}: {reason}" for name, reason in unreachable.items())
        raise Indeterminate(
            f"what a drill has left is not all taken away: {silent}. When it answers: `mirrorbook drill clean {mirror}`"
        )
    if link is not None:
        mirror_commands.delete_mirror(link)
    _forget_old_runs(location.clusters[0], mirror)


def _locate_drill(config: Config, mirror: str) -> _DrillLocation:
    name = to_drill_name(mirror)
    try:
        base_link, state = find_mirror_link(config, mirror)
        drill_mirror = state.mirrors.get(name)
        return _DrillLocation(
            (base_link.destination, base_link.source), make_mirror_link(config, drill_mirror) if drill_mirror else None
        )
    except (BadRequest, Indeterminate) as lookup_error:
        try:
            link, _ = find_mirror_link(config, name)
            return _DrillLocation((link.destination, link.source), link)
        except (BadRequest, Indeterminate):
            holding_clusters = tuple(
                cluster for cluster in config.clusters.values() if _has_topic(cluster, to_drill_topic(mirror))
            )
            if not holding_clusters:
                raise lookup_error from None
            return _DrillLocation(holding_clusters, None)


def _has_topic(cluster: ClusterConfig, topic: str) -> bool:
    try:
        with ClusterClient(cluster) as client:
            return topic in client.metadata([topic]).topics
    except RemoteFault:
        return False


def _end_run(link: MirrorLink, services: Services, started_by: str) -> None:
    failover = Failover(link, services, started_by=started_by)
    run = failover.find_active_run()
    if run is not None:
        promoted = is_past_no_return(read_cluster_state(link.config, link.destination.name), run)
        failover.drive(run.id) if promoted else failover.abort(run.id)


def _lift_drill_fence(link: MirrorLink, cluster: ClusterConfig) -> None:
    with StateWriter(link.destination, make_control_id(link.mirror.name)) as writer, ClusterClient(cluster) as client:
        if cluster.name == link.source.name:
            forget_pending_fence(writer, link.mirror.name)
            lift_fence(link.mirror, writer, client)
        delete_unshared_entries(
            writer, client, list_drill_acls(writer.state.ledger_entries(link.mirror.name), client.name)
        )


def _delete_drill_topic(cluster: ClusterConfig, topic: str, print_line: PrintLine) -> None:
    with ClusterClient(cluster) as client:
        try:
            if topic in find_existing_topics(client, [topic]):
                delete_topics(client, [topic])
        except MissingPermission as error:
            print_line(f"topic {topic} stays on cluster {cluster.name}: {error}")


def _forget_old_runs(cluster: ClusterConfig, mirror: str) -> None:
    state = read_state(cluster)
    if not list_forgettable_runs(state.runs.values(), mirror):
        return
    with StateWriter(cluster, make_control_id(to_drill_name(mirror))) as writer:
        records: list[StateRecord] = []
        for run in list_forgettable_runs(writer.state.runs.values(), mirror):
            records += [run, *writer.state.steps_of(run), *writer.state.audit_entries.get(run.id, {}).values()]
            records += [c for c in writer.state.checkpoints.values() if c.run == run.id]
        writer.put(*(Tombstone(record) for record in records))


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


class SetDrillOutcome(JsonDocument, frozen=True, kw_only=True):
    """A set drill's result."""

    set: str
    """Common id of its runs."""
    standstill_s: float | None
    """From the first step without writes of any mirror to the last promotion. Null: the clusters' clocks differ."""
    drills: tuple[DrillOutcome, ...]


@dataclass(frozen=True, slots=True)
class PreparedDrill:
    """Copied, and its source has a tail."""

    link: MirrorLink
    group: DrillGroup
    written: dict[Partition, Offset]

    def conclude(self, services: Services, run_id: str) -> DrillOutcome:
        group = self.group.resume_on_destination(run_id)
        outcome = _verify_promotion(self.link, services, run_id, self.written, group)
        _record_outcome(self.link, outcome)
        return outcome


def run_drill(
    config: Config, mirror: str, mode: RunMode, services: Services, *, started_by: str, print_line: PrintLine
) -> DrillOutcome:
    """Create, fail over, verify, remove. An unplanned drill's source is alive, so the loss is known exactly."""
    with _prepare_drill(config, mirror, services, started_by, print_line) as prepared:
        failover = Failover(prepared.link, services, started_by=started_by, print_line=print_line)
        decision = failover.decide(mode)
        if decision.reasons:
            raise Refused(f"drill of mirror {mirror}", decision.reasons)
        run = failover.begin(decision.plan.hash, mode, approved_by=started_by)
        return prepared.conclude(services, failover.drive(run.id).id)


def run_set_drill(
    config: Config, mirror_set: MirrorSet, mode: RunMode, services: Services, *, started_by: str, print_line: PrintLine
) -> SetDrillOutcome:
    with ExitStack() as stack:
        prepared = [
            stack.enter_context(_prepare_drill(config, mirror, services, started_by, print_line))
            for mirror in mirror_set.mirrors
        ]
        conductors = {
            drill.link.mirror.name: Failover(
                drill.link,
                services,
                started_by=started_by,
                print_line=lambda line, name=drill.link.mirror.name: print_line(f"{name}: {line}"),  # type: ignore[misc]
            )
            for drill in prepared
        }
        drill_set = MirrorSet(f"{DRILL_PREFIX}{mirror_set.name}", tuple(conductors), mirror_set.order)
        failover = SetFailover(drill_set, conductors, mode, print_line=print_line)
        plan = failover.decide()
        if plan.reasons:
            raise Refused(f"drill of set {mirror_set.name}", plan.reasons, reason_code="set_plan_refused")
        attempt = failover.begin(plan.hash, approved_by=started_by, silent=plan.silent)
        members = failover.finish(attempt)
        return SetDrillOutcome(
            set=attempt,
            standstill_s=measure_set_standstill_s((member.run, member.steps) for member in members.values()),
            drills=tuple(drill.conclude(services, members[drill.link.mirror.name].run.id) for drill in prepared),
        )


@contextmanager
def _prepare_drill(
    config: Config, mirror: str, services: Services, started_by: str, print_line: PrintLine
) -> Iterator[PreparedDrill]:
    base_link, _ = find_mirror_link(config, mirror)
    if is_drill_mirror(base_link.mirror):
        advice = (
            f"it is what a drill has left: `mirrorbook drill clean {mirror.removeprefix(DRILL_PREFIX)}` takes it away"
        )
        raise Refused(f"drill of mirror {mirror}", [advice], reason_code="drill_left_over")
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
        yield PreparedDrill(link, group, _list_high_watermarks(link.source, topic))
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
        replication_factor=base_link.mirror.replication_factor,
    )
    link = make_mirror_link(config, drill_mirror)
    return make_mirror_link(config, mirror_commands.start_mirror(link))


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
    comparison = services.quick_parity(link.mirror.source_identity, link.mirror.destination_identity, ranges, None)
    if comparison.verdict is not ParityVerdict.PASSED:
        finding_lines = [
            *(f"{f.partition} at {f.offset}: {f.kind}: {f.detail}" for f in comparison.findings),
            *comparison.reasons,
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
    """A run without this mark has not succeeded."""
    with StateWriter(link.destination, make_control_id(link.mirror.name)) as writer:
        run = writer.state.runs[outcome.drilled.run]
        writer.put(replace(run, note=f"{outcome.compared} records equal, {outcome.lost} offsets lost"))
