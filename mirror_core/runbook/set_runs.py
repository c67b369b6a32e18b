"""The plans and runs of a set's mirrors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirror_core.decide import vouching
from mirror_core.decide.approvals import explain_short_hash
from mirror_core.decide.failover import PlanDecision
from mirror_core.decide.sets import RunPhase, find_run_phase
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.mirror_set import MirrorSet
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, StepRecord, shorten_hash


class SetFailed(MirrorError):
    """The message has each mirror's outcome."""


@dataclass(frozen=True, slots=True)
class SetPlan:
    decisions: Mapping[MirrorName, PlanDecision]
    hash: str
    reasons: tuple[str, ...]
    silent: tuple[MirrorName, ...] = ()
    """Mirrors whose sources do not answer and are given up."""

    def find_hash_mismatch(self, plan_hash: str | None) -> tuple[str, ...]:
        if plan_hash in (None, self.hash):
            return ()
        changed = f"they have changed since: their hash is {shorten_hash(self.hash)} now"
        return (
            f"the plans that were approved had hash {shorten_hash(plan_hash)}; {changed}. Look at the new plans",
            *explain_short_hash(plan_hash, self.hash),
        )


@dataclass(frozen=True, slots=True)
class MemberRun:
    run: Run
    steps: tuple[StepRecord, ...]
    awaits_confirmation: bool = False
    """For confirmation, because its source answered before promotion."""
    past_no_return: bool = False

    @property
    def phase(self) -> RunPhase:
        return find_run_phase(self.run, self.steps, is_past_no_return=self.past_no_return)

    @property
    def outcome(self) -> str:
        coverage_text = (
            ""
            if vouching.is_as_copied(self.steps)
            else f", {vouching.format_coverage(vouching.read_coverage_evidence(self.steps))}"
        )
        return f"{self.run.plan.mirror}: {self.phase}{coverage_text}"

    @property
    def next_command(self) -> str:
        mirror = self.run.plan.mirror
        commands = f"`mirrorbook failover resume {mirror} --leave-behind`, or `mirrorbook failover abort {mirror}`"
        return commands if self.awaits_confirmation else "resume it"

    @property
    def advice(self) -> str:
        return (
            ""
            if self.awaits_confirmation
            else f". When that is mended: `mirrorbook failover resume {self.run.plan.mirror}`"
        )


def find_set(config: Config, name: str) -> MirrorSet:
    if name not in config.sets:
        known_sets = ", ".join(sorted(config.sets)) or "none"
        raise BadRequest(f"unknown set {name!r}: section `sets:` of {config.path} has {known_sets}")
    return config.sets[name]
