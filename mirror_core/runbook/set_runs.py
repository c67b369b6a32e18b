"""The plans and the runs of the mirrors of a set."""

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
    """Not all mirrors of the set were moved. The message says of each what has become of it."""


@dataclass(frozen=True, slots=True)
class Joint:
    """All plans, and every reason why the set may not be moved now."""

    decisions: Mapping[MirrorName, Decision]
    hash: str
    reasons: tuple[str, ...]
    silent: tuple[MirrorName, ...] = ()
    """Of which no broker of the source is there, that their plans give up."""

    def other_than(self, plan_hash: str | None) -> tuple[str, ...]:
        """The reason not to run these plans when others were approved; None: whichever they are."""
        if plan_hash in (None, self.hash):
            return ()
        changed = f"they have changed since: their hash is {short_hash(self.hash)} now"
        return (
            f"the plans that were approved had hash {short_hash(plan_hash)}; {changed}. Look at the new plans",
            *whole_hash_needed(plan_hash, self.hash),
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """A mirror's run, as its journal tells of it."""

    run: Run
    steps: tuple[StepRecord, ...]
    waits: bool = False
    """For a person's word, since its source answered before it promoted."""
    turned: bool = False
    """Its promotion may have given something: there is no abort."""

    @property
    def place(self) -> Place:
        return place_of(self.run, self.steps, turned=self.turned)

    @property
    def outcome(self) -> str:
        """Of one that has not failed, in words."""
        seen = "" if vouching.as_copied(self.steps) else f", {vouching.sentence(vouching.of_run(self.steps))}"
        return f"{self.run.plan.mirror}: {self.place}{seen}"

    @property
    def way_on(self) -> str:
        """Of one that is kept."""
        mirror = self.run.plan.mirror
        word = f"`mirrorbook failover resume {mirror} --leave-behind`, or `mirrorbook failover abort {mirror}`"
        return word if self.waits else "resume it"

    @property
    def advice(self) -> str:
        """Behind the error of one that has failed. One that waits for a word has said how to go on."""
        return "" if self.waits else f". When that is mended: `mirrorbook failover resume {self.run.plan.mirror}`"


def set_named(config: Config, name: str) -> MirrorSet:
    """The set of this name, or BadRequest."""
    if name not in config.sets:
        known = ", ".join(sorted(config.sets)) or "none"
        raise BadRequest(f"unknown set {name!r}: section `sets:` of {config.path} has {known}")
    return config.sets[name]
