"""The steps of a failback.

M is the failed-over mirror, recorded on the new primary; M-back, its reverse, on the old source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.decide.copy_estimate import format_catch_up
from mirror_core.decide.failback_plan import find_written_since
from mirror_core.decide.failure_remedies import DIFFERING_KINDS
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.topic_settings import MIRROR_CONFIGS
from mirror_core.decide.verification import turn_verification
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.log_offsets import OffsetPoint, list_available_offsets, list_offsets
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.kafka.topics import describe_configs, find_late_brokers
from mirror_core.mirrors.mirror_creation import choose_reverse_gap_method, ensure_state_topic, generate_producer_id
from mirror_core.model.errors import LostOwnership, MirrorError, Refused, SettingRefused, Unreachable
from mirror_core.model.mirror import (
    ZOMBIE_WRITER_MARGIN_MS,
    DesiredState,
    FailureKind,
    Mirror,
    PartitionState,
    PartitionStatus,
)
from mirror_core.model.names import MirrorName, Partition, format_reverse_name
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepEvidence
from mirror_core.model.source_observation import observe_ends
from mirror_core.model.sync_state import SyncCategory
from mirror_core.model.text import format_count
from mirror_core.model.timing import CLOCK_TIMEOUT_S, now_ms, read_steady_s
from mirror_core.runbook.divergent_tail_steps import TailSteps
from mirror_core.state.lease import find_writers_left_ms, observe_live_lease
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from mirror_core.state.state_records import PartitionRecord, State, StateRecord, Tombstone
from mirror_core.state.state_topic import read_complete_state, read_state
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.acl_ledger import copy_demotions, restage_grants
from mirror_core.sync.acl_sync import demote_topics
from mirror_core.sync.failover_offsets import reset_group_offsets
from mirror_core.sync.fence_acls import STILLNESS_PAUSE_S, TRANSACTION_WAIT_S, lift_all_denials, wait_for_stillness
from mirror_core.sync.fence_command import ClusterClosed, build_command_target
from mirror_core.sync.fence_command_runner import close_cluster
from mirror_core.sync.mirror_sync import SyncReport, sync_mirror
from mirror_core.sync.principals import list_own_principals
from mirror_core.sync.promotion_acls import forget_revoked_rights, record_withdrawn_rights, sync_lifted_records
from mirror_core.sync.quota_sync import restage_quotas

_TIME_KEY: Final = "message.timestamp.type"
_SOURCE_TIME: Final = MIRROR_CONFIGS[_TIME_KEY]


def find_reverse_failover(reverse_state: State, failback_run_id: str) -> Run | None:
    """Matched by run id: clocks of two hosts do not tell what came first."""
    expected = (RunKind.FAILOVER, RunState.DONE, failback_run_id)
    return next(
        (run for run in reverse_state.runs.values() if (run.plan.kind, run.state, run.failback_run) == expected), None
    )


def load_reverse_link(link: MirrorLink) -> MirrorLink:
    state = read_state(link.source)
    state.require_readable(format_reverse_name(link.mirror.name))
    mirror = state.mirrors.get(format_reverse_name(link.mirror.name))
    if mirror is None:
        raise Unreachable(
            f"mirror {format_reverse_name(link.mirror.name)} is not recorded on cluster {link.source.name}"
        )
    return make_mirror_link(link.config, mirror)


def is_already_home(reverse_state: State, name: MirrorName, failback_run_id: str) -> bool:
    """M-back moved applications back. Refused while it does."""
    reverse_state.require_readable(name)
    if run := reverse_state.active_run(name):
        raise Refused(
            f"failback {failback_run_id}: step create_reverse",
            [f"run {run.id} takes applications home already: `mirrorbook failover resume {name}` first"],
            reason_code="run_leads_home",
        )
    return find_reverse_failover(reverse_state, failback_run_id) is not None


def require_reverse_failover(link: MirrorLink, reverse_state: State, failback_run_id: str) -> Run:
    run = find_reverse_failover(reverse_state, failback_run_id)
    if run is None:
        raise Refused(
            f"failback {failback_run_id}: step reprotect",
            [f"mirror {link.mirror.name} is not failed over yet: applications are still on {link.source.name}"],
            reason_code="not_failed_over",
        )
    return run


def require_source_times(client: ClusterClient, topics: Collection[str]) -> None:
    """Raises unless every broker of a mirror's destination stores records with their own times."""
    configs = describe_configs(client, topics)
    retimed_topics = [name for name, topic in configs.items() if topic.effective[_TIME_KEY] != _SOURCE_TIME]
    if retimed_topics:
        raise SettingRefused(
            f"cluster {client.name}: {_TIME_KEY} is not {_SOURCE_TIME}, so a copy would get the broker's times, on "
            f"{join_limited(sorted(retimed_topics))}: let {client.config.user() or 'this principal'} set it"
            " (ALTER_CONFIGS), then resume the failback"
        )
    changed_topics = [name for name, topic in configs.items() if _TIME_KEY in topic.overrides]
    if late_brokers := find_late_brokers(client, {name: {_TIME_KEY: _SOURCE_TIME} for name in changed_topics}):
        raise Unreachable(
            f"cluster {client.name}: brokers {join_limited(sorted(late_brokers))} do not show"
            f" {_TIME_KEY}={_SOURCE_TIME} yet, and would give copied records their own times; resume the failback"
        )


