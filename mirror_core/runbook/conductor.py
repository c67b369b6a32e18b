"""What failover and failback share: open a run, take its steps, abort it.

A process that acts takes the mirror's control transactional id first. Kafka fences the previous holder (KIP-98), so
two conductors never act at once: the earlier one fails at its next journal write. A process that only reads, or would
be refused, takes nothing over: that would cost a healthy run its conductor.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import ClassVar, Generic, TypeVar

from mirror_core.decide.approvals import (
    ApprovalPolicy,
    begun_by,
    expired,
    is_in_effect,
    other_plan,
    taken_up,
    unapproved,
    used_up,
    verified,
)
from mirror_core.decide.drills import is_drills
from mirror_core.decide.failover import Decision
from mirror_core.decide.steps import names, point_of_no_return
from mirror_core.mirrors.door import insistent
from mirror_core.model.chronicle import Kind
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, LostOwnership, Refused
from mirror_core.model.limits import LIMITS
from mirror_core.model.run import AIRFLOW, Approval, Evidence, Plan, Run, RunKind, RunState, StepRecord, StepState
from mirror_core.runbook.at_work import at_work
from mirror_core.runbook.bundles import keep_or_say, signer_of
from mirror_core.runbook.services import Services
from mirror_core.state.approvals import recorded_approvals
from mirror_core.state.journal import Journal, begun, check_turn, find_run, taken, told
from mirror_core.state.link import Link
from mirror_core.state.pulse import Watch, beating
from mirror_core.state.pulse import begun_by as begun_by_process
from mirror_core.state.records import Forget, Record, State
from mirror_core.state.topic import read_state, read_whole
from mirror_core.state.turning import turned
from mirror_core.state.writer import StateWriter, control_id
from mirror_core.sync.identity import source_answers

Choice = TypeVar("Choice")


class Conductor(ABC, Generic[Choice]):
    """Runs of one kind of one mirror. All state is in the destination's state topic."""

    KIND: ClassVar[RunKind]
    DISTURBS: ClassVar[str]

    def __init__(
        self,
        link: Link,
        services: Services,
        *,
        started_by: str,
        say: Callable[[str], None] = lambda line: None,
        gate_limit_s: float | None = None,
        leave_behind: bool = False,
    ) -> None:
        """`gate_limit_s`: refuse to fence if the gate would take longer."""
        self.link = link
        self.services = services
        self.started_by = started_by
        self._say = say
        self._gate_limit_s, self._leave = gate_limit_s, leave_behind
        self.watches: dict[str, Watch] = {}  # of runs conducted elsewhere

    def decide(self, choice: Choice | None = None) -> Decision:
        """With every reason against the plan. Takes seconds even if a cluster is dead."""
        return self._decide(read_state(self.link.destination, timeout_s=LIMITS.planned_state_s), choice)

    def plan(self, choice: Choice | None = None) -> Plan:
        return self.decide(choice).plan

    @at_work()
    @insistent
    def begin(
        self,
        plan_hash: str,
        choice: Choice | None = None,
        *,
        approved_by: str | Sequence[Approval] | ApprovalPolicy = "",
        part_of: str = "",
        joint_hash: str = "",
        silent: bool = False,
    ) -> Run:
        """Open a run of the plan with this hash. Refused if it changed or may not run.

        Retried if an earlier sync takes the mirror's state over. `approved_by`: a person asked here, or the approvals
        that the state topic must hold. `part_of`: a set failover, approved as `joint_hash`. `silent`: the given-up
        source did not answer.
        """
        state = read_whole(self.link.destination)
        under_way = state.active_run(self.link.mirror.name)
        if under_way and not self._may_continue(under_way, choice):
            raise Refused(self._title(), [f"run {under_way.id} holds this mirror: resume or abort it first"])
        if under_way:  # check first: a refusal must not take the run over
            self._check_begin(self._decide_anew(state, choice, under_way, silent=silent), plan_hash)
            self._approvals(state, approved_by, joint_hash or plan_hash, alone=not part_of)
        with self._control() as writer:
            found = self._decide_anew(writer.state, choice, under_way, silent=silent)
            return self._open(writer, found, plan_hash, approved_by, part_of, joint_hash, silent=silent)

    def step(self, run_id: str, name: str) -> StepRecord:
        return self.take(run_id, (name,))[0]

    @at_work()
    def take(self, run_id: str, wanted: Sequence[str], *, agreed_by: str = "") -> tuple[StepRecord, ...]:
        """Take consecutive steps. Done ones are skipped.

        `agreed_by`: who confirmed them just now, if anybody was asked.
        """
        state = read_whole(self.link.destination)
        run, steps = self._mine(state, run_id), steps_of(self._mine(state, run_id))
        done = [r for r in (state.steps.get((run_id, name)) for name in wanted) if r and r.state is StepState.DONE]
        # The last step also closes the run, which a crash may have prevented.
        if len(done) == len(wanted) and (run.ended_ms is not None or wanted[-1] != steps[-1]):
            self._refuse_past(state, run)
            return tuple(done)
        check_turn(state, run_id, steps, wanted[min(len(done), len(wanted) - 1)])
        with self._conducting(run_id) as (writer, journal):
            self._agreed(writer, journal, agreed_by)
            return tuple(self._take(writer, journal, name) for name in wanted)

    @at_work()
    def drive(self, run_id: str, *, agreed_by: str = "") -> Run:
        """Take all possible steps, or finish an abort. Also resumes."""
        run = self._mine(read_whole(self.link.destination), run_id)
        if run.state in (RunState.ABORTED, RunState.SUPERSEDED):
            what = run.note or "look at a new plan, and begin that"
            raise Refused(f"run {run_id}: resume", [f"the run is {run.state}: {what}"])
        if run.ended_ms is not None:
            return run
        with self._conducting(run_id) as (writer, journal):
            if journal.run.state is RunState.ABORTING:
                return self._evident(writer, self._abort(writer, journal))
            self._agreed(writer, journal, agreed_by)
            closed = False
            while (name := journal.next()) is not None:
                if not self._ready(journal.run, name):
                    return journal.run
                self._take(writer, journal, name)
                closed = journal.next() is None
            ended = self._finish(writer, journal)
            return ended if closed else self._evident(writer, ended)

    @at_work()
    def abort(self, run_id: str, *, only_mine: bool = False) -> Run:
        """Give up and undo. Refused from the point of no return on.

        `only_mine`: raise LostOwnership if another conductor has the run by now.
        """
        run = self._check_abort(read_whole(self.link.destination), run_id, only_mine)
        if run.state is RunState.ABORTED:
            return run
        with self._conducting(run_id, lambda state: self._check_abort(state, run_id, only_mine)) as (writer, journal):
            if journal.run.state is RunState.ABORTED:
                return journal.run
            return self._evident(writer, self._abort(writer, journal))

    def taken_up(self, plan_hash: str) -> Run | None:
        state = read_whole(self.link.destination)
        own = begun_by(state.runs.values(), self.link.mirror.name, self.KIND, self.started_by)
        standing = [run.id for run in own if run.state is RunState.DONE and self.in_effect(state, run)]
        return taken_up(own, plan_hash, standing)

    def in_effect(self, state: State, run: Run) -> bool:
        return is_in_effect(run, state.runs.values(), state.debts.get(run.plan.mirror))

    def active(self) -> Run | None:
        return read_state(self.link.destination).active_run(self.link.mirror.name)

    def status(self, run_id: str) -> tuple[Run, tuple[StepRecord, ...]]:
        state = read_state(self.link.destination)
        run = self._mine(state, run_id)
        return run, tuple(state.steps[run_id, s] for s in steps_of(run) if (run_id, s) in state.steps)

    @at_work()
    def refuse_conducted(self, run_id: str, title: str, *, take_over: bool = False, quietly: bool = False) -> None:
        """Refused while another process conducts the run.

        Watches heartbeats for 30 s, unless the run was released or its process certainly ended.
        """
        watch = self.watches.setdefault(run_id, Watch(run_id))
        say: Callable[[str], None] = (lambda line: None) if quietly else self._say
        found = watch.found(lambda: read_whole(self.link.destination), say, take_over=take_over)
        if why := found.refusal(take_over=take_over):
            raise Refused(title, [why])

    def refuse_expired(self, run_id: str, agreed: Sequence[Approval]) -> None:
        """Refused if approvals are too old and nothing irreversible was done yet."""
        run, steps = self.status(run_id)
        why = expired(run, agreed, steps, now_ms())
        if why and run.state is RunState.RUNNING and not self.disturbs(run):
            raise Refused(f"run {run_id} {self.DISTURBS}", [why])

    def refuse_others(self, run_id: str) -> None:
        begun_by = self.status(run_id)[0].started_by
        if begun_by != self.started_by:
            raise Refused(f"run {run_id}", [f"{begun_by} has begun it, and this is {self.started_by}"])

    def source_answers(self) -> bool:
        return source_answers(self.link)

    # -- what differs --------------------------------------------------------------------------------------------

    @abstractmethod
    def disturbs(self, run: Run) -> bool:
        """Whether applications may have noticed the run: then nobody is asked again."""

    @abstractmethod
    def _decide(self, state: State, choice: Choice | None) -> Decision: ...

    @abstractmethod
    def _act(self, writer: StateWriter, journal: Journal, name: str) -> Callable[[], Evidence]: ...

    @abstractmethod
    def _abort(self, writer: StateWriter, journal: Journal) -> Run: ...

    @abstractmethod
    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        """Closing a run twice changes nothing."""

    @abstractmethod
    def _no_way_back(self) -> str: ...

    def _decide_anew(self, state: State, choice: Choice | None, held: Run | None, *, silent: bool) -> Decision:
        return self._decide(state, choice)

    def _ready(self, run: Run, name: str) -> bool:
        return True

    def _may_continue(self, under_way: Run, choice: Choice | None) -> bool:
        return False

    def _more_of(self, run: Run, found: Decision, state: State) -> tuple[Run, tuple[Record | Forget, ...]]:
        return run, ()

    # -- inside --------------------------------------------------------------------------------------------------

    def _control(self) -> StateWriter:
        return StateWriter(self.link.destination, control_id(self.link.mirror.name))

    @contextmanager
    def _conducting(
        self, run_id: str, may: Callable[[State], object] = lambda state: None
    ) -> Iterator[tuple[StateWriter, Journal]]:
        if run_id in self.watches:
            try:
                self.refuse_conducted(run_id, f"run {run_id}: take over")
            except Refused as error:  # another conductor was quicker
                raise LostOwnership(str(error)) from None
        with self._control() as writer:
            may(writer.state)
            run = self._mine(writer.state, run_id)
            with beating(writer, run_id, self.started_by, taken(writer.state, run, self.started_by)) as stop:
                self.watches.pop(run_id, None)
                yield writer, Journal(writer, run_id, steps_of(run), stop)

    def _title(self) -> str:
        return f"{self.KIND} of mirror {self.link.mirror.name}"

    def _check_begin(self, found: Decision, plan_hash: str) -> None:
        reasons = (*found.reasons, *other_plan(found.plan, plan_hash))
        if reasons:
            raise Refused(self._title(), reasons)
        self.services.check_evidence()
        signer_of(self.link.config)

    def _approvals(
        self, state: State, approved_by: str | Sequence[Approval] | ApprovalPolicy, approves: str, *, alone: bool
    ) -> str | tuple[Approval, ...]:
        """Refused if approvals are too few or already used. `standalone`: no set, which checks reuse itself."""
        mirror = self.link.mirror.name
        if not isinstance(approved_by, ApprovalPolicy):
            if self.started_by.startswith(AIRFLOW) and not is_drills(self.link.mirror):
                raise Refused(self._title(), ["Airflow begins nothing without approvals in the state topic"])
            return approved_by if isinstance(approved_by, str) else tuple(approved_by)
        recorded = recorded_approvals(state, mirror, approved_by.question)
        people = verified(approved_by, recorded)
        before = [run for run in state.runs.values() if run.plan.mirror == mirror] if alone else []
        spent = used_up(before, people)
        if reasons := spent or unapproved(approved_by, recorded, approves, now_ms()):
            raise Refused(self._title(), reasons)
        return people

    def _refuse_past(self, state: State, run: Run) -> None:
        """Refused if the run is no longer in effect, such as when old Airflow tasks are cleared."""
        if run.ended_ms is not None and not self.in_effect(state, run):
            reason = f"it has ended, and is not what {run.plan.mirror} is in any more: nothing is done by it"
            raise Refused(f"run {run.id}", [reason])

    def _open(
        self,
        writer: StateWriter,
        found: Decision,
        plan_hash: str,
        approved_by: str | Sequence[Approval] | ApprovalPolicy,
        part_of: str,
        joint_hash: str,
        *,
        silent: bool,
    ) -> Run:
        self._check_begin(found, plan_hash)
        approved = self._approvals(writer.state, approved_by, joint_hash or plan_hash, alone=not part_of)
        started = now_ms()
        people = () if isinstance(approved, str) else approved
        run = Run(
            id=self._new_id(started),
            plan=found.plan,
            plan_hash=found.plan.hash,
            state=RunState.RUNNING,
            started_by=self.started_by,
            started_ms=started,
            desired=writer.state.mirrors[self.link.mirror.name].desired,
            conducted_by=self.started_by,
            approved_by=approved if isinstance(approved, str) else ", ".join(one.name for one in people),
            approvals=people,
            part_of=part_of,
            source_silent=silent,
            homecoming=writer.state.mirrors[self.link.mirror.name].homecoming,
        )
        run, more = self._more_of(run, found, writer.state)
        writer.put(run, begun(writer.state, run), begun_by_process(run.id, self.started_by), *more)
        return run

    def _new_id(self, started_ms: int) -> str:
        when = datetime.fromtimestamp(started_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        return f"{self.link.mirror.name}-{self.KIND}-{when}-{secrets.token_hex(2)}"

    def _mine(self, state: State, run_id: str) -> Run:
        """Raises BadRequest if it belongs to another mirror or kind."""
        run = find_run(state, run_id)
        if run.plan.mirror != self.link.mirror.name or run.plan.kind is not self.KIND:
            raise BadRequest(f"run {run_id} is a {run.plan.kind} of mirror {run.plan.mirror}")
        return run

    def _take(self, writer: StateWriter, journal: Journal, name: str) -> StepRecord:
        """The last step also closes the run."""
        journal.check_turn(name)
        if journal.done(name):
            record = journal.perform(name, dict)
        else:
            act = self._act(writer, journal, name)
            self._say(f"{name} ...")
            record = journal.perform(name, act)
            self._say(f"{name} done in {((record.ended_ms or 0) - record.started_ms) / 1000:.1f} s")
        if journal.next() is None:
            self._evident(writer, self._finish(writer, journal))
        return record

    def _agreed(self, writer: StateWriter, journal: Journal, person: str) -> None:
        if person:
            writer.put(told(writer.state, journal.run, Kind.AGREED, {"by": person}))

    def _evident(self, writer: StateWriter, run: Run) -> Run:
        keep_or_say(self.services, self.link.config, run, writer.state, self._say)
        return run

    def _check_abort(self, state: State, run_id: str, only_mine: bool) -> Run:
        run = self._mine(state, run_id)
        if only_mine and run.conducted_by != self.started_by:
            raise LostOwnership(f"run {run_id} is conducted by {run.conducted_by} now, who ends it: nothing is aborted")
        if run.state is RunState.SUPERSEDED:
            raise Refused(f"run {run_id}: abort", [run.note])
        if run.state is RunState.DONE or turned(state, run):
            turning = point_of_no_return(self.KIND, run.plan.mode)
            raise Refused(f"run {run_id}: abort", [f"step {turning} has begun: {self._no_way_back()}"])
        return run


def steps_of(run: Run) -> tuple[str, ...]:
    return names(run.plan.kind, run.plan.mode)
