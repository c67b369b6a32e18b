"""Both logs are compared, and the source does not show all of it yet: why, and when it is looked at again."""

from __future__ import annotations

from typing import cast

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.copy.verdict import Logs, Undecided
from mirror_core.decide.position import ANYWHERE, Ours, Seen
from mirror_core.model.copying import Assigned
from mirror_core.model.names import Offset, Partition
from tests.judging import decide

P = Partition("orders", 0)
SEEN = Seen(log_start=0, log_end=10, ours=Ours(10, -1), source_start=0, source_end=20)


class Open:
    """The source has a transaction open below the position."""

    compared = 0

    def first_divergence(self, partition: Partition, position: int, since: int | None) -> Offset | None:
        self.compared += 1
        raise Undecided(f"cluster east, {partition}: readable up to 5 only, and copied to {position}")


def test_a_comparison_that_cannot_end_yet_says_why_and_is_repeated_less_and_less_often() -> None:
    now, logs = 0.0, Open()
    assigned = Assigned(partition=P, source_topic_id="", destination_topic_id="", source_epoch=1, answered=True)
    one = PartitionReplicator(assigned, clock=lambda: now)
    one.route(1, 2, 1)
    while now < 10.0:
        if one.due():
            decide(cast("Logs", logs), one, SEEN, ANYWHERE)
        now += 0.01
    assert one.state is State.LOST
    assert one.lost_why == f"cluster east, {P}: readable up to 5 only, and copied to 10"
    assert 10 < logs.compared < 20, "at most once a second in the end"
