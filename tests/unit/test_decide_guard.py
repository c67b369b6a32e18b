"""Whether a cluster may open before anybody can fence it: never while a failover away from it is known and unfenced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.guard import Gate, Remembered, guard
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.offsets import Offsets
from mirror_core.model.standing import Debt, Owed
from tests.unit.test_decide_verbs import MIRROR

EAST, WEST, NORTH = ClusterName("east"), ClusterName("west"), ClusterName("north")
NAME = MIRROR.name
BACK = replace(MIRROR, name=MirrorName("m-back"), source=WEST, destination=EAST)
OWED = Debt(mirror=NAME, cluster=EAST, owed=Owed.FENCE, run="r-1", since_ms=1_000)
SEEN = replace(OWED, paid_ms=2_000)
NO_AUTHORIZER = replace(OWED, ends=Offsets.of({Partition("t", 0): Offset(1)}))
LIFTING = replace(OWED, owed=Owed.UNFENCE)


def west(*mirrors: Mirror, debt: Debt | None = None) -> dict[ClusterName, Remembered | str]:
    return {WEST: Remembered(mirrors, {debt.mirror: debt} if debt else {})}


@pytest.mark.parametrize(
    ("debt", "gate", "words"),
    [
        (None, Gate.OPEN, "west remembers no failover of mirror m."),
        (LIFTING, Gate.OPEN, "west remembers no failover of mirror m."),
        (SEEN, Gate.OPEN, "each broker of east had its fence at 1970-01-01 00:00:02 UTC"),
        (OWED, Gate.SHUT, "run r-1 moved those of mirror m to west"),
        (replace(SEEN, by_command=True), Gate.OPEN, "its fence_command closed east at 1970-01-01 00:00:02 UTC"),
        (NO_AUTHORIZER, Gate.SHUT, "east cannot be fenced by Mirrorbook"),
    ],
)
@pytest.mark.parametrize("asked", ["m", "m-back"])
def test_a_source_opens_unless_it_was_failed_away_from_and_is_not_seen_fenced(
    debt: Debt | None, gate: Gate, words: str, asked: str
) -> None:
    found = guard(EAST, MirrorName(asked), west(MIRROR, debt=debt))
    assert found.gate is gate
    assert words in found.words


def test_a_new_primary_that_was_given_up_on_the_way_home_is_shut_by_the_other_side() -> None:
    debt = replace(OWED, mirror=BACK.name, cluster=WEST)
    there: dict[ClusterName, Remembered | str] = {EAST: Remembered((BACK,), {BACK.name: debt})}
    assert guard(WEST, NAME, there).gate is Gate.SHUT
    assert guard(WEST, NAME, {EAST: Remembered((BACK,), {})}).gate is Gate.OPEN


@pytest.mark.parametrize(
    "others",
    [
        {WEST: "not known: no broker answered"},
        west(),
        west(replace(MIRROR, name=MirrorName("orders"))),
        west(BACK),
        {NORTH: Remembered((MIRROR,), {})},
    ],
    ids=["silent", "nothing there", "another mirror", "another direction", "not its destination"],
)
def test_where_nobody_knows_of_it_silence_is_said_and_never_taken_for_a_yes(
    others: dict[ClusterName, Remembered | str],
) -> None:
    assert guard(EAST, NAME, others).gate is Gate.SILENT


def test_a_pending_fence_outweighs_who_is_silent_and_who_knows_nothing() -> None:
    others = {**west(MIRROR, debt=OWED), NORTH: "not known: no broker answered"}
    assert guard(EAST, NAME, others).gate is Gate.SHUT
