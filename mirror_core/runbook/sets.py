"""One failover of several mirrors; each keeps its own run and journal.

`decide.set_schedule` decides the next moves from the journals after each round, so a repeated call after a crash
continues.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from mirror_core.decide.approvals import ApprovalPolicy, come_back, used_up, verified
from mirror_core.decide.failover import Decision
from mirror_core.decide.left_behind import kept
from mirror_core.decide.sets import (
    TURNED,
    UNDISTURBED,
    Member,
    Move,
    Place,
    joint_hash,
    moves,
    set_of,
    undisturbed_all,
)
from mirror_core.decide.steps import names, point_of_no_return, undisturbed
from mirror_core.evidence.set_page import SET_PAGE, Moved, write_set_page
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership, MirrorError, Refused
from mirror_core.model.mirror_set import MirrorSet
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Approval, Mode, Run, RunKind, RunState, StepState
from mirror_core.runbook.at_work import at_work
from mirror_core.runbook.bundles import copy_page_or_say
from mirror_core.runbook.closing import awaits_word
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.set_runs import Joint, SetFailed, Standing
from mirror_core.runbook.side_by_side import at_once, patiently
from mirror_core.state.approvals import recorded_approvals
from mirror_core.state.link import Link
from mirror_core.state.topic import read_state
from mirror_core.state.turning import turned

_BEFORE: Final = names(RunKind.FAILOVER)[: names(RunKind.FAILOVER).index(point_of_no_return(RunKind.FAILOVER))]


class Together:
    """Stateless: everything is in the destinations' state topics."""

    def __init__(
        self,
        chosen: MirrorSet,
        conductors: Mapping[MirrorName, Failover],
        mode: Mode = Mode.PLANNED,
        *,
        say: Callable[[str], None],
    ) -> None:
        self.chosen = chosen
        self.mode = mode
        self._conductors = conductors
        self._say = say

    def link(self, mirror: MirrorName) -> Link:
        return self._conductors[mirror].link

    def decide(self) -> Joint:
        mirrors = self.chosen.mirrors
        with ThreadPoolExecutor(len(mirrors)) as pool:  # a dead side costs seconds, once
            looks = list(pool.map(lambda name: self._look(self._conductors[name]), mirrors))
        found = {name: decision for name, (decision, _) in zip(mirrors, looks, strict=True)}
        reasons = [f"{name}: {reason}" for name, decision in found.items() for reason in decision.reasons]
        return Joint(
            found,
            joint_hash(self.chosen, (d.plan for d in found.values())),
            tuple(reasons),
            silent=tuple(name for name, (_, silent) in zip(mirrors, looks, strict=True) if silent),
        )

    def _look(self, one: Failover) -> tuple[Decision, bool]:
        return one.decide_lost() if self.mode is Mode.UNPLANNED else (one.decide(self.mode), False)

    def under_way(self, started_by: str | None = None, plan_hash: str = "") -> str | None:
        """The set's failover that has not ended. Refused if its mirrors differ from the set's."""
        for attempt, there in self._attempts(started_by).items():
            left = {name: s for name, s in there.items() if s.run.ended_ms is None}
            done = (
                started_by is not None
                and all(s.place is Place.DONE for s in there.values())
                and joint_hash(self.chosen, (s.run.plan for s in there.values())) == plan_hash
                and not self._past(there)
            )
            if there.keys() >= set(self.chosen.mirrors):
                if left or done:
                    return attempt
            elif left and not self._harmless(left.values()):
                held = ", ".join(f"{name} ({s.run.id})" for name, s in left.items())
                reason = f"{attempt} has no run of each mirror of the set: resume or abort, one by one, {held}"
                raise Refused(f"failover of set {self.chosen.name}", [reason])
        return None

    def cut_off(self, started_by: str | None = None) -> str | None:
        """An attempt whose conductor died before all runs were begun: nothing was done."""
        for attempt, there in self._attempts(started_by).items():
            left = [s for s in there.values() if s.run.ended_ms is None]
            if left and there.keys() < set(self.chosen.mirrors) and self._harmless(left):
                return attempt
        return None

    def _begun_before(self) -> list[Run]:
        whole = [t for t in self._attempts(None).values() if t.keys() >= set(self.chosen.mirrors)]
        return [max((s.run for s in there.values()), key=lambda run: run.started_ms) for there in whole]

    def _past(self, there: Mapping[MirrorName, Standing]) -> list[str]:
        done = [(name, s.run) for name, s in there.items() if s.run.state is RunState.DONE]
        conductors = [(self._conductors[name], run) for name, run in done]
        return [
            f"{run.plan.mirror}: run {run.id} has ended, and is not what the mirror is in any more"
            for conductor, run in conductors
            if not conductor.in_effect(read_state(conductor.link.destination), run)
        ]

    def refuse_past(self, attempt: str, started_by: str) -> None:
        there = self._standings(attempt)
        others = [f"{name}: {s.run.started_by} has begun run {s.run.id}" for name, s in there.items()]
        reasons = [why for why, s in zip(others, there.values(), strict=True) if s.run.started_by != started_by]
        if reasons := reasons or self._past(there):
            raise Refused(f"failover {attempt} of set {self.chosen.name}", reasons)

    def _harmless(self, left: Iterable[Standing]) -> bool:
        """Whether they can be aborted without a trace. Unplanned runs may have taken another run over."""
        return self.mode is Mode.PLANNED and all(s.place in UNDISTURBED for s in left)

    @at_work()
    def begin(
        self, plan_hash: str, *, approved_by: str | Sequence[Approval] | ApprovalPolicy, silent: Collection[str] = ()
    ) -> str:
        """Open a run per mirror; returns their common id. If one is refused, planned ones are aborted."""
        spent = self._spent(approved_by) if isinstance(approved_by, ApprovalPolicy) else ()
        if spent:
            raise Refused(f"failover of set {self.chosen.name}", spent)
        joint, back = self._decide_anew([name for name in self.chosen.mirrors if name in silent])
        if reasons := (*joint.reasons, *joint.other_than(plan_hash), *back):
            raise Refused(f"failover of set {self.chosen.name}", reasons)
        when = datetime.fromtimestamp(now_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        attempt = f"{self.chosen.name}-{when}-{secrets.token_hex(2)}"
        plans = {name: decision.plan.hash for name, decision in joint.decisions.items()}
        acts = {
            name: partial(self._begin, name, plan, approved_by, attempt, joint.hash, silent=name in silent)
            for name, plan in plans.items()
        }
        try:
            if refused := at_once(acts, self._say):
                words = f"failover of set {self.chosen.name}: not all could be begun"
                raise Refused(words, (f"{name}: {error}" for name, error in refused.items()))
        except MirrorError:
            if self.mode is Mode.PLANNED:
                self._give_up(self._standings(attempt), only_mine=False)
            raise
        self._say(f"{attempt}: {', '.join(s.run.id for s in self._standings(attempt).values())}")
        return attempt

    def prove(self, attempt: str) -> dict[MirrorName, Standing]:
        return self._go(attempt, {Move.PROVE})

    @property
    def started_by(self) -> str:
        return self._conductors[self.chosen.mirrors[0]].started_by

    def told(self, attempt: str) -> list[str]:
        return [f"{name}: {s.place}" for name, s in self._standings(attempt).items()]

    def moved(self, attempt: str, step: str) -> dict[MirrorName, str]:
        done = (step, StepState.DONE)
        found = self._standings(attempt).items()
        return {name: s.run.id for name, s in found if done in [(taken.step, taken.state) for taken in s.steps]}

    def undisturbed(self, attempt: str) -> bool:
        return undisturbed_all(self._members(self._standings(attempt), {}))

    def refuse_expired(self, attempt: str, agreed: Sequence[Approval]) -> None:
        for name, standing in self._standings(attempt).items():
            self._conductors[name].refuse_expired(standing.run.id, agreed)

    def finish(self, attempt: str, *, agreed_by: str = "") -> dict[MirrorName, Standing]:
        """Everything left. Raises SetFailed if not all succeed. Writes the set's page."""
        try:
            return self._go(attempt, {Move.PROVE, Move.MAKE_READY, Move.FINISH}, agreed_by)
        finally:
            self._write_page(attempt)

    def refuse_conducted(self, attempt: str, *, take_over: bool = False, quietly: bool = False) -> None:
        title, left = f"failover of set {self.chosen.name}", self._left(attempt)
        reasons = list[str]()

        def ask(name: MirrorName, run: Run) -> None:
            self._conductors[name].refuse_conducted(run.id, title, take_over=take_over, quietly=quietly)

        errors = at_once({name: partial(ask, name, run) for name, run in left.items()}, lambda line: None)
        for name, error in errors.items():
            if not isinstance(error, Refused):
                raise error
            reasons += [f"run {left[name].id}: {reason}" for reason in error.reasons]
        if reasons:
            raise Refused(title, sorted(reasons))

    def refuse_taken_over(self, attempt: str) -> None:
        """Raises LostOwnership while another conductor may still act on one of the runs."""
        mine = {name: conductor.started_by for name, conductor in self._conductors.items()}
        theirs = {name: run for name, run in self._left(attempt).items() if run.conducted_by != mine[name]}
        errors = at_once({name: partial(self._refuse_taken_over, name, run) for name, run in theirs.items()}, self._say)
        for error in errors.values():
            raise error

    def abort(self, attempt: str, *, only_mine: bool = True) -> Sequence[str]:
        """All, unless one is promoted. Returns the outcome as text."""
        standings = self._standings(attempt)
        left = {name: s for name, s in standings.items() if s.run.ended_ms is None}
        if any(s.place in TURNED for s in standings.values()):
            return [f"{name}: kept: another mirror of the set is promoted; {s.way_on}" for name, s in left.items()]
        return self._give_up(left, only_mine=only_mine)

    def page(self, attempt: str) -> Path:
        evidence = self._conductors[self.chosen.mirrors[0]].services.evidence_dir
        return evidence / f"set-{attempt}" / SET_PAGE

    # -- inside --------------------------------------------------------------------------------------------------

    @at_work()
    def _go(self, attempt: str, wanted: set[Move], agreed_by: str = "") -> dict[MirrorName, Standing]:
        failed: dict[MirrorName, MirrorError] = {}
        while True:
            standings = self._standings(attempt)
            found = moves(self._members(standings, failed), self.chosen.order, self.mode)
            due = dict(zip(self.chosen.mirrors, found, strict=True))
            doing = {name: standings[name] for name, move in due.items() if move in wanted}
            if Move.ABORT in due.values():
                given_up = {name: standings[name] for name, move in due.items() if move is Move.ABORT}
                errors = [f"{name}: {error}" for name, error in failed.items()]
                raise self._failed((*errors, *self._give_up(given_up, only_mine=False)))
            if not doing:
                break
            failed |= at_once(
                {name: partial(self._take, s, due[name], agreed_by) for name, s in doing.items()}, self._say
            )
        if failed or (Move.FINISH in wanted and any(s.place is not Place.DONE for s in standings.values())):
            errors = [f"{name}: {error}{standings[name].advice}" for name, error in failed.items()]
            raise self._failed((*errors, *(s.outcome for name, s in standings.items() if name not in failed)))
        return standings

    def _take(self, standing: Standing, move: Move, agreed_by: str) -> None:
        run, conductor = standing.run, self._conductors[standing.run.plan.mirror]
        said = agreed_by if standing.place in (Place.BEGUN, Place.PROVED) else ""
        if move is Move.FINISH:
            patiently(run.plan.mirror, self._say, lambda: conductor.drive(run.id, agreed_by=said))
        else:
            steps = undisturbed(RunKind.FAILOVER) if move is Move.PROVE else _BEFORE
            agreed = "" if move is Move.PROVE else said
            patiently(run.plan.mirror, self._say, lambda: conductor.take(run.id, steps, agreed_by=agreed))

    def _decide_anew(self, silent: Sequence[MirrorName]) -> tuple[Joint, list[str]]:
        joint, reasons = self.decide(), list[str]()
        for name in silent:
            source, again = self.link(name).source.name, f"failover run-set {self.chosen.name}"
            seen = joint.decisions[name].source_seen
            back = come_back(source, again, silent=True, answers=name not in joint.silent, seen=seen)
            reasons += (f"{name}: {why}" for why in back)
        return joint, reasons

    def _left(self, attempt: str) -> dict[MirrorName, Run]:
        return {name: s.run for name, s in self._standings(attempt).items() if s.run.ended_ms is None}

    def _refuse_taken_over(self, name: MirrorName, run: Run) -> None:
        try:
            self._conductors[name].refuse_conducted(run.id, f"run {run.id} of set {self.chosen.name}")
        except Refused as error:
            raise LostOwnership(str(error)) from None

    def _spent(self, policy: ApprovalPolicy) -> tuple[str, ...]:
        first = self.chosen.mirrors[0]
        state = read_state(self._conductors[first].link.destination)
        return used_up(self._begun_before(), verified(policy, recorded_approvals(state, first, policy.question)))

    def _begin(
        self,
        name: MirrorName,
        plan_hash: str,
        approved_by: str | Sequence[Approval] | ApprovalPolicy,
        attempt: str,
        joint: str,
        *,
        silent: bool,
    ) -> None:
        self._conductors[name].begin(
            plan_hash, self.mode, approved_by=approved_by, part_of=attempt, joint_hash=joint, silent=silent
        )

    def _give_up(self, standings: Mapping[MirrorName, Standing], *, only_mine: bool) -> list[str]:
        """A run with a silent source is kept if it is fenced or awaits confirmation.

        A new run would not know what was drained, and would not ask for confirmation.
        """
        said = list[str]()
        for name, standing in standings.items():
            conductor = self._conductors[name]
            stopped = self.mode is Mode.PLANNED and standing.place in (Place.STOPPED, Place.READY)
            if standing.waits and not conductor.source_answers():
                said.append(f"{name}: {kept(name, conductor.link.source.name)}")
                continue
            if stopped and not conductor.source_answers():
                again = f"`mirrorbook failover run {name} --mode unplanned` goes on from here if it is lost"
                said.append(f"{name}: kept: the source does not answer; {again}, `failover abort {name}` if not")
                continue
            try:
                note = conductor.abort(standing.run.id, only_mine=only_mine).note
            except MirrorError as error:
                said.append(f"{name}: not given up: {error}")
            else:
                said.append(f"{name}: given up: {note or 'applications may write on the source'}")
        for line in said:
            self._say(line)
        return said

    def _failed(self, lines: Iterable[str]) -> SetFailed:
        listed = "".join(f"\n  - {line}" for line in lines)
        return SetFailed(f"failover of set {self.chosen.name}: not all of it was moved:{listed}")

    def _members(
        self, standings: Mapping[MirrorName, Standing], failed: Mapping[MirrorName, MirrorError]
    ) -> list[Member]:
        return [Member(name, standings[name].place, name in failed) for name in self.chosen.mirrors]

    def _standings(self, attempt: str) -> dict[MirrorName, Standing]:
        found = {name: standing for name, standing in self._all_runs() if standing.run.part_of == attempt}
        return {name: found[name] for name in self.chosen.mirrors if name in found}

    def _attempts(self, started_by: str | None) -> dict[str, dict[MirrorName, Standing]]:
        found: dict[str, dict[MirrorName, Standing]] = {}
        for name, standing in sorted(self._all_runs(), key=lambda item: -item[1].run.started_ms):
            ours = set_of(standing.run.part_of) == self.chosen.name
            if ours and started_by in (None, standing.run.started_by):
                found.setdefault(standing.run.part_of, {})[name] = standing
        return found

    def _all_runs(self) -> Iterator[tuple[MirrorName, Standing]]:
        states = {c.link.destination.name: c.link.destination for c in self._conductors.values()}
        read = {name: read_state(cluster) for name, cluster in states.items()}
        for name, conductor in self._conductors.items():
            state = read[conductor.link.destination.name]
            for run in state.runs.values():
                if (run.plan.mirror, run.plan.kind, run.plan.mode) == (name, RunKind.FAILOVER, self.mode):
                    yield name, Standing(run, state.steps_of(run), awaits_word(state, run), turned(state, run))

    def _write_page(self, attempt: str) -> None:
        page = self.page(attempt)
        try:
            standings = self._standings(attempt)
            write_set_page(page, self.chosen, attempt, [Moved(s.run, s.steps, s.place) for s in standings.values()])
        except MirrorError as error:  # each run has its own evidence
            self._say(f"the page of the set is not written: {error}")
        else:
            self._say(f"report: {page}")
            if all(s.run.ended_ms is not None for s in standings.values()):  # a hanging store must not delay an abort
                first = self._conductors[self.chosen.mirrors[0]]
                copy_page_or_say(first.services, first.link.config, page, self._say)
