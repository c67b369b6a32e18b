"""Whether a cluster may open before anybody can fence it: never while a failover away from it is known and unfenced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.fence_state import BrokerStartGate, RecordedMirrors, decide_broker_start
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from tests.support.mirror_views import MIRROR

EAST, WEST, NORTH = ClusterName("east"), ClusterName("west"), ClusterName("north")
NAME = MIRROR.name
BACK = replace(MIRROR, name=MirrorName("m-back"), source=WEST, destination=EAST)
OWED = PendingFence(mirror=NAME, cluster=EAST, action=FenceAction.APPLY, run="r-1", since_ms=1_000)
SEEN = replace(OWED, applied_at_ms=2_000)
NO_AUTHORIZER = replace(OWED, log_ends=PartitionOffsets.from_mapping({Partition("t", 0): Offset(1)}))
LIFTING = replace(OWED, action=FenceAction.LIFT)


def west(*mirrors: Mirror, debt: PendingFence | None = None) -> dict[ClusterName, RecordedMirrors | str]:
    return {WEST: RecordedMirrors(mirrors, {debt.mirror: debt} if debt else {})}


@pytest.mark.parametrize(
    ("debt", "gate", "words"),
    [
        (None, BrokerStartGate.OPEN, "west remembers no failover of mirror m."),
        (LIFTING, BrokerStartGate.OPEN, "west remembers no failover of mirror m."),
        (SEEN, BrokerStartGate.OPEN, "each broker of east had its fence at 1970-01-01 00:00:02 UTC"),
        (OWED, BrokerStartGate.BLOCKED, "run r-1 moved those of mirror m to west"),
        (
            replace(SEEN, by_command=True),
            BrokerStartGate.OPEN,
            "its fence_command closed east at 1970-01-01 00:00:02 UTC",
        ),
        (NO_AUTHORIZER, BrokerStartGate.BLOCKED, "east cannot be fenced by Mirrorbook"),
    ],
)
@pytest.mark.parametrize("asked", ["m", "m-back"])
def test_a_source_opens_unless_it_was_failed_away_from_and_is_not_seen_fenced(
    debt: PendingFence | None, gate: BrokerStartGate, words: str, asked: str
) -> None:
    found = decide_broker_start(EAST, MirrorName(asked), west(MIRROR, debt=debt))
    assert found.gate is gate
    assert words in found.text


def test_a_new_primary_that_was_given_up_on_the_way_home_is_shut_by_the_other_side() -> None:
    debt = replace(OWED, mirror=BACK.name, cluster=WEST)
    there: dict[ClusterName, RecordedMirrors | str] = {EAST: RecordedMirrors((BACK,), {BACK.name: debt})}
    assert decide_broker_start(WEST, NAME, there).gate is BrokerStartGate.BLOCKED
    assert decide_broker_start(WEST, NAME, {EAST: RecordedMirrors((BACK,), {})}).gate is BrokerStartGate.OPEN


@pytest.mark.parametrize(
    "others",
    [
        {WEST: "not known: no broker answered"},
        west(),
        west(replace(MIRROR, name=MirrorName("orders"))),
        west(BACK),
        {NORTH: RecordedMirrors((MIRROR,), {})},
    ],
    ids=["silent", "nothing there", "another mirror", "another direction", "not its destination"],
)
def test_where_nobody_knows_of_it_silence_is_said_and_never_taken_for_a_yes(
    others: dict[ClusterName, RecordedMirrors | str],
) -> None:
    assert decide_broker_start(EAST, NAME, others).gate is BrokerStartGate.UNKNOWN


@pytest.mark.parametrize(
    ("debt", "gate"), [(None, BrokerStartGate.UNKNOWN), (SEEN, BrokerStartGate.OPEN), (OWED, BrokerStartGate.BLOCKED)]
)
def test_a_cluster_whose_state_topic_lost_records_may_have_forgotten_a_failover(
    debt: PendingFence | None, gate: BrokerStartGate
) -> None:
    others = west(MIRROR, debt=debt)
    recorded = others[WEST]
    assert isinstance(recorded, RecordedMirrors)
    assert decide_broker_start(EAST, NAME, {WEST: replace(recorded, log_start_offset=7)}).gate is gate


def test_a_pending_fence_outweighs_who_is_silent_and_who_knows_nothing() -> None:
    others = {**west(MIRROR, debt=OWED), NORTH: "not known: no broker answered"}
    assert decide_broker_start(EAST, NAME, others).gate is BrokerStartGate.BLOCKED
