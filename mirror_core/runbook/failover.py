"""Failover: plan, begin, take one step or all, abort. The same from the command line, from Airflow, after any crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mirror_core.decide import failover as decision
from mirror_core.decide.steps import point_of_no_return
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.model.run import Mode, Plan, Run, RunKind, RunState, StepRecord
from mirror_core.runbook.conductor import Conductor
from mirror_core.runbook.failover_steps import Steps, owner
from mirror_core.runbook.observe import observe
from mirror_core.state.journal import Journal
from mirror_core.state.records import PartitionRecord, Record, State
from mirror_core.state.table import Event, after
from mirror_core.state.topic import read_state
from mirror_core.state.writer import StateWriter
from mirror_core.sync.fence import lift_fence

POINT_OF_NO_RETURN: Final = point_of_no_return(RunKind.FAILOVER)
PLAN_S: Final = 3.0
"""Limit for reading the state topic when a plan is made."""


class Failover(Conductor):
    """One mirror's failover."""

    KIND = RunKind.FAILOVER

    def decide(self, mode: Mode) -> decision.Decision:
        """The plan, and every reason why it may not be run now. Within seconds, also when the source is dead."""
        return self._decide(read_state(self.link.destination, timeout_s=PLAN_S), mode)

    def plan(self, mode: Mode) -> Plan:
        """The plan alone: also for what may not be run."""
        return self.decide(mode).plan

    def begin(self, plan_hash: str, mode: Mode = Mode.PLANNED) -> Run:
        """Open a run of the plan with this hash. Refused when it may not be run, or is another plan by now."""
        with self._control() as writer:
            return self._open(writer, self._decide(writer.state, mode), plan_hash)

    def step(self, run_id: str, name: str) -> StepRecord:
        """Take one step; at once when it is done already. Refused when an earlier one is not."""
        with self._control() as writer:
            return self._step(writer, run_id, name)

    def drive(self, run_id: str) -> Run:
        """Take all steps that are not done, or finish an abort that was begun: also the way to resume."""
        with self._control() as writer:
            journal = self._journal(writer, run_id)
            if journal.run.state is RunState.ABORTING:
                return self._abort(writer, journal)
            while (name := journal.next()) is not None:
                self._step(writer, run_id, name)
            return self._finish(writer, journal)

    def abort(self, run_id: str) -> Run:
        """Before promotion: lift the fence, let the mirror go on, close the run. Refused afterwards."""
        with self._control() as writer:
            return self._abort(writer, self._journal(writer, run_id))

    # -- inside --------------------------------------------------------------------------------------------------

    def _decide(self, state: State, mode: Mode) -> decision.Decision:
        mirror = state.mirrors.get(self.link.mirror.name, self.link.mirror)
        return decision.decide(observe(replace(self.link, mirror=mirror), state, mode))

    def _step(self, writer: StateWriter, run_id: str, name: str) -> StepRecord:
        journal = self._journal(writer, run_id)
        link = replace(self.link, mirror=writer.state.mirrors[self.link.mirror.name])
        steps = Steps(link, self.services, writer, journal)
        if name == POINT_OF_NO_RETURN and not journal.begun(name):
            journal.check_turn(name)
            steps.check_approval()
        record = self._perform(journal, name, lambda: steps.act(name))
        if journal.next() is None:
            self._finish(writer, journal)
        return record

    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        if journal.run.ended_ms is None:
            self._release_lease(writer, journal.run_id)
        return journal.end(RunState.DONE)

    def _abort(self, writer: StateWriter, journal: Journal) -> Run:
        run = journal.run
        if run.state is RunState.ABORTED:
            return run
        if run.state is RunState.DONE or journal.begun(POINT_OF_NO_RETURN):
            raise Refused(
                f"run {run.id}: abort",
                [
                    f"step {POINT_OF_NO_RETURN} has begun: applications may have written on "
                    f"{self.link.destination.name}; only a failback leads back. Resume the run, then "
                    f"`mirrorbook failback plan {self.link.mirror.name}`"
                ],
            )
        if run.state is not RunState.ABORTING:
            writer.put(replace(run, state=RunState.ABORTING))
        with ClusterClient(self.link.source) as source:
            lift_fence(self.link.mirror, writer, source)
        writer.put(*self._mirroring_again(writer.state, run))
        self._release_lease(writer, run.id)
        self._say("aborted: the fence is lifted, the mirror goes on")
        return journal.end(RunState.ABORTED)

    def _mirroring_again(self, state: State, run: Run) -> list[Record]:
        """The mirror and its partitions as they were when the run began."""
        name = self.link.mirror.name
        desired = Desired(run.plan.bound.get("desired", Desired.STARTED))
        well = (Event.ALIGNED, Event.PAUSE, Event.QUIET) if desired is Desired.PAUSED else (Event.ALIGNED,)
        records: list[Record] = [replace(state.mirrors[name], desired=desired)]
        for status in state.partitions.get(name, {}).values():
            if status.state in (PartitionState.STOPPED, PartitionState.STOPPING):
                undone = after(status.state, Event.ABORT, *((Event.FAIL,) if status.reason else well))
                records.append(PartitionRecord(name, replace(status, state=undone, lmo=None)))
        return records

    def _release_lease(self, writer: StateWriter, run_id: str) -> None:
        # Read anew: the drain took the lease under the data plane's own transactional id, behind this writer's back.
        lease = writer.refresh().leases.get(self.link.mirror.name)
        if lease is not None and lease.owner == owner(run_id) and not lease.released:
            writer.put(replace(lease, released=True, beat_ms=now_ms()))
