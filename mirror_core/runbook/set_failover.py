"""One failover of several mirrors, and which mirrors a set has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirror_core.decide.approval_rules import ApprovalPolicy, count_failed, explain_source_answers_again
from mirror_core.decide.drills import is_drill_mirror
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.set_schedule import RunPhase, SetPlan, select_mirrors_from
from mirror_core.decide.source_probe import format_planned_failover_hint, format_waiting_run
from mirror_core.decide.write_access import OperatorAction
from mirror_core.kafka.config import Config
from mirror_core.model.config_sections import MirrorSet, format_source_set
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.names import DRILL_PREFIX, ClusterName, MirrorName
from mirror_core.model.run import Approval, Run, RunKind, RunMode
from mirror_core.model.text import format_items
from mirror_core.runbook.conductor import SetMembership
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_outcome import find_recorded_access
from mirror_core.runbook.set_conductor import MemberRun, SetConductor
from mirror_core.state.mirror_link import read_states
from mirror_core.state.record_encoding import parse_mirror_name


def find_set(config: Config, name: str, kind: RunKind = RunKind.FAILOVER) -> MirrorSet:
    """One that the configuration lists, or all mirrors from a cluster, by what the other clusters record."""
    sources = {format_source_set(cluster): cluster for cluster in config.clusters}
    if name in sources:
        return _find_source_set(config, name, sources[name], kind)
    if name not in config.sets:
        known_sets = ", ".join(sorted({*config.sets, *sources}))
        raise BadRequest(f"unknown set {name!r}: section `sets:` of {config.path}, and its clusters, give {known_sets}")
    return config.sets[name]


def _find_source_set(config: Config, name: str, source: ClusterName, kind: RunKind) -> MirrorSet:
    results = dict(read_states(config))
    states = {cluster: state for cluster, state in results.items() if not isinstance(state, MirrorError)}
    # On a cluster that is a source only, applications may write that topic.
    decisive = {cluster: state for cluster, state in states.items() if cluster != source}
    accesses = {
        mirror.name: find_recorded_access(mirror, states)
        for cluster, state in decisive.items()
        for mirror in state.mirrors.values()
        if (mirror.source, mirror.destination) == (source, cluster)
        and not is_drill_mirror(mirror)
        and not (kind is RunKind.FAILBACK and mirror.failback_run)  # it led home, and stays as it is
    }
    stopped = {mirror for mirror, access in accesses.items() if access and access.action is OperatorAction.START}
    runs = [run for state in decisive.values() for run in state.runs.values()]
    mirrors = select_mirrors_from(name, {m: access for m, access in accesses.items() if m not in stopped}, runs, kind)
    left_out = [
        Finding("mirrors_to_cluster_unknown", cluster, source=source)
        for cluster in sorted(results.keys() - states.keys() - {source})
    ]
    for cluster, state in sorted(decisive.items()):
        unreadable = {mirror for mirror in map(parse_mirror_name, state.unreadable) if mirror} - state.mirrors.keys()
        left_out += [
            Finding("mirror_unreadable_left_out", mirror, cluster=cluster, source=source)
            for mirror in sorted(unreadable)
            if not mirror.startswith(DRILL_PREFIX)
        ]
    left_out += [Finding("mirror_stopped_left_out", mirror) for mirror in sorted(stopped - set(mirrors))]
    if not mirrors:
        verb = "fail over" if kind is RunKind.FAILOVER else "bring home"
        raise BadRequest(f"no mirror from {source} has anything to {verb}{format_items(left_out)}")
    return MirrorSet(name, mirrors, left_out=tuple(left_out))


class SetFailover(SetConductor[Failover]):
    KIND = RunKind.FAILOVER
    NO_RETURN_REASON = "another mirror of the set is promoted"

    def refuse_conducted_planned_runs(self, mirrors: Iterable[MirrorName]) -> None:
        for name in mirrors:
            self._conductors[name].refuse_conducted_planned_run()

    def _decide_member(self, conductor: Failover) -> tuple[PlanDecision, bool]:
        return conductor.decide_unplanned() if self.mode is RunMode.UNPLANNED else (conductor.decide(self.mode), False)

    def _begin_member(
        self,
        name: MirrorName,
        plan_hash: str,
        approved_by: str | Sequence[Approval] | ApprovalPolicy,
        part: SetMembership | None,
        *,
        silent: bool,
    ) -> Run:
        return self._conductors[name].begin(plan_hash, self.mode, approved_by=approved_by, part_of=part, silent=silent)

    def _format_given_up(self, name: MirrorName, member: MemberRun, note: str) -> str:
        outcome = note or "applications may write on the source"
        hint = format_planned_failover_hint(self.get_link(name).source.name)
        return f"{outcome}. {hint}" if member.awaits_confirmation else outcome

    def _explain_returned_sources(self, set_plan: SetPlan, silent: Sequence[MirrorName]) -> Sequence[str]:
        return [
            f"{name}: {reason}"
            for name in silent
            for reason in explain_source_answers_again(
                self.get_link(name).source.name,
                f"failover run-set {self.mirror_set.name}",
                was_silent=True,
                has_answered=name not in set_plan.silent,
                has_answered_fully=set_plan.decisions[name].source_seen,
                failed=count_failed(set_plan.decisions[name].plan.warnings),
            )
        ]

    def _explain_kept(self, name: MirrorName, member: MemberRun) -> str:
        """Kept with a silent source if fenced or awaiting confirmation: a new run would not know what was drained."""
        conductor = self._conductors[name]
        is_stopped = self.mode is RunMode.PLANNED and member.phase in (RunPhase.APPLICATIONS_STOPPED, RunPhase.READY)
        if not (member.awaits_confirmation or is_stopped) or conductor.can_reach_source():
            return ""
        if member.awaits_confirmation:
            return format_waiting_run(name, conductor.link.source.name)
        retry_advice = f"`mirrorbook failover run {name} --mode unplanned` goes on from here if it is lost"
        return f"kept: the source does not answer; {retry_advice}, `failover abort {name}` if not"
