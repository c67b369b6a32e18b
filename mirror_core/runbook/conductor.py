"""What a failover and a failback have in common: opening a run, its journal, taking steps, giving up.

Every process that acts takes over the mirror's control id first (KIP-98 fences whoever had it), so two conductors never
act at once: the one before learns at its next write to the journal that it has lost. Whoever only asks, or would be
refused anyway, takes over nothing: that would cost a healthy run its conductor.
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
"""What the operator chooses for the plan."""


class Conductor(ABC, Generic[Choice]):
    """One mirror's runs of one kind. What is known of them is in the destination's state topic."""

    KIND: ClassVar[RunKind]
    DISTURBS: ClassVar[str]
    """What a run of this kind does that needs an approval which is not too old."""

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
        """`gate_limit_s`: applications are not stopped where they would stand still longer than this for what is to be
        compared then; None: however long. `leave_behind`: by a person's word, what nobody leads on the source."""
        self.link = link
        self.services = services
        self.started_by = started_by
        self._say = say
        self._gate_limit_s, self._leave = gate_limit_s, leave_behind
        self.watches: dict[str, Watch] = {}  # of runs that are not conducted here yet

    def decide(self, choice: Choice | None = None) -> Decision:
        """The plan, and every reason why it may not be run now. Within seconds, also when a side is dead."""
        return self._decide(read_state(self.link.destination, timeout_s=LIMITS.planned_state_s), choice)

    def plan(self, choice: Choice | None = None) -> Plan:
        """The plan alone: also for what may not be run."""
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
        """Open a run of the plan with this hash. Refused when it may not be run, or is another plan by now.

        Tried again when a sync that had looked for a run before there was one takes the mirror's state over.
        `approved_by`: whoever was asked in this process; or which approvals the state topic has to hold. `part_of`: the
        failover of a set of mirrors that it belongs to, whose plans were approved as `joint_hash`. `silent`: the source
        was, that the plan gives up.
        """
        state = read_whole(self.link.destination)
        under_way = state.active_run(self.link.mirror.name)
        if under_way and not self._may_continue(under_way, choice):
            raise Refused(self._title(), [f"run {under_way.id} holds this mirror: resume or abort it first"])
        if under_way:  # what is refused anyway ends nobody's run
            self._check_begin(self._decide_anew(state, choice, under_way, silent=silent), plan_hash)
            self._approvals(state, approved_by, joint_hash or plan_hash, alone=not part_of)
        with self._control() as writer:
            found = self._decide_anew(writer.state, choice, under_way, silent=silent)
            return self._open(writer, found, plan_hash, approved_by, part_of, joint_hash, silent=silent)

    def step(self, run_id: str, name: str) -> StepRecord:
        """Take one step; at once when it is done already. Refused when an earlier one is not."""
        return self.take(run_id, (name,))[0]

    @at_work()
    def take(self, run_id: str, wanted: Sequence[str], *, agreed_by: str = "") -> tuple[StepRecord, ...]:
        """The same for steps that follow each other, in one go: those that are done are not taken again.

        `agreed_by`: who said that they may be taken now, if anybody was asked.
        """
        state = read_whole(self.link.destination)
        run, steps = self._mine(state, run_id), steps_of(self._mine(state, run_id))
        done = [r for r in (state.steps.get((run_id, name)) for name in wanted) if r and r.state is StepState.DONE]
        # The last step closes the run, which may be due although the step is done.
        if len(done) == len(wanted) and (run.ended_ms is not None or wanted[-1] != steps[-1]):
            self._refuse_past(state, run)
            return tuple(done)
        check_turn(state, run_id, steps, wanted[min(len(done), len(wanted) - 1)])
        with self._conducting(run_id) as (writer, journal):
            self._agreed(writer, journal, agreed_by)
            return tuple(self._take(writer, journal, name) for name in wanted)

    @at_work()
    def drive(self, run_id: str, *, agreed_by: str = "") -> Run:
        """Take all steps that can be taken, or finish an abort that was begun: also the way to resume."""
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
                closed = journal.next() is None  # the last step has closed the run
            ended = self._finish(writer, journal)
            return ended if closed else self._evident(writer, ended)

    @at_work()
    def abort(self, run_id: str, *, only_mine: bool = False) -> Run:
        """Give up, and undo what was done. Refused from the point of no return on.

        `only_mine`: LostOwnership when somebody else conducts the run by now, whose it then is to end it.
        """
        run = self._check_abort(read_whole(self.link.destination), run_id, only_mine)
        if run.state is RunState.ABORTED:
            return run
        with self._conducting(run_id, lambda state: self._check_abort(state, run_id, only_mine)) as (writer, journal):
            if journal.run.state is RunState.ABORTED:
                return journal.run
            return self._evident(writer, self._abort(writer, journal))

    def taken_up(self, plan_hash: str) -> Run | None:
        """The run that this conductor goes on with instead of beginning one by this plan; None: there is none."""
        state = read_whole(self.link.destination)
        own = begun_by(state.runs.values(), self.link.mirror.name, self.KIND, self.started_by)
        standing = [run.id for run in own if run.state is RunState.DONE and self.in_effect(state, run)]
        return taken_up(own, plan_hash, standing)

    def in_effect(self, state: State, run: Run) -> bool:
        """Whether a finished run is still what its mirror is in."""
        return is_in_effect(run, state.runs.values(), state.debts.get(run.plan.mirror))

    def active(self) -> Run | None:
        """The run that holds this mirror now."""
        return read_state(self.link.destination).active_run(self.link.mirror.name)

    def status(self, run_id: str) -> tuple[Run, tuple[StepRecord, ...]]:
        """The run and its steps so far, in order. Takes over nothing."""
        state = read_state(self.link.destination)
        run = self._mine(state, run_id)
        return run, tuple(state.steps[run_id, s] for s in steps_of(run) if (run_id, s) in state.steps)

    @at_work()
    def refuse_conducted(self, run_id: str, title: str, *, take_over: bool = False, quietly: bool = False) -> None:
        """Refused while another process conducts the run: whoever goes on with it would end that one. It is watched for
        half a minute, unless it has let go of it or certainly ended. `take_over`: the caller has an option for that.
        `quietly`: nothing is said of what is found."""
        watch = self.watches.setdefault(run_id, Watch(run_id))
        say: Callable[[str], None] = (lambda line: None) if quietly else self._say
        found = watch.found(lambda: read_whole(self.link.destination), say, take_over=take_over)
        if why := found.refusal(take_over=take_over):
            raise Refused(title, [why])

    def refuse_expired(self, run_id: str, agreed: Sequence[Approval]) -> None:
        """Before applications are stopped, or logs are taken back. Refused when nobody has agreed for too long, and
        nothing was done."""
        run, steps = self.status(run_id)
        why = expired(run, agreed, steps, now_ms())
        if why and run.state is RunState.RUNNING and not self.disturbs(run):
            raise Refused(f"run {run_id} {self.DISTURBS}", [why])

    def refuse_others(self, run_id: str) -> None:
        """Refused unless this conductor has begun the run: what names it may be anybody's."""
        begun_by = self.status(run_id)[0].started_by
        if begun_by != self.started_by:
            raise Refused(f"run {run_id}", [f"{begun_by} has begun it, and this is {self.started_by}"])

    def source_answers(self) -> bool:
        """Whether any of its brokers does, to us."""
        return source_answers(self.link)

    # -- what differs --------------------------------------------------------------------------------------------

    @abstractmethod
    def disturbs(self, run: Run) -> bool:
        """Whether it has done so already, or begun to: then nobody is asked again."""

    @abstractmethod
    def _decide(self, state: State, choice: Choice | None) -> Decision:
        """Look at both sides, and make the plan."""

    @abstractmethod
    def _act(self, writer: StateWriter, journal: Journal, name: str) -> Callable[[], Evidence]:
        """What the step does. Refused when it may not be begun now."""

    @abstractmethod
    def _abort(self, writer: StateWriter, journal: Journal) -> Run:
        """Undo what was done, and close the run."""

    @abstractmethod
    def _finish(self, writer: StateWriter, journal: Journal) -> Run:
        """Close a run whose steps are done. Closing it twice changes nothing."""

    @abstractmethod
    def _no_way_back(self) -> str:
        """Why there is no abort from the point of no return on, and what to do."""

    def _decide_anew(self, state: State, choice: Choice | None, held: Run | None, *, silent: bool) -> Decision:
        """The same when a run is begun."""
        return self._decide(state, choice)

    def _ready(self, run: Run, name: str) -> bool:
        """Whether the next step can be taken now; if not, the run waits."""
        return True

    def _may_continue(self, under_way: Run, choice: Choice | None) -> bool:
        """Whether a new run may go on from this one, which holds the mirror."""
        return False

    def _more_of(self, run: Run, found: Decision, state: State) -> tuple[Run, tuple[Record | Forget, ...]]:
        """The new run, completed, and what is written together with it."""
        return run, ()

    # -- inside --------------------------------------------------------------------------------------------------

    def _control(self) -> StateWriter:
        return StateWriter(self.link.destination, control_id(self.link.mirror.name))

    @contextmanager
    def _conducting(
        self, run_id: str, may: Callable[[State], object] = lambda state: None
    ) -> Iterator[tuple[StateWriter, Journal]]:
        """The run in our hands, which others can see until the end of the block. `may` raises when it is not for us."""
        if run_id in self.watches:
            try:
                self.refuse_conducted(run_id, f"run {run_id}: take over")
            except Refused as error:  # somebody else has come first
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
        """Who has approved what is begun. Refused when it is not known that enough people did, or a run was begun by
        their approvals already. `alone`: it is none of a set, which has looked for such runs itself."""
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
        """Whoever clears tasks of a run that is past is told so: nothing of it is true any more."""
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
        """A new run of this plan. Refused when it may not be run, is not the one with this hash, or is not approved."""
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
        """Readable, sortable, and not used before."""
        when = datetime.fromtimestamp(started_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        return f"{self.link.mirror.name}-{self.KIND}-{when}-{secrets.token_hex(2)}"

    def _mine(self, state: State, run_id: str) -> Run:
        """The run of this id. BadRequest when it is none of this mirror and kind."""
        run = find_run(state, run_id)
        if run.plan.mirror != self.link.mirror.name or run.plan.kind is not self.KIND:
            raise BadRequest(f"run {run_id} is a {run.plan.kind} of mirror {run.plan.mirror}")
        return run

    def _take(self, writer: StateWriter, journal: Journal, name: str) -> StepRecord:
        """Take a step, saying so unless it is done; the last one closes the run."""
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
        """A run that has ended, with its evidence as a bundle."""
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
    """Its steps in order."""
    return names(run.plan.kind, run.plan.mode)
