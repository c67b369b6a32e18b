"""Failback of one mirror or several.

Two approvals: for what is discarded on the old source, and for the reverse failover, which moves applications.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mirror_core.decide import failback_plan as decision
from mirror_core.decide.acl_plan import find_granted_acls
from mirror_core.decide.approval_rules import ApprovalPolicy
from mirror_core.decide.failback_plan import (
    FailbackSnapshot,
    NewPrimary,
    OldSource,
    UnendedTransaction,
    UnmirroredTopic,
)
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.mirror_snapshot import ClusterTopic, UnseenCluster
from mirror_core.decide.mirror_topology import build_reverse_mirror
from mirror_core.decide.set_schedule import RunPhase
from mirror_core.decide.steps import StepNeed, find_no_return_step, list_steps_needing
from mirror_core.decide.topic_settings import is_compacted, is_tiered
from mirror_core.decide.truncation import AllowedStrategies, find_divergent_tails, select_created
from mirror_core.evidence.run_report import SetPageMirror, write_run_report
from mirror_core.kafka.acl_requests import BrokerAcls, describe_acls
from mirror_core.kafka.authorization_probe import probe_topic_rights
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.log_offsets import OffsetPoint, list_available_offsets, list_offsets
from mirror_core.kafka.log_snapshot import fetch_log_sizes
from mirror_core.kafka.topic_existence import describe_denied_error, find_existing_topics
from mirror_core.kafka.topics import describe_configs
from mirror_core.kafka.transactions import list_open_transactions
from mirror_core.mirrors.preflight import list_lacking_rights
from mirror_core.mirrors.recovery_plan import find_unsaved
from mirror_core.model.config_sections import MirrorSet, SetOrder
from mirror_core.model.errors import MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import Mirror, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition, format_reverse_name
from mirror_core.model.run import (
    Approval,
    Run,
    RunKind,
    RunState,
    StepEvidence,
    StepRecord,
    StepState,
    find_last_begun,
)
from mirror_core.model.timing import TIMEOUTS
from mirror_core.rights.acl_rules import build_denial
from mirror_core.rights.required_acls import ClusterRole
from mirror_core.runbook.conductor import Conductor, SetMembership, list_run_steps
from mirror_core.runbook.failback_steps import FailbackSteps, find_reverse_failover, load_reverse_link
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.set_conductor import MemberRun, SetConductor, SetFailed
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.runbook.snapshot_reader import Query, collect_lacking_rights, find_sibling_mirrors
from mirror_core.runbook.step_records import read_all_outputs
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.point_of_no_return import find_holding_run, is_past_no_return
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state
from mirror_core.state.watcher_heartbeat import observe_watcher
from mirror_core.state.writer import StateWriter
from mirror_core.sync.acl_sync import list_undemotable_rights
from mirror_core.sync.circle_search import CircleFindings, search_circles
from mirror_core.sync.mirror_topics import list_mirror_topics


class Failback(Conductor[AllowedStrategies]):
    """`link`: from the old source to the new primary.

    A driven run stays RUNNING while the reverse failover is due: see `make_reverse_failover`.
    """

    KIND = RunKind.FAILBACK
    DISTURBANCE = "takes logs of the old source back"

    def make_reverse_failover(self) -> Failover:
        """Moves applications back; driven before the last step."""
        failover = Failover(
            load_reverse_link(self.link),
            self.services,
            started_by=self.started_by,
            print_line=self._print_line,
            gate_limit_s=self._gate_limit_s,
        )
        failover.heartbeat_monitors = self.heartbeat_monitors
        return failover

    def find_active_reverse_run(self, run: Run) -> Run | None:
        _, steps = self.read_status(run.id)
        done_steps = {record.step for record in steps if record.state is StepState.DONE}
        due_step = next((name for name in list_run_steps(run) if name not in done_steps), None)
        return (
            self.make_reverse_failover().find_active_run()
            if due_step in list_steps_needing(self.KIND, StepNeed.REVERSE_FAILOVER)
            else None
        )

    def is_reverse_failover_done(self, run: Run) -> bool:
        return find_reverse_failover(read_state(self.link.source), run.id) is not None

    def find_home_run(self, run: Run) -> tuple[Run, tuple[StepRecord, ...]] | None:
        reverse_state = read_state(self.link.source)
        home = find_last_begun(r for r in reverse_state.runs.values() if r.failback_run == run.id)
        return None if home is None else (home, reverse_state.steps_of(home))

    def has_disturbed(self, run: Run) -> bool:
        return is_past_no_return(read_state(self.link.destination), run)

    def _is_step_due(self, run: Run, name: str) -> bool:
        return name not in list_steps_needing(self.KIND, StepNeed.REVERSE_FAILOVER) or self.is_reverse_failover_done(
            run
        )

    def _act(self, writer: StateWriter, journal: Journal, name: str) -> Callable[[], StepEvidence]:
        steps = FailbackSteps(self.link, self.services, writer, journal, self._print_line)
        if name == find_no_return_step(self.KIND) and not journal.is_begun(name):
            steps.check_approval()
        return steps.get_action(name)

    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        if journal.run.ended_ms is None:
            steps = [r for r in (journal.record(name) for name in journal.steps) if r]
            statuses = writer.state.partitions.get(self.link.mirror.name, {})
            folder, sides = self.services.run_dir(journal.run_id), (self.link.source.name, self.link.destination.name)
            chronicle = writer.state.audit_lines(journal.run_id)
            write_run_report(
                folder,
                journal.run,
                steps,
                statuses,
                read_all_outputs(journal),
                sides=sides,
                chronicle=chronicle,
                unsaved=find_unsaved(self.link, {self.link.destination.name: writer.state}),
            )
        return journal.end(RunState.DONE)

    def _format_no_way_back(self) -> str:
        return (
            f"{self.link.source.name} is being changed. Resume the run; applications stay where they are until the "
            "failover home is approved"
        )

    def _format_next_after_end(self) -> str:
        return f"applications are on {self.link.source.name}, and only a failover moves them again"

    def _abort(self, writer: StateWriter, journal: Journal) -> Run:
        return journal.end(RunState.ABORTED)

    def _decide(self, state: State, choice: AllowedStrategies | None) -> PlanDecision:
        mirror = state.mirrors.get(self.link.mirror.name, self.link.mirror)
        link = replace(self.link, mirror=mirror)
        recorded = state.partitions.get(mirror.name, {})
        statuses = select_created(recorded)
        never_came = {p.topic for p in recorded.keys() - statuses.keys()}
        topics = {p.topic for p in statuses}
        siblings = list[tuple[Mirror, frozenset[str]]]()
        siblings_query = Query(partial(find_sibling_mirrors, link, topics, siblings))
        circles_query = Query(lambda: _find_circles(link, statuses))
        reverse_query = Query(lambda: _read_reverse_state(link))
        allowed = choice or AllowedStrategies()
        allowed.check_topics(topics, mirror.name)
        old_query = Query(lambda: _snapshot_old_source(link, statuses, never_came, allowed))
        new_query = Query(lambda: _snapshot_new_primary(link, statuses, never_came, state))
        # The new primary keeps this run, and is a destination again at the end.
        roles = (link.source, (ClusterRole.DESTINATION,)), (link.destination, tuple(ClusterRole))
        rights_queries = [Query(partial(list_lacking_rights, cluster, taken, topics)) for cluster, taken in roles]
        size_queries = [
            Query(partial(_list_log_sizes, cluster, statuses)) for cluster in (link.source, link.destination)
        ]
        deadline = time.monotonic() + TIMEOUTS.plan_cluster_idle_s
        old_snapshot, new_snapshot, reverse_snapshot = (
            old_query.await_while_progressing(deadline),
            new_query.await_while_progressing(deadline),
            reverse_query.await_while_progressing(deadline),
        )
        silent_clusters, circle_findings = (
            siblings_query.await_result(deadline),
            circles_query.await_while_progressing(deadline),
        )
        # Optional: only cost figures need them.
        old_sizes, new_sizes = (
            {} if isinstance(s, UnseenCluster) else s for s in (query.await_result(deadline) for query in size_queries)
        )
        if isinstance(old_snapshot, OldSource):
            old_snapshot = replace(old_snapshot, sizes=old_sizes)
        if isinstance(new_snapshot, NewPrimary):
            new_snapshot = replace(new_snapshot, sizes=new_sizes)
        active_runs = [find_holding_run(state, mirror.name)]
        if isinstance(reverse_snapshot, State):
            active_runs.append(find_holding_run(reverse_snapshot, format_reverse_name(mirror.name)))
        return decision.decide_failback(
            FailbackSnapshot(
                mirror=mirror,
                statuses=statuses,
                old_source=old_snapshot,
                new_primary=new_snapshot,
                active_runs=tuple(filter(None, active_runs)),
                reverse_unknown=reverse_snapshot if isinstance(reverse_snapshot, UnseenCluster) else None,
                allowed_strategies=allowed,
                pending_fence=state.pending_fences.get(mirror.name),
                watcher_alarms=observe_watcher(link.destination, state, mirror.name).alarms,
                never_copied_topics=tuple(sorted(never_came)),
                owner=link.config.owner(mirror.name),
                new_primary_authorizer=link.destination.ruling,
                silent_clusters=("a third cluster",)
                if isinstance(silent_clusters, UnseenCluster)
                else tuple(sorted(silent_clusters)),
                sibling_mirrors=tuple(sorted(siblings, key=lambda sibling: sibling[0].name)),
                lacking_rights=collect_lacking_rights(rights_queries, deadline),
                circles=() if isinstance(circle_findings, UnseenCluster) else circle_findings.circles,
                unchecked_circles=(
                    (Finding("circles_unknown", mirror.destination, reason=circle_findings.reason),)
                    if isinstance(circle_findings, UnseenCluster)
                    else circle_findings.doubts
                ),
            )
        )


class SetFailback(SetConductor[Failback]):
    """`bring_close`, then the failover of the reverse mirrors, by `make_way_home` and `bring_home`."""

    KIND = RunKind.FAILBACK
    NO_RETURN_REASON = "the old source of another mirror of the set is being changed"

    def __init__(
        self,
        mirror_set: MirrorSet,
        conductors: Mapping[MirrorName, Failback],
        choice: AllowedStrategies | None = None,
        *,
        print_line: Callable[[str], None],
    ) -> None:
        super().__init__(mirror_set, conductors, print_line=print_line)
        self._choice = choice

    def run_steps(self, attempt: str, steps: Sequence[str], *, agreed_by: str = "") -> dict[MirrorName, MemberRun]:
        is_home_due = not set(steps).isdisjoint(list_steps_needing(self.KIND, StepNeed.REVERSE_FAILOVER))
        if self.mirror_set.is_mirror_alone or is_home_due:
            return super().run_steps(attempt, steps, agreed_by=agreed_by)
        return self.bring_close(attempt, agreed_by=agreed_by)

    def bring_close(self, attempt: str, *, agreed_by: str = "") -> dict[MirrorName, MemberRun]:
        """All that is possible while applications stay where they are. Raises SetFailed if not all can go home.

        One that a person has aborted meanwhile keeps nobody from going.
        """
        return self._finish_others(attempt, agreed_by, {RunPhase.HOME_DUE, RunPhase.DONE})

    def finish(self, attempt: str, *, agreed_by: str = "") -> dict[MirrorName, MemberRun]:
        return self._finish_others(attempt, agreed_by, {RunPhase.DONE})

    def _finish_others(self, attempt: str, agreed_by: str, goal: Collection[RunPhase]) -> dict[MirrorName, MemberRun]:
        """Raises SetFailed if all were given up."""
        members = self._finish(attempt, agreed_by, {*goal, RunPhase.GIVEN_UP})
        given_up = {name: member for name, member in members.items() if member.phase is RunPhase.GIVEN_UP}
        if given_up.keys() == members.keys():
            raise self._make_error(member.outcome for member in given_up.values())
        for name in given_up:
            advice = f"`mirrorbook failback run {name}` brings it home"
            self._print_line(f"{name}: it was given up, and takes no part in this failback: {advice}")
        return members

    def make_way_home(self, attempt: str) -> SetFailover | None:
        """The reverse mirrors of those that are not home, and what their open attempt has moved. None: all are home."""
        home_runs = {
            name: self._conductors[name].find_home_run(member.run)
            for name, member in self._read_member_runs(attempt).items()
            if member.phase is not RunPhase.GIVEN_UP
        }
        newest_runs = {name: home_run[0] for name, home_run in home_runs.items() if home_run is not None}
        open_attempts = {run.set_run for run in newest_runs.values() if run.set_run and run.ended_ms is None}
        conductors = {
            format_reverse_name(name): self._conductors[name].make_reverse_failover()
            for name in home_runs
            if name not in newest_runs
            or newest_runs[name].state is not RunState.DONE
            or newest_runs[name].set_run in open_attempts
        }
        if not conductors:
            return None
        mirror_set = replace(self.mirror_set, mirrors=tuple(conductors), left_out=())
        return SetFailover(mirror_set, conductors, print_line=self._print_line)

    def bring_home(
        self, attempt: str, way_home: SetFailover, home_attempt: str, *, agreed_by: str = ""
    ) -> dict[MirrorName, MemberRun]:
        """Mirrors that came home are protected again, whatever becomes of the others."""
        try:
            way_home.finish(home_attempt, agreed_by=agreed_by)
        except SetFailed as error:
            try:
                self.bring_close(attempt)
            except SetFailed as unprotected:
                error.add_note(str(unprotected))
            raise
        except MirrorError:
            self._write_page(attempt)
            raise
        return self.finish(attempt)

    def _decide_member(self, conductor: Failback) -> tuple[PlanDecision, bool]:
        return conductor.decide(self._choice), False

    def _begin_member(
        self,
        name: MirrorName,
        plan_hash: str,
        approved_by: str | Sequence[Approval] | ApprovalPolicy,
        part: SetMembership | None,
        *,
        silent: bool,
    ) -> Run:
        return self._conductors[name].begin(plan_hash, self._choice, approved_by=approved_by, part_of=part)

    def _format_given_up(self, name: MirrorName, member: MemberRun, note: str) -> str:
        return note or f"applications write on {self.get_link(name).destination.name}, as before"

    def _to_member_run(self, name: MirrorName, state: State, run: Run) -> MemberRun:
        member = super()._to_member_run(name, state, run)
        if member.phase is not RunPhase.HOME_DUE:
            return member
        try:
            return replace(member, is_home=self._conductors[name].is_reverse_failover_done(run))
        except MirrorError:  # its next step fails with it
            return replace(member, is_home=None)

    def _make_page_mirror(self, name: MirrorName, member: MemberRun, status: tuple[str, ...]) -> SetPageMirror:
        row = super()._make_page_mirror(name, member, status)
        try:
            return replace(row, home=self._conductors[name].find_home_run(member.run))
        except MirrorError:
            return replace(row, is_home_unknown=True)

    @property
    def _order(self) -> SetOrder:
        return SetOrder.SIDE_BY_SIDE


def _read_reverse_state(link: MirrorLink) -> State:
    state = read_state(link.source, timeout_s=TIMEOUTS.plan_state_s)
    state.require_readable(format_reverse_name(link.mirror.name))
    return state


def _find_circles(link: MirrorLink, statuses: Mapping[Partition, PartitionStatus]) -> CircleFindings:
    reverse = make_mirror_link(link.config, build_reverse_mirror(link.mirror))
    findings = search_circles(reverse, {p.topic for p in statuses})
    return replace(
        findings, circles=tuple(circle for circle in findings.circles if link.mirror.name not in circle.mirrors)
    )


def _snapshot_old_source(
    link: MirrorLink,
    statuses: dict[Partition, PartitionStatus],
    never_came: Collection[str],
    allowed: AllowedStrategies,
) -> OldSource:
    with ClusterClient(link.source, timeout_s=TIMEOUTS.plan_response_s) as client:
        cluster_logs = _snapshot_logs(client, statuses)
        acls = describe_acls(client)
        on_cluster, on_topics = probe_topic_rights(client, cluster_logs.topics)
        tails = find_divergent_tails(statuses, cluster_logs.topics, cluster_logs.ends)
        tailed_topics = ({p.topic for p in tails} | allowed.topics.keys()) & cluster_logs.topics.keys()
        tailed_configs = describe_configs(client, tailed_topics) if tailed_topics else {}
        return OldSource(
            cluster_id=cluster_logs.cluster_id,
            topics=cluster_logs.topics,
            log_starts=cluster_logs.starts,
            log_ends=cluster_logs.ends,
            replicas=cluster_logs.replicas,
            broker_count=len(client.brokers()),
            compacted=frozenset(t for t, configs in tailed_configs.items() if is_compacted(configs.effective)),
            tiered=frozenset(t for t, configs in tailed_configs.items() if is_tiered(configs.effective)),
            authorizer=isinstance(acls, BrokerAcls),
            fenced_by_command=link.source.ruling.fence_command is not None,
            fenced=isinstance(acls, BrokerAcls)
            and {build_denial(topic) for topic in cluster_logs.topics} <= acls.entries,
            demotion_problems=list_undemotable_rights(link, client.config, acls, cluster_logs.topics),
            held_acls=acls.entries if isinstance(acls, BrokerAcls) else None,
            cluster_rights=on_cluster or frozenset(),
            topic_rights=on_topics,
            unmirrored_topics=_list_unmirrored(link, client, statuses, never_came),
        )


def _snapshot_new_primary(
    link: MirrorLink, statuses: dict[Partition, PartitionStatus], never_came: Collection[str], state: State
) -> NewPrimary:
    with ClusterClient(link.destination, timeout_s=TIMEOUTS.plan_response_s) as client:
        cluster_logs = _snapshot_logs(client, statuses)
        acls = describe_acls(client)
        return NewPrimary(
            cluster_id=cluster_logs.cluster_id,
            topics=cluster_logs.topics,
            unmirrored_topics=_list_unmirrored(link, client, statuses, never_came),
            log_starts=cluster_logs.starts,
            log_ends=cluster_logs.ends,
            demotion_problems=list_undemotable_rights(link, client.config, acls, cluster_logs.topics),
            granted_acls=find_granted_acls(state.ledger_entries(link.mirror.name), acls.entries)
            if isinstance(acls, BrokerAcls)
            else (),
            transactions=tuple(
                UnendedTransaction(id=t.id, partitions=t.partitions, started_ms=t.started_ms, timeout_s=t.timeout_s)
                for t in list_open_transactions(client, cluster_logs.topics)
                if not t.is_decided
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogsSnapshot:
    cluster_id: str
    topics: dict[str, ClusterTopic]
    replicas: dict[str, int]
    starts: dict[Partition, Offset]
    ends: dict[Partition, Offset]


def _snapshot_logs(client: ClusterClient, statuses: dict[Partition, PartitionStatus]) -> _LogsSnapshot:
    metadata = client.metadata({p.topic for p in statuses})
    if metadata.denied:  # hidden is not missing: a missing topic is recreated
        raise describe_denied_error(client, metadata.denied)
    topics = {
        name: ClusterTopic(id=topic_view.id, partitions=len(topic_view.partitions))
        for name, topic_view in metadata.topics.items()
    }
    # Unrecorded partitions too: a strategy applies to whole topics.
    present = [
        Partition(name, index)
        for name, topic_view in sorted(metadata.topics.items())
        for index in sorted(topic_view.partitions)
    ]
    return _LogsSnapshot(
        cluster_id=metadata.cluster_id,
        topics=topics,
        replicas={name: topic_view.replication_factor for name, topic_view in metadata.topics.items()},
        starts=list_offsets(client, present, OffsetPoint.START) if present else {},
        ends=list_offsets(client, present, OffsetPoint.LOG_END) if present else {},
    )


def _list_unmirrored(
    link: MirrorLink, client: ClusterClient, statuses: Collection[Partition], never_came: Collection[str]
) -> dict[str, UnmirroredTopic]:
    mirrored = {p.topic for p in statuses}
    views = {name: view for name, view in list_mirror_topics(link, client).items() if name not in mirrored}
    views |= find_existing_topics(client, never_came) if never_came else {}
    partitions = [Partition(name, index) for name, view in views.items() for index in view.partitions]
    starts, ends = (
        list_available_offsets(client, partitions, point).offsets for point in (OffsetPoint.START, OffsetPoint.LOG_END)
    )
    unmirrored = {}
    for name, view in views.items():
        topic_partitions = [Partition(name, index) for index in view.partitions]
        has_all_offsets = ends.keys() >= set(topic_partitions) and starts.keys() >= set(topic_partitions)
        unmirrored[name] = UnmirroredTopic(
            partitions=len(topic_partitions),
            offsets=sum(ends[p] - starts[p] for p in topic_partitions) if has_all_offsets else None,
            log_ends=sum(ends[p] for p in topic_partitions) if has_all_offsets else None,
        )
    return unmirrored


def _list_log_sizes(cluster: ClusterConfig, partitions: Collection[Partition]) -> dict[Partition, int]:
    with ClusterClient(cluster, timeout_s=TIMEOUTS.plan_response_s) as client:
        views = find_existing_topics(client, {p.topic for p in partitions})
        return fetch_log_sizes(
            client, [Partition(name, index) for name, view in views.items() for index in view.partitions]
        )
