"""An approval names a plan by its hash: whatever was approved changes it, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.names import MirrorName
from mirror_core.model.run import (
    FactLifetime,
    FailbackStrategy,
    Plan,
    PlanFact,
    PlanStep,
    RunKind,
    RunMode,
    shorten_hash,
)

FENCE = PlanStep(name="fence", action="deny everybody")
PROMOTE = PlanStep(name="promote", action="let applications write", reversible=False)
SOURCE, GROUPS = PlanFact("source", "E", FactLifetime.UNTIL_PROMOTION), PlanFact("groups", "none")
PLAN = Plan(
    kind=RunKind.FAILOVER,
    mirror=MirrorName("m"),
    mode=RunMode.PLANNED,
    steps=(FENCE, PROMOTE),
    bound_facts=(SOURCE, GROUPS),
    unknown=(Finding("lag", "a-0", known=1), Finding("lag", "a-1")),
    strategies={"a": FailbackStrategy.NONE, "b": FailbackStrategy.RECREATE},
)


def test_it_is_a_whole_sha_256_of_which_people_see_twelve_digits() -> None:
    assert len(PLAN.hash) == 64
    assert shorten_hash(PLAN.hash) == PLAN.hash[:12]
    int(PLAN.hash, 16)


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAN, kind=RunKind.FAILBACK),
        replace(PLAN, mirror=MirrorName("n")),
        replace(PLAN, mode=RunMode.UNPLANNED),
        replace(PLAN, steps=(FENCE,)),
        replace(PLAN, steps=(PROMOTE, FENCE)),
        replace(PLAN, steps=(replace(FENCE, name="drain"), PROMOTE)),
        replace(PLAN, steps=(replace(FENCE, action="deny nobody"), PROMOTE)),
        replace(PLAN, steps=(FENCE, replace(PROMOTE, reversible=True))),
        replace(PLAN, bound_facts=(SOURCE,)),
        replace(PLAN, bound_facts=(replace(SOURCE, name="destination"), GROUPS)),
        replace(PLAN, bound_facts=(replace(SOURCE, value="F"), GROUPS)),
        replace(PLAN, bound_facts=(replace(SOURCE, lifetime=FactLifetime.UNTIL_BEGUN), GROUPS)),
        replace(PLAN, unknown=()),
        replace(PLAN, unknown=(Finding("lag", "a-0", known=1), Finding("lag", "a-2"))),
        replace(PLAN, unknown=(Finding("lag", "a-0", known=2), Finding("lag", "a-1"))),
        replace(PLAN, unknown=(Finding("end", "a-0", known=1), Finding("lag", "a-1"))),
        replace(PLAN, strategies={"a": FailbackStrategy.NONE, "b": FailbackStrategy.NONE}),
        replace(PLAN, strategies={"b": FailbackStrategy.RECREATE}),
    ],
)
def test_each_thing_that_was_approved_changes_it(other: Plan) -> None:
    assert other.hash != PLAN.hash


@pytest.mark.parametrize(
    "same",
    [
        replace(PLAN, figures={FigureKey.LAG_OFFSETS: 5}),
        replace(PLAN, partitions={"a-0": {FigureKey.LAG_OFFSETS: 5}}, groups={"g": {FigureKey.READ_AGAIN_MOST: 3}}),
        replace(PLAN, warnings=(Finding("no data plane"),)),
        replace(PLAN, discarded=7),
        replace(PLAN, bound_facts=(GROUPS, SOURCE)),
        replace(PLAN, unknown=(Finding("lag", "a-1"), Finding("lag", "a-0", known=1))),
        replace(PLAN, unknown=(Finding("lag", "a-0", known=1), Finding("lag", "a-1", reason="silent for 1.02 s"))),
        replace(PLAN, strategies={"b": FailbackStrategy.RECREATE, "a": FailbackStrategy.NONE}),
    ],
)
def test_what_always_moves_and_the_order_in_which_it_was_seen_do_not(same: Plan) -> None:
    assert same.hash == PLAN.hash
