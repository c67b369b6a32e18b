"""Failover: plan, begin, take one step or all, abort. The same from the command line, from Airflow, after any crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mirror_core.decide import failover as decision
from mirror_core.decide.steps import point_of_no_return
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.clock import now_ms
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.model.run import Evidence, Mode, Run, RunKind, RunState
from mirror_core.runbook.conductor import Conductor
from mirror_core.runbook.failover_steps import Steps, owner
from mirror_core.runbook.observe import observe
from mirror_core.state.journal import Journal
from mirror_core.state.records import PartitionRecord, Record, State
from mirror_core.state.table import Event, after
from mirror_core.state.writer import StateWriter
from mirror_core.sync.fence import lift_fence


class Failover(Conductor[Mode]):
    """One mirror's failover. Planned unless the operator says otherwise."""

    KIND = RunKind.FAILOVER

    def _decide(self, state: State, choice: Mode | None) -> decision.Decision:
        mirror = state.mirrors.get(self.link.mirror.name, self.link.mirror)
        return decision.decide(observe(replace(self.link, mirror=mirror), state, choice or Mode.PLANNED))

    def _act(self, writer: StateWriter, journal: Journal, name: str) -> Callable[[], Evidence]:
        link = replace(self.link, mirror=writer.state.mirrors[self.link.mirror.name])
        steps = Steps(link, self.services, writer, journal)
        if name == point_of_no_return(self.KIND) and not journal.begun(name):
            steps.check_approval()
        return steps.act(name)

    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        if journal.run.ended_ms is None:
            self._release_lease(writer, journal.run_id)
        return journal.end(RunState.DONE)

    def _no_way_back(self) -> str:
        return (
            f"applications may have written on {self.link.destination.name}; only a failback leads back. Resume the "
            f"run, then `mirrorbook failback plan {self.link.mirror.name}`"
        )

    def _abort(self, writer: StateWriter, journal: Journal) -> Run:
        """Lift the fence, let the mirror go on."""
        run = journal.run
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
        well = (Event.ALIGNED, Event.PAUSE, Event.QUIET) if run.desired is Desired.PAUSED else (Event.ALIGNED,)
        records: list[Record] = [replace(state.mirrors[name], desired=run.desired)]
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
