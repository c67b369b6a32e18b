"""Failback: from the new primary home to the old source, and protected again. Same shape as a failover.

Two approvals: one for what is discarded on the old source, one for the planned failover of the reverse mirror that
brings applications home. Between them applications go on writing on the new primary, for as long as people like.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from mirror_core.decide import failback as decision
from mirror_core.decide.acls import denial
from mirror_core.decide.failback import FailbackView, NewPrimary, OldSource, Strategy
from mirror_core.decide.failover import Decision
from mirror_core.decide.steps import Need, needing, point_of_no_return
from mirror_core.decide.view import Topic
from mirror_core.evidence.run_report import write_run_report
from mirror_core.kafka.acls import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition, reverse_name
from mirror_core.model.run import Plan, Run, RunKind, RunState, StepRecord
from mirror_core.runbook.conductor import Conductor
from mirror_core.runbook.failback_steps import FailbackSteps, reverse_link
from mirror_core.runbook.failover import PLAN_S, Failover
from mirror_core.runbook.observe import CALL_S, SIDE_S, Ask
from mirror_core.state.journal import Journal
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.topic import read_state
from mirror_core.state.writer import StateWriter

POINT_OF_NO_RETURN: Final = point_of_no_return(RunKind.FAILBACK)
AT_HOME: Final = needing(RunKind.FAILBACK, Need.HOME)
"""Steps that wait until the failover of the reverse mirror is done."""


class Failback(Conductor):
    """One mirror's way home. `link` is the mirror that was failed over, from the old source to the new primary."""

    KIND = RunKind.FAILBACK

    def decide(self, strategy: Strategy | None = None) -> Decision:
        """The plan, and every reason why it may not be run now."""
        return self._decide(read_state(self.link.destination, timeout_s=PLAN_S), strategy)

    def plan(self, strategy: Strategy | None = None) -> Plan:
        """The plan alone: also for what may not be run."""
        return self.decide(strategy).plan

    def begin(self, plan_hash: str, strategy: Strategy | None = None) -> Run:
        """Open a run of the plan with this hash. Refused when it may not be run, or is another plan by now."""
        with self._control() as writer:
            return self._open(writer, self._decide(writer.state, strategy), plan_hash)

    def step(self, run_id: str, name: str) -> StepRecord:
        """Take one step; at once when it is done already. Refused when an earlier one is not."""
        with self._control() as writer:
            return self._step(writer, self._journal(writer, run_id), name)

    def drive(self, run_id: str) -> Run:
        """Take all steps that can be taken: those that need applications at home once they are.

        The run that comes back is RUNNING while the reverse mirror's failover is due: see `home`.
        """
        with self._control() as writer:
            journal = self._journal(writer, run_id)
            while (name := journal.next()) is not None:
                if name in AT_HOME and not self.is_home(journal.run):
                    break
                self._step(writer, journal, name)
            return self._finish(journal) if journal.next() is None else journal.run

    def abort(self, run_id: str) -> Run:
        """Give up before anything on the old source was changed; applications stay where they are."""
        with self._control() as writer:
            journal = self._journal(writer, run_id)
            if journal.run.state is RunState.DONE or journal.begun(POINT_OF_NO_RETURN):
                raise Refused(
                    f"run {run_id}: abort",
                    [
                        f"step {POINT_OF_NO_RETURN} has begun: {self.link.source.name} is being changed. "
                        "Resume the run; applications stay where they are until the failover home is approved"
                    ],
                )
            return journal.end(RunState.ABORTED)

    def home(self) -> Failover:
        """The failover that brings applications home; to be planned, approved and driven once `catch_up` is done."""
        return Failover(reverse_link(self.link), self.services, started_by=self.started_by, say=self._say)

    def is_home(self, run: Run) -> bool:
        """Whether that failover is done."""
        state = read_state(self.link.source)
        return any(
            r.plan.mirror == reverse_name(self.link.mirror.name)
            and r.plan.kind is RunKind.FAILOVER
            and r.state is RunState.DONE
            and r.started_ms >= run.started_ms
            for r in state.runs.values()
        )

    # -- inside --------------------------------------------------------------------------------------------------

    def _step(self, writer: StateWriter, journal: Journal, name: str) -> StepRecord:
        steps = FailbackSteps(self.link, self.services, writer, journal)
        record = self._perform(journal, name, lambda: steps.act(name))
        if journal.next() is None:
            self._finish(journal)
        return record

    def _finish(self, journal: Journal) -> Run:
        if journal.run.ended_ms is None:
            steps = [r for r in (journal.record(name) for name in journal.steps) if r]
            statuses = journal.log.state.partitions.get(self.link.mirror.name, {})
            write_run_report(self.services.run_dir(journal.run_id), journal.run, steps, statuses)
        return journal.end(RunState.DONE)

    def _decide(self, state: State, strategy: Strategy | None) -> Decision:
        mirror = state.mirrors.get(self.link.mirror.name, self.link.mirror)
        link = replace(self.link, mirror=mirror)
        statuses = state.partitions.get(mirror.name, {})
        reverse = Ask(lambda: read_state(link.source, timeout_s=PLAN_S))
        old = Ask(lambda: _look_at_old(link, statuses))
        new = Ask(lambda: _look_at_new(link, statuses))
        deadline = time.monotonic() + SIDE_S
        seen_old, seen_new, seen_reverse = old.answer(deadline), new.answer(deadline), reverse.answer(deadline)
        active = [state.active_run(mirror.name)]
        if isinstance(seen_reverse, State):
            active.append(seen_reverse.active_run(reverse_name(mirror.name)))
        return decision.decide(
            FailbackView(
                mirror=mirror,
                statuses=statuses,
                old=seen_old,
                new=seen_new,
                active_runs=tuple(run.id for run in active if run),
                strategy=strategy,
            )
        )


def _look_at_old(link: Link, statuses: dict[Partition, PartitionStatus]) -> OldSource:
    with ClusterClient(link.source, timeout_s=CALL_S) as client:
        cluster_id, topics, ends = _logs(client, statuses)
        held = describe_acls(client)
        denials = {denial(topic) for topic in topics}
        fenced = not isinstance(held, AuthorizerOff) and denials <= held.entries
        return OldSource(cluster_id=cluster_id, topics=topics, log_ends=ends, fenced=fenced)


def _look_at_new(link: Link, statuses: dict[Partition, PartitionStatus]) -> NewPrimary:
    with ClusterClient(link.destination, timeout_s=CALL_S) as client:
        cluster_id, topics, ends = _logs(client, statuses)
        return NewPrimary(cluster_id=cluster_id, topics=topics, log_ends=ends)


def _logs(
    client: ClusterClient, statuses: dict[Partition, PartitionStatus]
) -> tuple[str, dict[str, Topic], dict[Partition, Offset]]:
    view = client.metadata({p.topic for p in statuses})
    topics = {name: Topic(id=v.id, partitions=len(v.partitions)) for name, v in view.topics.items()}
    present = [p for p in sorted(statuses) if p.topic in topics and p.index < topics[p.topic].partitions]
    return view.cluster_id, topics, list_offsets(client, present, Point.LOG_END) if present else {}