CAUGHT_UP_OFFSETS: Final = 1_000
CAUGHT_UP_S: Final = 5.0
"""In seconds of writes on a busy cluster."""
STALL_S: Final = 120.0
REPORT_INTERVAL_S: Final = 10.0
PARTS_SYNCED_FIRST: Final = frozenset({SyncCategory.CONFIGS, SyncCategory.ACLS, SyncCategory.QUOTAS})
"""Rights too: a later withdrawal is detected by them."""


def is_close_behind(lag: int | None, written: int, seconds: float) -> bool:
    """A fence would wait only briefly. The source grows by `written` offsets in `seconds`."""
    return lag is not None and lag <= max(CAUGHT_UP_OFFSETS, written / max(1.0, seconds) * CAUGHT_UP_S)


def measure_lag(link: MirrorLink, topics: Collection[str]) -> tuple[int | None, int]:
    """(lag in offsets, sum of the source's last stable offsets). The lag is None while partitions are missing."""
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        source_views, destination_views = (
            find_existing_topics(source, topics),
            find_existing_topics(destination, topics),
        )
        partitions = [Partition(t, i) for t, view in source_views.items() for i in view.partitions]
        missing = any(
            p.topic not in destination_views or p.index not in destination_views[p.topic].partitions for p in partitions
        )
        positions = {} if missing else list_offsets(destination, partitions, OffsetPoint.LOG_END)
        ends = list_offsets(source, partitions, OffsetPoint.STABLE_END)
    lag = None if missing else sum(max(0, ends[p] - positions[p]) for p in partitions)
    return lag, sum(ends.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpObservation:
    lag: int | None
    """In offsets. None: the destination lacks topics or partitions."""
    source_end: int
    """Sum of the last stable offsets."""
    is_copied: bool
    """A data plane holds the reverse mirror's lease."""


def observe_catch_up(link: MirrorLink, state: State, run_id: str) -> CatchUpObservation | None:
    """None when nothing is left to wait for: the run has ended, or applications are home."""
    run = state.runs.get(run_id)
    if run is None or run.ended_ms is not None:
        return None
    reverse, reverse_state = load_reverse_link(link), read_state(link.source)
    if find_reverse_failover(reverse_state, run_id) is not None:
        return None
    topics = sorted({partition.topic for partition in state.partitions.get(link.mirror.name, {})})
    lag, source_end = measure_lag(reverse, topics)
    lease = observe_live_lease(link.source, reverse_state, reverse.mirror.name)
    return CatchUpObservation(lag=lag, source_end=source_end, is_copied=lease is not None)


class FailbackSteps(TailSteps):
    __slots__ = ()

    def demote(self) -> StepEvidence:
        """On the old source: deny applications, then lift the fence, so only the mirror can write."""
        self._wait_for_old_tasks()
        topics = self._list_existing_topics(self.link.source, self._topic_names())
        rows = demote_topics(
            self.link, self.writer, topics, self.link.source.name, self._make_command_fence(self.link, self.link.source)
        )
        return {"access": len(rows), "such_as": join_limited(f"{r.action} {r.subject}" for r in rows)}

    def create_reverse(self) -> StepEvidence:
        """Record M-back with all existing partitions. Nothing copies to them before the last record."""
        reverse, run = self._make_reverse_mirror(), self.journal.run_id
        given_up: StepEvidence = {
            "mirror": reverse.name,
            "made": f"no further: {self.link.destination.name} was given up",
        }
        if is_already_home(read_complete_state(self.link.source), reverse.name, run):  # before taking over a conductor
            return given_up
        with ClusterClient(self.link.source) as old, ClusterClient(self.link.destination) as new:
            saved_evidence = self.save_missing_beginnings(old)
            ensure_state_topic(old)
            new_views, old_views = (
                find_existing_topics(new, self._topic_names()),
                find_existing_topics(old, self._topic_names()),
            )
            new_partitions = [Partition(topic, index) for topic, view in new_views.items() for index in view.partitions]
            new_ends = list_available_offsets(new, new_partitions, OffsetPoint.HIGH_WATERMARK).offsets
        with StateWriter(self.link.source, make_control_id(reverse.name)) as writer:
            if is_already_home(writer.state, reverse.name, run):
                return given_up
            # First: if the new primary dies from here on, only this ledger has the denials on the old source, and
            # which of them stand for withdrawn rights.
            copy_demotions(writer, reverse.name, self.writer.state, self.link.source.name, self._topic_names())
            begin_link = make_mirror_link(self.link.config, reverse)
            with ClusterClient(self.link.destination) as new:
                record_withdrawn_rights(begin_link, self.writer.state, writer, new)
            recorded = writer.state.mirrors.get(reverse.name)
            if recorded is None or recorded.failback_run != run:
                with ClusterClient(self.link.source) as old:
                    forget_revoked_rights(begin_link, writer, old)
                reverse = replace(reverse, state_topic_id=writer.state.topic_id)
                # If the new primary dies before a data plane has observed it, a plan must know what only it has.
                observation = observe_ends(reverse.name, new_ends, age_ms=0, now_ms=writer.now_ms())
                initial_records = self._list_initial_records(reverse, writer.state, new_views, old_views)
                writer.put(reverse, observation, *initial_records)
            link = make_mirror_link(self.link.config, writer.state.mirrors[reverse.name])
            with ClusterClient(self.link.source) as old:
                lift_all_denials(reverse, writer, old)  # of an earlier failback, against its tasks
                restage_grants(writer, reverse.name, old, list_own_principals(link))  # the mirror exists again
                restage_quotas(writer, reverse.name, old)
                groups = reset_group_offsets(reverse, old, self._topic_names(), writer)
            sync_lifted_records(link, writer, self.writer.state)
            report = sync_mirror(link, writer, only=PARTS_SYNCED_FIRST)
            with ClusterClient(self.link.source) as old:
                require_source_times(old, new_views.keys())
            # After the sync, which staged current grants: detects later revocations.
            with ClusterClient(self.link.destination) as new:
                record_withdrawn_rights(link, self.writer.state, writer, new)
            writer.put(replace(writer.state.mirrors[reverse.name], is_preparing=False))
        return {
            "mirror": reverse.name,
            "groups_brought_home": groups,
            "settings_changed": _count_changed_settings(report),
            **saved_evidence,
        }

    def _list_initial_records(
        self,
        reverse: Mirror,
        state: State,
        new_views: Mapping[str, TopicMetadata],
        old_views: Mapping[str, TopicMetadata],
    ) -> Iterator[StateRecord | Tombstone]:
        initial_state = apply_events(PartitionState.UNKNOWN, PartitionEvent.START, PartitionEvent.ALIGNED)
        new_statuses = {
            p: PartitionStatus(
                partition=p,
                state=initial_state,
                source_topic_id=new_views[p.topic].id,
                destination_topic_id=old_views[p.topic].id,
            )
            # Recorded by M or not. A topic deleted on the new primary is left alone.
            for topic in sorted(new_views.keys() & old_views.keys())
            for p in (Partition(topic, index) for index in sorted(new_views[topic].partitions))
            if p.index in old_views[topic].partitions
        }
        left_statuses = state.partitions.get(reverse.name, {})
        yield from (
            Tombstone(PartitionRecord(reverse.name, s))
            for p, s in sorted(left_statuses.items())
            if p not in new_statuses
        )
        yield from (PartitionRecord(reverse.name, s) for s in new_statuses.values())
        # It is about an earlier failback.
        yield from (Tombstone(proof) for proof in [state.verifications.get(reverse.name)] if proof)

    def catch_up(self) -> StepEvidence:
        link = self._load_reverse_link()
        if find_reverse_failover(read_state(self.link.source), self.journal.run_id):
            return {"lag": f"not copied: {self.link.destination.name} was given up, and applications are home"}
        started = time.monotonic()
        lowest_lag, progress_at, reported_at = None, started, started
        first_end, first_lag = None, None
        while True:
            lag, end = self._measure_lag(link)
            now = time.monotonic()
            first_end = end if first_end is None else first_end
            first_lag = (lag, now) if first_lag is None and lag is not None else first_lag
            if now - reported_at >= REPORT_INTERVAL_S:
                reported_at = now
                self.print_line(
                    f"catch_up: {format_catch_up(lag, first_lag, now)}, until {self.link.source.name} is close behind"
                )
            if is_close_behind(lag, end - first_end, now - started):
                return {"lag": lag, "seconds": round(now - started, 1)}
            if lag is not None and (lowest_lag is None or lag < lowest_lag):
                lowest_lag, progress_at = lag, now
            if now - progress_at > STALL_S:
                lag_text = "an unknown number of offsets" if lag is None else format_count(lag, "offset")
                raise MirrorError(
                    f"mirror {link.mirror.name}: its data plane has made no progress for {STALL_S:.0f} s, {lag_text}"
                    f" left; see `mirrorbook mirror describe {link.mirror.name}`, then resume the failback"
                )
            if observe_live_lease(self.link.source, read_state(self.link.source), link.mirror.name) is None:
                self._copy_in_process(link)
                continue
            time.sleep(0.5)

    def reprotect(self) -> StepEvidence:
        link = self._load_reverse_link()
        # Before taking over its conductor.
        require_reverse_failover(link, read_complete_state(self.link.source), self.journal.run_id)
        with StateWriter(self.link.source, make_control_id(link.mirror.name)) as reverse_writer:
            home = require_reverse_failover(link, reverse_writer.state, self.journal.run_id)
            given_up = home.plan.mode is RunMode.UNPLANNED
            statuses = dict(sorted(reverse_writer.state.partitions.get(link.mirror.name, {}).items()))
            # Includes topics created on the new primary.
            topics, cluster = sorted({p.topic for p in statuses}), self.link.destination
            with ClusterClient(cluster) as client:
                self._wait_for_old_tasks()
                existing_topics = self._list_existing_topics(cluster, topics)
                rows = demote_topics(
                    link, reverse_writer, existing_topics, cluster.name, self._make_command_fence(link, cluster)
                )
                own_records = self._find_own_records(client, statuses, is_quiescent=not given_up)
                lift_all_denials(self.link.mirror, self.writer, client)
                restage_grants(self.writer, self.link.mirror.name, client, list_own_principals(self.link))
                restage_quotas(self.writer, self.link.mirror.name, client)
                copy_demotions(self.writer, self.link.mirror.name, reverse_writer.state, cluster.name, topics)
                reset_group_offsets(self.link.mirror, client, topics, self.writer)
            sync_lifted_records(self.link, self.writer, reverse_writer.state)
            mirror = self.writer.state.mirrors[self.link.mirror.name]
            recorded = dict(self.writer.state.partitions.get(mirror.name, {}))
            self.writer.put(
                # A new producer id: under the old one the applications' records would look like foreign writes.
                replace(mirror, desired=DesiredState.STARTED, producer_id=generate_producer_id()),
                *(
                    PartitionRecord(mirror.name, self._to_protected_status(s, own_records.get(p)))
                    for p, s in statuses.items()
                ),
                # Not copied back: the old source's records are new to the mirror.
                *(Tombstone(PartitionRecord(mirror.name, s)) for p, s in recorded.items() if p not in statuses),
                *self._list_knowledge(reverse_writer, home, statuses.keys() - own_records.keys()),
            )
        report = sync_mirror(self.link, self.writer, only=PARTS_SYNCED_FIRST, run_id=self.journal.run_id)
        with ClusterClient(self.link.source) as old:
            record_withdrawn_rights(self.link, reverse_writer.state, self.writer, old)
        return {
            "access": len(rows),
            "such_as": join_limited(f"{r.action} {r.subject}" for r in rows),
            "settings_changed": _count_changed_settings(report),
            "partitions": len(statuses),
            **({"to_be_saved": join_limited(f"{p} {went}" for p, went in own_records.items())} if own_records else {}),
        }

    def _list_knowledge(
        self, reverse_writer: StateWriter, home: Run, equal_partitions: Collection[Partition]
    ) -> Iterator[StateRecord | Tombstone]:
        name, reverse_state = self.link.mirror.name, reverse_writer.state
        proof, observation = (
            self.writer.state.verifications.get(name),
            self.writer.state.find_observation(name),
        )
        if home.plan.mode is RunMode.UNPLANNED:
            yield from (Tombstone(record) for record in [proof] if record)  # of the old source before truncation
            # What was copied since went the other way.
            yield from (record.with_reported_ends({}) for record in [observation] if record)
            return
        reverse_statuses = reverse_state.partitions.get(home.plan.mirror, {})
        equal = {p: s for p, s in reverse_statuses.items() if p in equal_partitions and not s.reason}
        reverse_proof = reverse_state.verifications.get(home.plan.mirror)
        if reverse_proof is not None:
            yield turn_verification(reverse_proof, name, equal)
        elif proof is not None:
            yield Tombstone(proof)
        promote = reverse_state.steps[home.id, "promote"]
        ends = {p: status.lmo for p, status in equal.items() if status.lmo is not None}
        yield observe_ends(
            name, ends, age_ms=max(0, reverse_writer.now_ms() - promote.first_attempt_ms), now_ms=self.writer.now_ms()
        )

    def _to_protected_status(self, reverse_status: PartitionStatus, own_range: str | None) -> PartitionStatus:
        reason = None
        if own_range:
            reason = (
                f"somebody wrote to {self.link.destination.name} after applications had left it, or it was given up"
                f" while they were there: its log goes {own_range}, and {self.link.source.name} never got that: save it"
                " first"
            )
        if reverse_status.reason:
            reason = (
                f"it was FAILED when applications came home, so {self.link.destination.name} holds records that "
                f"{self.link.source.name} never got ({reverse_status.reason}): save them first"
            )
        failed_at = reverse_status.lmo if own_range else None
        if reverse_status.kind in DIFFERING_KINDS and reverse_status.failed_at is not None:
            failed_at = reverse_status.failed_at
        last_event = PartitionEvent.FAIL if reason else PartitionEvent.ALIGNED
        return PartitionStatus(
            partition=reverse_status.partition,
            state=apply_events(PartitionState.STOPPED, PartitionEvent.START, last_event),
            source_topic_id=reverse_status.destination_topic_id,
            destination_topic_id=reverse_status.source_topic_id,
            reason=reason,
            failed_at=failed_at,
            kind=FailureKind.DIVERGED if reason else None,
        )

    # -- inside --------------------------------------------------------------------------------------------------

    def _make_command_fence(self, link: MirrorLink, cluster: ClusterConfig) -> Callable[[Collection[str]], bool]:

        def record_closing() -> None:  # fails unless we conduct this run
            self.journal.save_checkpoint("demote", ClusterClosed(cluster=cluster.name))

        run = self.journal.run_id
        return lambda topics: close_cluster(
            link, build_command_target(self.link, cluster.name, run, topics), record_closing
        )

    def _list_existing_topics(self, cluster: ClusterConfig, topics: list[str]) -> list[str]:
        with ClusterClient(cluster) as client:
            return sorted(find_existing_topics(client, topics))

    def _wait_for_old_tasks(self) -> None:
        end_s = 0.0
        for cluster, name in (
            (self.link.destination, self.link.mirror.name),
            (self.link.source, format_reverse_name(self.link.mirror.name)),
        ):
            state = read_state(cluster)
            state.require_readable(name)
            ahead_ms = measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S)
            left_ms = find_writers_left_ms(state, name, ahead_ms)
            if left_ms is not None:
                end_s = max(end_s, read_steady_s() + (left_ms + ZOMBIE_WRITER_MARGIN_MS) / 1000)
        # A plain wait: a task without its driver cannot be asked.
        wait_s = max(0.0, end_s - read_steady_s())
        if wait_s >= 1:
            self.print_line(f"waiting {wait_s:.0f} s until no copying task of the past can write any more")
        time.sleep(wait_s)

    def _make_reverse_mirror(self) -> Mirror:
        mirror = self.link.mirror
        return replace(
            mirror,
            name=format_reverse_name(mirror.name),
            source=mirror.destination,
            destination=mirror.source,
            source_id=mirror.destination_id,
            destination_id=mirror.source_id,
            producer_id=generate_producer_id(),
            gaps=choose_reverse_gap_method(mirror, self.link),
            desired=DesiredState.STARTED,
            created_ms=now_ms(),
            failback_run=self.journal.run_id,
            is_preparing=True,
            replication_factor="source",
            paused_topics=(),
        )

    def _copy_in_process(self, link: MirrorLink) -> None:
        options = ReplicationOptions(until_caught_up=True)
        try:
            summary = Replication(link, LocalRunner, options, stop=threading.Event(), report_line=self.print_line).run()
        except LostOwnership as error:  # of the reverse mirror's lease
            self.print_line(f"catch_up: not copied here any more: {error}")
            self.writer.put(*filter(None, [self.journal.record("catch_up")]))  # fails if the run was lost, too
        else:
            raise_if_failed(summary)

    def _load_reverse_link(self) -> MirrorLink:
        return load_reverse_link(self.link)

    def _measure_lag(self, link: MirrorLink) -> tuple[int | None, int]:
        return measure_lag(link, self._topic_names())

    def _find_own_records(
        self, client: ClusterClient, statuses: Mapping[Partition, PartitionStatus], *, is_quiescent: bool
    ) -> Mapping[Partition, str]:
        """`is_quiescent`: fenced before, so one look suffices."""
        partitions = _filter_existing(client, statuses)
        if is_quiescent:
            return find_written_since(statuses, list_offsets(client, partitions, OffsetPoint.LOG_END))
        topics = {p.topic for p in partitions}
        return find_written_since(
            statuses,
            wait_for_stillness(
                client, topics, partitions, pause_s=STILLNESS_PAUSE_S, transaction_wait_s=TRANSACTION_WAIT_S
            ),
        )


def _filter_existing(client: ClusterClient, partitions: Iterable[Partition]) -> list[Partition]:
    partition_list = list(partitions)
    views = find_existing_topics(client, {p.topic for p in partition_list})
    return [p for p in partition_list if p.topic in views and p.index in views[p.topic].partitions]


def _count_changed_settings(report: SyncReport) -> int:
    return sum(row.done for row in report.rows if row.part is SyncCategory.CONFIGS)
