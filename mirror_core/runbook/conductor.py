"""What a failover and a failback have in common: opening a run, its journal, taking a step, telling where it stands.

Every process takes over the mirror's control id first (KIP-98 fences whoever had it), so two conductors never act at
once: the one before learns at its next write to the journal that it has lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar

from mirror_core.decide.failover import Decision
from mirror_core.decide.steps import names
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.run import Evidence, Run, RunKind, RunState, StepRecord
from mirror_core.runbook.services import Services
from mirror_core.state.journal import Journal, find_run
from mirror_core.state.link import Link
from mirror_core.state.topic import read_state
from mirror_core.state.writer import StateWriter, control_id


class Conductor:
    """One mirror's runs of one kind. Holds no state of its own: that is in the destination's state topic."""

    KIND: ClassVar[RunKind]

    def __init__(
        self, link: Link, services: Services, *, started_by: str, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.link = link
        self.services = services
        self.started_by = started_by
        self._say = say

    def active(self) -> Run | None:
        """The run that holds this mirror now."""
        return read_state(self.link.destination).active_run(self.link.mirror.name)

    def status(self, run_id: str) -> tuple[Run, tuple[StepRecord, ...]]:
        """The run and its steps so far, in order. Takes over nothing."""
        state = read_state(self.link.destination)
        run = find_run(state, run_id)
        return run, tuple(state.steps[run_id, s] for s in names(self.KIND) if (run_id, s) in state.steps)

    def _control(self) -> StateWriter:
        return StateWriter(self.link.destination, control_id(self.link.mirror.name))

    def _open(self, writer: StateWriter, found: Decision, plan_hash: str) -> Run:
        """A new run of this plan. Refused when it may not be run, or is not the one with this hash."""
        reasons = list(found.reasons)
        if found.plan.hash != plan_hash:
            reasons.append(
                f"the plan with hash {plan_hash} no longer holds: it is {found.plan.hash} now; look at the new plan"
            )
        if reasons:
            raise Refused(f"{self.KIND} of mirror {self.link.mirror.name}", reasons)
        started = now_ms()
        run = Run(
            id=self._new_id(started),
            plan=found.plan,
            plan_hash=plan_hash,
            state=RunState.RUNNING,
            started_by=self.started_by,
            started_ms=started,
        )
        writer.put(run)
        return run

    def _new_id(self, started_ms: int) -> str:
        """Readable, sortable, and not used before."""
        when = datetime.fromtimestamp(started_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
        return f"{self.link.mirror.name}-{self.KIND}-{when}-{secrets.token_hex(2)}"

    def _journal(self, writer: StateWriter, run_id: str) -> Journal:
        journal = Journal(writer, run_id, names(self.KIND))
        plan = journal.run.plan
        if plan.mirror != self.link.mirror.name or plan.kind is not self.KIND:
            raise BadRequest(f"run {run_id} is a {plan.kind} of mirror {plan.mirror}")
        return journal

    def _perform(self, journal: Journal, name: str, act: Callable[[], Callable[[], Evidence]]) -> StepRecord:
        """Take a step, saying so unless it is done. `act` finds what to do once the journal knows the name."""
        if journal.done(name):
            return journal.perform(name, lambda: act()())
        self._say(f"{name} ...")
        record = journal.perform(name, lambda: act()())
        self._say(f"{name} done in {((record.ended_ms or 0) - record.started_ms) / 1000:.1f} s")
        return record
