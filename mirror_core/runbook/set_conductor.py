"""One failover or failback of several mirrors; each keeps its own run and journal.

Next moves come from the journals, so a repeated call after a crash continues.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from mirror_core.decide import certificate_coverage
from mirror_core.decide.approval_rules import (
    ApprovalPolicy,
    explain_used_approvals,
    select_valid_approvals,
)
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.set_schedule import (
    PAST_NO_RETURN_PHASES,
    NextAction,
    RunPhase,
    SetMember,
    SetPlan,
    compute_set_hash,
    decide_actions,
    find_run_phase,
    is_undisturbed,
    parse_set_name,
)
from mirror_core.decide.steps import HoldingRun, list_steps_before_no_return, list_undisturbed_steps
from mirror_core.evidence.run_report import SET_PAGE, SetPageMirror, write_set_page
from mirror_core.model.config_sections import MirrorSet, SetOrder
from mirror_core.model.errors import LostOwnership, MirrorError, Refused
from mirror_core.model.findings import Finding
from mirror_core.model.names import ClusterName, MirrorName, get_base_name
from mirror_core.model.run import (
    Approval,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepRecord,
    StepState,
    find_last_begun,
)
from mirror_core.model.text import format_items
from mirror_core.model.timing import TIMEOUTS, now_ms
from mirror_core.runbook.conductor import (
    Conductor,
    SetMembership,
    process_caches,
    retry_until_done,
    run_parallel,
)
from mirror_core.runbook.evidence_bundle import copy_page_or_report
from mirror_core.runbook.run_outcome import explain_unread_run, is_awaiting_confirmation, read_mirror_status
from mirror_core.state.approvals import find_approvals
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.point_of_no_return import is_past_no_return
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state


class SetFailed(MirrorError):
    """The message has each mirror's outcome."""


@dataclass(frozen=True, slots=True)
class MemberRun:
    run: Run
    steps: tuple[StepRecord, ...]
    awaits_confirmation: bool = False
    """For confirmation, because its source answered before promotion."""
    past_no_return: bool = False
    is_home: bool | None = False
    """A failback: the failover home is done. None: its old source does not tell."""
    silence: str = ""
    """Why its destination was not read: the rest is as last seen, and it may be further."""

    @property
    def phase(self) -> RunPhase:
        return find_run_phase(self.run, self.steps, is_past_no_return=self.past_no_return, is_home=self.is_home)

    @property
    def is_undisturbed(self) -> bool:
        return is_undisturbed(self.run.plan.kind, self.phase)

    @property
    def shown_phase(self) -> RunPhase:
        return RunPhase.DESTINATION_UNREAD if self.silence else self.phase

    @property
    def outcome(self) -> str:
        coverage_text = (
            ""
            if certificate_coverage.is_as_copied(self.steps)
            else f", {certificate_coverage.format_coverage(certificate_coverage.read_coverage_evidence(self.steps))}"
        )
        return f"{self.run.plan.mirror}: {self.shown_phase}{coverage_text}"

    @property
    def next_command(self) -> str:
        mirror = self.run.plan.mirror
        commands = f"`mirrorbook failover resume {mirror} --leave-behind`, or `mirrorbook failover abort {mirror}`"
        return commands if self.awaits_confirmation else "resume it"

    @property
    def advice(self) -> str:
        command = f"mirrorbook {self.run.leading_kind} resume {get_base_name(self.run.plan.mirror)}"
        return "" if self.awaits_confirmation else f". When that is mended: `{command}`"


AnyConductor = TypeVar("AnyConductor", bound=Conductor[Any])


