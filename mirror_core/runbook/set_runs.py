"""The plans and runs of a set's mirrors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirror_core.decide import vouching
from mirror_core.decide.approvals import whole_hash_needed
from mirror_core.decide.failover import Decision
from mirror_core.decide.sets import Place, place_of
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.mirror_set import MirrorSet
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, StepRecord, short_hash


class SetFailed(MirrorError):
    """The message has each mirror's outcome."""


@dataclass(frozen=True, slots=True)
class Joint:
    decisions: Mapping[MirrorName, Decision]
    hash: str
    reasons: tuple[str, ...]
    silent: tuple[MirrorName, ...] = ()
    """Mirrors whose sources do not answer and are given up."""

    def other_than(self, plan_hash: str | None) -> tuple[str, ...]:
        if plan_hash in (None, self.hash):
            return ()
        changed = f"they have changed since: their hash is {short_hash(self.hash)} now"
        return (
            f"the plans that were approved had hash {short_hash(plan_hash)}; {changed}. Look at the new plans",
            *whole_hash_needed(plan_hash, self.hash),
        )


@dataclass(frozen=True, slots=True)
class Standing:
    run: Run
    steps: tuple[StepRecord, ...]
    waits: bool = False
    """For confirmation, because its source answered before promotion."""
    turned: bool = False

    @property
    def place(self) -> Place:
        return place_of(self.run, self.steps, turned=self.turned)

    @property
    def outcome(self) -> str:
        seen = "" if vouching.as_copied(self.steps) else f", {vouching.sentence(vouching.of_run(self.steps))}"
        return f"{self.run.plan.mirror}: {self.place}{seen}"

    @property
    def way_on(self) -> str:
        mirror = self.run.plan.mirror
        word = f"`mirrorbook failover resume {mirror} --leave-behind`, or `mirrorbook failover abort {mirror}`"
        return word if self.waits else "resume it"

    @property
    def advice(self) -> str:
        return "" if self.waits else f". When that is mended: `mirrorbook failover resume {self.run.plan.mirror}`"


def set_named(config: Config, name: str) -> MirrorSet:
    if name not in config.sets:
        known = ", ".join(sorted(config.sets)) or "none"
        raise BadRequest(f"unknown set {name!r}: section `sets:` of {config.path} has {known}")
    return config.sets[name]
