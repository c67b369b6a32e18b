"""Failover: plan, begin, take steps, abort. The same from the CLI, from Airflow, after any crash."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mirror_core.decide import failover as decision
from mirror_core.decide.approvals import answers_in_part, come_back, is_in_effect
from mirror_core.decide.conducting import Sign
from mirror_core.decide.failover import AUTHORIZER
from mirror_core.decide.leaderless import LEFT, leaderless
from mirror_core.decide.scope import NOTHING, Scope
from mirror_core.decide.steps import standing_still
from mirror_core.decide.view import View
from mirror_core.decide.without_source import WithoutSource, without_source
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import AclPurpose
from mirror_core.model.checkpoint import Keepable
from mirror_core.model.chronicle import Kind
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Refused
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import Desired, Lease, PartitionState
from mirror_core.model.names import ClusterName
from mirror_core.model.ruling import Barred
from mirror_core.model.run import Evidence, Fact, Mode, Run, RunKind, RunState, StepState
from mirror_core.model.standing import Owed
from mirror_core.runbook.at_work import at_work
from mirror_core.runbook.checkpoints import Drained, Unreplicated
from mirror_core.runbook.conductor import Conductor
from mirror_core.runbook.counting import stay
from mirror_core.runbook.failover_steps import Steps
from mirror_core.runbook.giving_up import lift_or_owe
from mirror_core.runbook.lost_steps import LostSteps
from mirror_core.runbook.observe import observe
from mirror_core.runbook.promotion import owner
from mirror_core.runbook.unfencing import known_to_stand
from mirror_core.runbook.without_source import as_if_dead
from mirror_core.state.journal import Journal, checkpoint, ended, kept_in, told
from mirror_core.state.pulse import conducted
from mirror_core.state.records import Forget, PartitionRecord, Record, State
from mirror_core.state.table import Event, after
from mirror_core.state.topic import read_state
from mirror_core.state.turning import Returned, turned
from mirror_core.state.writer import StateWriter, data_id
from mirror_core.sync.closings import Shut, has_shut
from mirror_core.sync.fence import lift_denials
from mirror_core.sync.identity import source_is_there


class Failover(Conductor[Mode]):
    KIND = RunKind.FAILOVER
    DISTURBS = "stops applications"

    def _decide(self, state: State, choice: Mode | None) -> decision.Decision:
        mode = choice or Mode.PLANNED
        return decision.decide(self._continuing(self._look(state, mode), state))

    def foresee(self) -> tuple[decision.Decision, WithoutSource]:
        state = read_state(self.link.destination, timeout_s=LIMITS.planned_state_s)
        seen = self._look(state, Mode.PLANNED)
        view = self._continuing(as_if_dead(seen, self.link, state, conductor=self.started_by), state)
        return decision.decide(seen), without_source(decision.decide(view), view, seen)

    def _look(self, state: State, mode: Mode) -> View:
        mirror = state.mirrors.get(self.link.mirror.name, self.link.mirror)
        view = observe(replace(self.link, mirror=mirror), state, mode, conductor=self.started_by)
        return replace(view, left=frozenset(leaderless(view))) if self._leave else view

    def _continuing(self, view: View, state: State) -> View:
        before = state.active_run(view.mirror.name)
        # Past the point of no return it is resumed, without the source.
        if before is None or not self._may_continue(before, view.mode) or turned(state, before):
            return view
        by = conducted(state, before)
        return replace(
            view,
            mirror=replace(view.mirror, desired=before.desired),
            active_run=None,
            continues=before.id,
            conducted=str(by) if by.sign is Sign.HEARD else "",
            drained=drained_behind_fence(state, before) and known_to_stand(self.services, before.id),
        )

    def anew(self, run: Run) -> decision.Decision:
        state = read_state(self.link.destination, timeout_s=LIMITS.planned_state_s)
        mirror = replace(state.mirrors.get(self.link.mirror.name, self.link.mirror), desired=run.desired)
        view = observe(replace(self.link, mirror=mirror), state, run.plan.mode, conductor=self.started_by)
        scope = kept_in(state, run.id, "begin", Scope) or NOTHING
        return decision.decide(replace(view, active_run=None, left=frozenset(scope.left)))

    def decide_lost(self) -> tuple[decision.Decision, bool]:
        """(the unplanned plan, whether no source broker answers)"""
        found, answers = self._beside_the_source(lambda: self.decide(Mode.UNPLANNED))
        if answers and not found.source_seen:
            warnings = (answers_in_part(self.link.source.name), *found.plan.warnings)
            found = replace(found, plan=replace(found.plan, warnings=warnings))
        return found, not answers

    def _decide_anew(self, state: State, choice: Mode | None, held: Run | None, *, silent: bool) -> decision.Decision:
        """Refused if a source that was given up as silent answers by now, even in part."""
        if not silent:
            return self._decide(state, choice)
        found, answers = self._beside_the_source(lambda: self._decide(state, choice))
        source, again = self.link.source.name, f"failover run {self.link.mirror.name}"
        if reasons := come_back(source, again, silent=silent, answers=answers, seen=found.source_seen, held=held):
            raise Refused(self._title(), reasons)
        return found

    def source_is_there(self) -> bool:
        return source_is_there(self.link)

    def _beside_the_source(self, decide: Callable[[], decision.Decision]) -> tuple[decision.Decision, bool]:
        """Decide while the source is probed: a dead one costs seconds."""
        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(self.source_is_there)
            found = decide()
            return found, found.source_seen or answers.result()

    @at_work()
    def leave_behind(self, run_id: str) -> None:
        """A person confirms to leave records behind. Refused unless the run has stopped for it."""
        said = f"run {run_id}: --leave-behind"
        with self._conducting(run_id) as (writer, journal):
            asked = self._asked_for(writer, journal)
            if asked is None:
                raise Refused(said, ["it has not stopped for records that could be left behind: resume it without"])
            step, word = asked
            body = {"by": self.started_by, "left_behind": True, "step": step}
            writer.put(checkpoint(run_id, step, word), told(writer.state, journal.run, Kind.AGREED, body))

    def _asked_for(self, writer: StateWriter, journal: Journal) -> tuple[str, Keepable] | None:
        if journal.run.state is not RunState.RUNNING or turned(writer.state, journal.run):
            return None
        if journal.next() == "settle":
            held = journal.kept("settle", Unreplicated)
            return None if held is None else ("settle", replace(held, left_behind=True))
        returned = journal.kept("promote", Returned)
        return None if returned is None else ("promote", replace(returned, left_behind=True, said_ms=now_ms()))

    def in_effect(self, state: State, run: Run) -> bool:
        """A reverse failover is in effect as long as its failback."""
        if not run.homecoming:
            return super().in_effect(state, run)
        there = read_state(self.link.source)
        failback = there.runs.get(run.homecoming)
        if failback is None:
            return False
        known = is_in_effect(failback, there.runs.values(), there.debts.get(failback.plan.mirror))
        return failback.state is RunState.RUNNING or (failback.state is RunState.DONE and known)

    def disturbs(self, run: Run) -> bool:
        return disturbing(read_state(self.link.destination), run, self.link.source.name)

    def _may_continue(self, under_way: Run, choice: Mode | None) -> bool:
        """A planned run whose source died becomes an unplanned one, with its own plan and approval."""
        planned = under_way.plan.kind is RunKind.FAILOVER and under_way.plan.mode is Mode.PLANNED
        return choice is Mode.UNPLANNED and planned and under_way.state is RunState.RUNNING

    def _more_of(self, run: Run, found: decision.Decision, state: State) -> tuple[Run, tuple[Record | Forget, ...]]:
        more: list[Record | Forget] = [checkpoint(run.id, "begin", found.scope)]
        before, owed = state.active_run(run.plan.mirror), state.debts.get(run.plan.mirror)
        left_shut = owed is not None and owed.owed is Owed.UNFENCE and owed.by_command
        if left_shut or (before is not None and has_shut(state, before)):  # this run's abort must open it
            more.append(checkpoint(run.id, "begin", Shut(cluster=self.link.source.name)))
        if before is None:
            return run, tuple(more)
        more += [Forget(c) for c in state.checkpoints.values() if c.run == before.id]
        note = f"its source died; run {run.id} goes on from where it was"
        before = replace(before, state=RunState.SUPERSEDED, ended_ms=run.started_ms, note=note)
        more += [before, ended(state, before)]
        return replace(run, continues=before.id, desired=before.desired), tuple(more)

    def _act(self, writer: StateWriter, journal: Journal, name: str) -> Callable[[], Evidence]:
        link = replace(self.link, mirror=writer.state.mirrors[self.link.mirror.name])
        mode = journal.run.plan.mode
        steps = (Steps if mode is Mode.PLANNED else LostSteps)(link, self.services, writer, journal, self._say)
        if isinstance(steps, Steps) and name == standing_still(self.KIND)[0]:
            rest = steps.close_in(self._gate_limit_s)
            if rest is not None:
                self._say(f"left to compare behind the fence: {rest}")
        return steps.act(name)

    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        if journal.run.ended_ms is None:
            self._release_lease(writer, journal.run_id)
        return journal.end(RunState.DONE, stay=stay(journal.run))

    def _no_way_back(self) -> str:
        return (
            f"applications may have written on {self.link.destination.name}; only a failback leads back. Resume the "
            f"run, then `mirrorbook failback plan {self.link.mirror.name}`"
        )

    def _abort(self, writer: StateWriter, journal: Journal) -> Run:
        """A silent source gets a pending lift."""
        run, mirror = journal.run, self.link.mirror
        note = lift_or_owe(self.link, writer, run)
        with ClusterClient(self.link.destination) as destination:
            lift_denials(mirror, writer, destination)
        writer.put(*self._mirroring_again(writer.state, run))
        self._release_lease(writer, run.id)
        self._say(f"aborted: {note or 'the fence is lifted'}; the mirror goes on")
        return journal.end(RunState.ABORTED, note)

    def _mirroring_again(self, state: State, run: Run) -> list[Record]:
        name = self.link.mirror.name
        well = (Event.ALIGNED, Event.PAUSE, Event.QUIET) if run.desired is Desired.PAUSED else (Event.ALIGNED,)
        records: list[Record] = [replace(state.mirrors[name], desired=run.desired)]
        for status in state.partitions.get(name, {}).values():
            if status.state in (PartitionState.STOPPED, PartitionState.STOPPING):
                undone = after(status.state, Event.ABORT, *((Event.FAIL,) if status.reason else well))
                records.append(PartitionRecord(name, replace(status, state=undone, lmo=None)))
        return records

    def _release_lease(self, writer: StateWriter, run_id: str) -> None:
        # Refresh: a step took the lease with the data plane's transactional id.
        name = self.link.mirror.name
        if _held(writer.refresh().leases.get(name), run_id) is None:
            return
        # With the data plane's id: fences another conductor that may still drain.
        with StateWriter(self.link.destination, data_id(name)) as data:
            lease = _held(data.state.leases.get(name), run_id)
            if lease is not None:
                data.put(replace(lease, released=True, beat_ms=now_ms()))


def disturbing(state: State, run: Run, source: ClusterName) -> bool:
    if run.plan.mode is Mode.UNPLANNED:
        return turned(state, run)
    fence, debt = state.steps.get((run.id, standing_still(RunKind.FAILOVER)[0])), state.debts.get(run.plan.mirror)
    if fence is not None and fence.state is StepState.DONE:
        return True
    # An earlier run's pending lift is no fence of this run, whose first act is to delete it.
    theirs = debt is not None and debt.owed is Owed.UNFENCE
    ours = (e for e in state.ledger_of(run.plan.mirror) if e.purpose is AclPurpose.FENCE and e.cluster == source)
    return not theirs and (any(ours) or has_shut(state, run))


def _held(lease: Lease | None, run_id: str) -> Lease | None:
    return lease if lease is not None and lease.owner == owner(run_id) and not lease.released else None


def drained_behind_fence(state: State, run: Run) -> bool:
    """Whether everything on a fenced source was copied. Without a real fence it may have moved since."""
    if any(fact.name == LEFT for fact in run.plan.bound):
        return False
    fenced = any(Fact(AUTHORIZER, barred) in run.plan.bound for barred in (str(True), Barred.BY_COMMAND))
    return fenced and (run.id, "drain", Drained.__name__) in state.checkpoints