class SetConductor(ABC, Generic[AnyConductor]):
    """Runs of one kind of several mirrors. What was last seen of a destination is remembered for one that stops
    answering.
    """

    KIND: ClassVar[RunKind]
    NO_RETURN_REASON: ClassVar[str]

    def __init__(
        self,
        mirror_set: MirrorSet,
        conductors: Mapping[MirrorName, AnyConductor],
        mode: RunMode = RunMode.PLANNED,
        *,
        print_line: Callable[[str], None],
    ) -> None:
        self.mirror_set = mirror_set
        self.mode = mode
        self._conductors = conductors
        self._print_line = print_line
        self._last_seen: dict[str, dict[MirrorName, MemberRun]] = {}  # by attempt

    @property
    def title(self) -> str:
        is_alone, name = self.mirror_set.is_mirror_alone, self.mirror_set.name
        return f"{self.KIND} of mirror {self.mirror_set.mirrors[0]}" if is_alone else f"{self.KIND} of set {name}"

    def get_link(self, mirror: MirrorName) -> MirrorLink:
        return self._conductors[mirror].link

    def decide(self) -> SetPlan:
        mirrors = self.mirror_set.mirrors
        with ThreadPoolExecutor(len(mirrors)) as pool:  # a dead side costs seconds, once
            results = list(pool.map(lambda name: self._decide_member(self._conductors[name]), mirrors))
        decisions = {name: decision for name, (decision, _) in zip(mirrors, results, strict=True)}
        silent = tuple(name for name, (_, is_silent) in zip(mirrors, results, strict=True) if is_silent)
        if self.mirror_set.is_mirror_alone:
            alone = decisions[mirrors[0]]
            return SetPlan(decisions, alone.plan.hash, alone.reasons, silent)
        reasons = [f"{name}: {reason}" for name, decision in decisions.items() for reason in decision.reasons]
        return SetPlan(
            decisions,
            compute_set_hash(self.mirror_set, (d.plan for d in decisions.values())),
            tuple(reasons),
            silent,
        )

    def find_active_attempt(self, started_by: str | None = None, plan_hash: str = "") -> str | None:
        """Or a done one of `started_by` with this plan hash.

        Refused if a planned one has mirrors that the set lacks, or if mirrors of the set have no run and applications
        may have noticed the others.
        """
        if self.mirror_set.is_mirror_alone:
            run = self._first_conductor.find_run_to_resume(plan_hash, self.mode)
            return run.id if run else None
        for attempt, member_runs in self._group_by_attempt(started_by).items():
            open_runs = {name: member for name, member in member_runs.items() if member.run.ended_ms is None}
            if open_runs and self.mode is RunMode.PLANNED:
                self._refuse_unknown_members(attempt, member_runs.values())
            is_done = (
                started_by is not None
                and all(member.phase is RunPhase.DONE for member in member_runs.values())
                and compute_set_hash(self.mirror_set, (member.run.plan for member in member_runs.values())) == plan_hash
                and not self._find_superseded_runs(member_runs)
            )
            if member_runs.keys() >= set(self.mirror_set.mirrors):
                if open_runs or is_done:
                    return attempt
            elif open_runs and not self._are_undisturbed(open_runs.values()):
                holders = [
                    HoldingRun.from_run(member.run, is_past_no_return=member.past_no_return)
                    for member in open_runs.values()
                ]
                finding = Finding("set_runs_differ", attempt)
                raise Refused(self.title, [finding, *(holder.explain() for holder in holders)])
        return None

    def _refuse_unknown_members(self, attempt: str, members: Iterable[MemberRun]) -> None:
        """One that is fenced would be left behind."""
        unknown = {name for member in members for name in member.run.set_mirrors}.difference(self.mirror_set.mirrors)
        if unknown:
            finding = Finding("set_run_members_unknown", attempt, mirrors=sorted(unknown), run_kind=self.KIND)
            raise Refused(self.title, [finding, *self.mirror_set.left_out])

    def find_unbegun_attempt(self, started_by: str | None = None) -> str | None:
        """Its conductor died before all runs were begun: nothing was done."""
        if self.mirror_set.is_mirror_alone:
            return None
        for attempt, member_runs in self._group_by_attempt(started_by).items():
            open_runs = [member for member in member_runs.values() if member.run.ended_ms is None]
            if open_runs and member_runs.keys() < set(self.mirror_set.mirrors) and self._are_undisturbed(open_runs):
                return attempt
        return None

    def _list_earlier_runs(self) -> list[Run]:
        complete_attempts = [
            t for t in self._group_by_attempt(None).values() if t.keys() >= set(self.mirror_set.mirrors)
        ]
        newest = [find_last_begun(member.run for member in member_runs.values()) for member_runs in complete_attempts]
        return [run for run in newest if run is not None]

    def _find_superseded_runs(self, member_runs: Mapping[MirrorName, MemberRun]) -> list[str]:
        done_runs = {name: s.run for name, s in member_runs.items() if s.run.state is RunState.DONE}
        return [
            f"{name}: run {run.id} has ended, and is not what the mirror is in any more"
            for name, run in done_runs.items()
            if not self._conductors[name].is_in_effect(read_state(self.get_link(name).destination), run)
        ]

    def refuse_superseded(self, attempt: str) -> None:
        member_runs = self._read_member_runs(attempt)
        reasons = [f"{name}: no run of it" for name in self.mirror_set.mirrors if name not in member_runs]
        reasons += [
            f"{name}: {member.run.started_by} has begun run {member.run.id}"
            for name, member in member_runs.items()
            if member.run.started_by != self.started_by
        ]
        if reasons := reasons or self._find_superseded_runs(member_runs):
            raise Refused(f"{self.title}, {attempt}", reasons, reason_code="run_superseded")

    def _are_undisturbed(self, member_runs: Iterable[MemberRun]) -> bool:
        """Unplanned runs may have taken another run over."""
        return self.mode is RunMode.PLANNED and all(member.is_undisturbed for member in member_runs)

    @process_caches()
    def begin(
        self, plan_hash: str, *, approved_by: str | Sequence[Approval] | ApprovalPolicy, silent: Collection[str] = ()
    ) -> str:
        """Open a run per mirror; returns their common id. If one is refused, planned ones are aborted."""
        if self.mirror_set.is_mirror_alone:
            name = self.mirror_set.mirrors[0]
            return self._begin_member(name, plan_hash, approved_by, None, silent=name in silent).id
        if isinstance(approved_by, ApprovalPolicy) and (spent := self._find_reused_approvals(approved_by)):
            raise Refused(self.title, spent, reason_code="approvals_used")
        set_plan = self.decide()
        returned_sources = self._explain_returned_sources(
            set_plan, [name for name in self.mirror_set.mirrors if name in silent]
        )
        if reasons := (*set_plan.reasons, *set_plan.find_hash_mismatch(plan_hash), *returned_sources):
            raise Refused(self.title, reasons, reason_code="set_plan_refused")
        timestamp = datetime.fromtimestamp(now_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        attempt = f"{self.mirror_set.name}-{timestamp}-{secrets.token_hex(2)}"
        part = SetMembership(
            attempt,
            set_plan.hash,
            max(state.next_run_number() for state in self._read_states().values()),
            self.mirror_set.mirrors,
        )
        actions = {
            name: partial(self._begin_member, name, decision.plan.hash, approved_by, part, silent=name in silent)
            for name, decision in set_plan.decisions.items()
        }
        try:
            if refused := run_parallel(actions, self._print_line):
                title = f"{self.title}: not all could be begun"
                raise Refused(
                    title, (f"{name}: {error}" for name, error in refused.items()), reason_code="set_not_begun"
                )
        except MirrorError:
            if self.mode is RunMode.PLANNED:
                self._abort_members(self._read_member_runs(attempt), only_mine=False)
            raise
        self._print_line(f"{attempt}: {', '.join(s.run.id for s in self._read_member_runs(attempt).values())}")
        return attempt

    def run_steps(self, attempt: str, steps: Sequence[str], *, agreed_by: str = "") -> dict[MirrorName, MemberRun]:
        """Several mirrors take all undisturbed steps, or all that are left."""
        if self.mirror_set.is_mirror_alone:
            self._first_conductor.run_steps(attempt, steps, agreed_by=agreed_by)
            return self._read_member_runs(attempt)
        is_undisturbed = set(steps) <= set(list_undisturbed_steps(self.KIND, self.mode))
        return self.prove(attempt) if is_undisturbed else self.finish(attempt, agreed_by=agreed_by)

    def prove(self, attempt: str) -> dict[MirrorName, MemberRun]:
        return self._run_moves(attempt, {NextAction.VERIFY})

    @property
    def started_by(self) -> str:
        return self._first_conductor.started_by

    @property
    def _first_conductor(self) -> AnyConductor:
        return self._conductors[self.mirror_set.mirrors[0]]

    def format_phases(self, attempt: str) -> list[str]:
        return [f"{name}: {s.phase}" for name, s in self._read_member_runs(attempt).items()]

    def find_runs_after_step(self, attempt: str, step: str) -> dict[MirrorName, str]:
        return {
            name: member.run.id
            for name, member in self._read_member_runs(attempt).items()
            if (step, StepState.DONE) in [(record.step, record.state) for record in member.steps]
        }

    def refuse_unfinished(self, attempt: str) -> None:
        """In a failback of several, a person may have given some up."""
        members = self._read_member_runs(attempt)
        kept = {n: m for n, m in members.items() if self.KIND is RunKind.FAILOVER or m.phase is not RunPhase.GIVEN_UP}
        judged = {
            name: partial(self._conductors[name].refuse_unfinished, member.run.id)
            for name, member in (kept or members).items()
        }
        self._refuse_together(judged, "run_not_done")

    def is_undisturbed(self, attempt: str) -> bool:
        return all(member.is_undisturbed for member in self._read_member_runs(attempt).values())

    def refuse_expired(self, attempt: str, agreed: Sequence[Approval]) -> None:
        for name, member in self._read_member_runs(attempt).items():
            self._conductors[name].refuse_expired(member.run.id, agreed)

    def finish(self, attempt: str, *, agreed_by: str = "") -> dict[MirrorName, MemberRun]:
        """Raises SetFailed if not all succeed. Writes the set's page."""
        return self._finish(attempt, agreed_by, {RunPhase.DONE})

    def refuse_conducted(self, attempt: str, *, take_over: bool = False, quietly: bool = False) -> None:
        options: dict[str, bool] = {"take_over": take_over, "quietly": quietly}
        checks = {
            name: partial(self._conductors[name].refuse_conducted, run.id, f"run {run.id}", **options)
            for name, run in self.list_open_runs(attempt).items()
        }
        self._refuse_together(checks, "run_conducted")

    def refuse_taken_over(self, attempt: str) -> None:
        """LostOwnership while another conductor may still act on one of the runs."""
        foreign_runs = {
            name: run for name, run in self.list_open_runs(attempt).items() if run.conducted_by != self.started_by
        }
        errors = run_parallel(
            {name: partial(self._refuse_taken_over, name, run) for name, run in foreign_runs.items()}, self._print_line
        )
        for error in errors.values():
            raise error

    def abort(self, attempt: str, *, only_mine: bool = True) -> Sequence[str]:
        """All, unless one is past its point of no return. Returns the outcome as text."""
        member_runs = self._read_member_runs(attempt)
        open_runs = {name: s for name, s in member_runs.items() if s.run.ended_ms is None}
        if any(s.phase in PAST_NO_RETURN_PHASES for s in member_runs.values()):
            reason = "past its point of no return" if self.mirror_set.is_mirror_alone else self.NO_RETURN_REASON
            return [f"{name}: kept: {reason}; {s.next_command}" for name, s in open_runs.items()]
        return self._abort_members(open_runs, only_mine=only_mine)

    def page_path(self, attempt: str) -> Path:
        return self._first_conductor.services.evidence_dir / f"set-{attempt}" / SET_PAGE

    def read_statuses(self, attempt: str) -> dict[MirrorName, tuple[str, ...]]:
        """Where applications can write, and the next command. Never fails: unknown is said."""
        mirrors = self.mirror_set.mirrors
        with ThreadPoolExecutor(len(mirrors)) as pool:  # a dead side costs seconds, once
            return dict(zip(mirrors, pool.map(lambda name: self._read_status(name, attempt), mirrors), strict=True))

    def _read_status(self, name: MirrorName, attempt: str) -> tuple[str, ...]:
        link = self.get_link(name)
        try:
            state = read_state(link.destination, timeout_s=TIMEOUTS.plan_state_s)
        except MirrorError:
            return explain_unread_run(link, self.KIND)
        runs = (run for run in state.runs.values() if run.plan.mirror == name)
        return read_mirror_status(link, next((run.id for run in runs if attempt in (run.set_run, run.id)), None))

    # -- what differs --------------------------------------------------------------------------------------------

    @abstractmethod
    def _decide_member(self, conductor: AnyConductor) -> tuple[PlanDecision, bool]:
        """(the plan, whether its source is given up since it does not answer)"""

    @abstractmethod
    def _begin_member(
        self,
        name: MirrorName,
        plan_hash: str,
        approved_by: str | Sequence[Approval] | ApprovalPolicy,
        part: SetMembership | None,
        *,
        silent: bool,
    ) -> Run: ...

    @abstractmethod
    def _format_given_up(self, name: MirrorName, member: MemberRun, note: str) -> str:
        """Where applications write after an abort."""

    def _explain_returned_sources(self, set_plan: SetPlan, silent: Sequence[MirrorName]) -> Sequence[str]:
        return ()

    def _explain_kept(self, name: MirrorName, member: MemberRun) -> str:
        """Empty: it is aborted with the others."""
        return ""

    def _to_member_run(self, name: MirrorName, state: State, run: Run) -> MemberRun:
        return MemberRun(run, state.steps_of(run), is_awaiting_confirmation(state, run), is_past_no_return(state, run))

    def _make_page_mirror(self, name: MirrorName, member: MemberRun, status: tuple[str, ...]) -> SetPageMirror:
        return SetPageMirror(member.run, member.steps, member.shown_phase, status, silence=member.silence)

    @property
    def _order(self) -> SetOrder:
        return self.mirror_set.order

    # -- inside --------------------------------------------------------------------------------------------------

    def _finish(self, attempt: str, agreed_by: str, goal: Collection[RunPhase]) -> dict[MirrorName, MemberRun]:
        moves = {NextAction.VERIFY, NextAction.MAKE_READY, NextAction.FINISH}
        try:
            return self._run_moves(attempt, moves, agreed_by, goal)
        finally:
            self._write_page(attempt)

    @process_caches()
    def _run_moves(
        self,
        attempt: str,
        wanted_moves: set[NextAction],
        agreed_by: str = "",
        goal: Collection[RunPhase] = (RunPhase.DONE,),
    ) -> dict[MirrorName, MemberRun]:
        failed: dict[MirrorName, MirrorError] = {}
        finishing: set[MirrorName] = set()
        while True:
            member_runs = self._read_reachable_runs(attempt, finishing)
            for name, member in member_runs.items():
                if member.silence:
                    failed.setdefault(name, MirrorError(member.silence))
            due_moves = decide_actions(self._to_members(member_runs, failed), self._order, self.mode)
            due = dict(zip(self.mirror_set.mirrors, due_moves, strict=True))
            acting = {name: member_runs[name] for name, move in due.items() if move in wanted_moves}
            if NextAction.ABORT in due.values():
                given_up = {name: member_runs[name] for name, move in due.items() if move is NextAction.ABORT}
                errors = [f"{name}: {error}" for name, error in failed.items()]
                aborted = self._abort_members(given_up, only_mine=False)
                raise self._make_error((*errors, *aborted, *self._explain_given_up(attempt)))
            if not acting:
                break
            finishing = {name for name in acting if due[name] is NextAction.FINISH}
            failed |= run_parallel(
                {name: partial(self._run_move, s, due[name], agreed_by) for name, s in acting.items()}, self._print_line
            )
        if failed or (NextAction.FINISH in wanted_moves and any(s.phase not in goal for s in member_runs.values())):
            errors = [f"{name}: {error}{member_runs[name].advice}" for name, error in failed.items()]
            raise self._make_error((*errors, *(s.outcome for name, s in member_runs.items() if name not in failed)))
        return member_runs

    def _run_move(self, member: MemberRun, move: NextAction, agreed_by: str) -> None:
        run, conductor = member.run, self._conductors[member.run.plan.mirror]
        approver, kind = agreed_by if member.is_undisturbed else "", run.plan.kind
        if move is NextAction.FINISH:
            retry_until_done(run.plan.mirror, self._print_line, lambda: conductor.drive(run.id, agreed_by=approver))
        else:
            steps = list_undisturbed_steps(kind) if move is NextAction.VERIFY else list_steps_before_no_return(kind)
            agreed = "" if move is NextAction.VERIFY else approver
            retry_until_done(
                run.plan.mirror, self._print_line, lambda: conductor.run_steps(run.id, steps, agreed_by=agreed)
            )

    def list_open_runs(self, attempt: str) -> dict[MirrorName, Run]:
        return {name: s.run for name, s in self._read_member_runs(attempt).items() if s.run.ended_ms is None}

    def _refuse_taken_over(self, name: MirrorName, run: Run) -> None:
        try:
            self._conductors[name].refuse_conducted(run.id, f"{self.title}, run {run.id}")
        except Refused as error:
            raise LostOwnership(str(error)) from None

    def _refuse_together(self, checks: Mapping[MirrorName, Callable[[], object]], reason_code: str) -> None:
        errors, reasons = run_parallel(checks, lambda line: None), list[str]()
        for error in errors.values():
            if not isinstance(error, Refused):
                raise error
            reasons += [f"{error.summary}: {reason}" for reason in error.reasons]
        if reasons:
            raise Refused(self.title, sorted(reasons), reason_code=reason_code)

    def _find_reused_approvals(self, policy: ApprovalPolicy) -> tuple[str, ...]:
        link = self._first_conductor.link
        approvals = find_approvals(read_state(link.destination), link.mirror.name, policy.question)
        return explain_used_approvals(self._list_earlier_runs(), select_valid_approvals(policy, approvals))

    def _abort_members(self, member_runs: Mapping[MirrorName, MemberRun], *, only_mine: bool) -> list[str]:
        result_lines = list[str]()
        for name, member in member_runs.items():
            kept_reason = (
                f"not given up: {member.silence}; run the set again when it answers"
                if member.silence
                else self._explain_kept(name, member)
            )
            if kept_reason:
                result_lines.append(f"{name}: {kept_reason}")
                continue
            try:
                note = self._conductors[name].abort(member.run.id, only_mine=only_mine).note
            except MirrorError as error:
                if self.mirror_set.is_mirror_alone and not isinstance(error, LostOwnership):
                    raise
                result_lines.append(f"{name}: not given up: {error}")
            else:
                result_lines.append(f"{name}: given up: {self._format_given_up(name, member, note)}")
        for line in result_lines:
            self._print_line(line)
        return result_lines

    def _explain_given_up(self, attempt: str) -> Iterator[Finding]:
        """Nothing, unless all are given up."""
        members = self._read_reachable_runs(attempt).values()
        if all(member.phase is RunPhase.GIVEN_UP and not member.silence for member in members):
            kind = next(member.run.leading_kind for member in members)
            yield Finding("set_given_up", self.mirror_set.name, attempt=attempt, run_kind=kind)

    def _make_error(self, lines: Iterable[object]) -> SetFailed:
        return SetFailed(f"{self.title}: not all of it was moved:{format_items(lines)}")

    def _to_members(
        self, member_runs: Mapping[MirrorName, MemberRun], failed: Mapping[MirrorName, MirrorError]
    ) -> list[SetMember]:
        return [SetMember(name, member_runs[name].phase, name in failed) for name in self.mirror_set.mirrors]

    def _read_member_runs(self, attempt: str) -> dict[MirrorName, MemberRun]:
        runs = self._iterate_runs()
        by_mirror = {name: member for name, member in runs if attempt in (member.run.set_run, member.run.id)}
        self._last_seen[attempt] = {name: by_mirror[name] for name in self.mirror_set.mirrors if name in by_mirror}
        return self._last_seen[attempt]

    def _read_reachable_runs(
        self, attempt: str, finishing: Collection[MirrorName] = frozenset()
    ) -> dict[MirrorName, MemberRun]:
        """A destination that does not answer hides no other mirror. `finishing`: they may have been promoted unseen."""
        try:
            return self._read_member_runs(attempt)
        except MirrorError:
            if attempt not in self._last_seen:
                raise
        members = dict[MirrorName, MemberRun]()
        for name, last_seen in self._last_seen[attempt].items():
            try:
                state = read_state(self.get_link(name).destination)
            except MirrorError as error:
                is_past = last_seen.past_no_return or name in finishing
                members[name] = replace(last_seen, silence=str(error), past_no_return=is_past)
            else:
                members[name] = self._to_member_run(name, state, state.runs[last_seen.run.id])
        self._last_seen[attempt] = members
        return members

    def _group_by_attempt(self, started_by: str | None) -> dict[str, dict[MirrorName, MemberRun]]:
        by_attempt: dict[str, dict[MirrorName, MemberRun]] = {}
        for name, member in sorted(self._iterate_runs(), key=lambda item: -item[1].run.number):
            is_of_set = parse_set_name(member.run.set_run) == self.mirror_set.name
            if is_of_set and started_by in (None, member.run.started_by):
                by_attempt.setdefault(member.run.set_run, {})[name] = member
        return by_attempt

    def _read_states(self) -> dict[ClusterName, State]:
        clusters = {c.link.destination.name: c.link.destination for c in self._conductors.values()}
        return {name: read_state(cluster) for name, cluster in clusters.items()}

    def _iterate_runs(self) -> Iterator[tuple[MirrorName, MemberRun]]:
        states_read = self._read_states()
        for name, conductor in self._conductors.items():
            state = states_read[conductor.link.destination.name]
            for run in state.runs.values():
                if (run.plan.mirror, run.plan.kind, run.plan.mode) == (name, self.KIND, self.mode):
                    yield name, self._to_member_run(name, state, run)

    def _write_page(self, attempt: str) -> None:
        page = self.page_path(attempt)
        try:
            member_runs = self._read_reachable_runs(attempt)
            statuses = self.read_statuses(attempt)
            rows = [self._make_page_mirror(name, s, statuses[name]) for name, s in member_runs.items()]
            write_set_page(page, self.KIND, self.mirror_set, attempt, rows)
        except MirrorError as error:  # each run has its own evidence
            self._print_line(f"the page of the set is not written: {error}")
        else:
            self._print_line(f"report: {page}")
            if all(s.run.ended_ms is not None for s in member_runs.values()):  # a hanging store must not delay an abort
                first = self._first_conductor
                copy_page_or_report(first.services, first.link.config, page, self._print_line)
