"""Behind the fence: whose end is looked at once more, though the leader has forgotten who wrote it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.resume_decision import LogInspector
from mirror_core.decide.gaps_and_resume import BothLogBounds
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionAssignment
from mirror_core.wire.records import Record
from tests.support.resume_decisions import decide

P = Partition("orders", 0)
FORGOTTEN = BothLogBounds(
    log_start=0, log_end=10, producer=None, source_start=0, source_end=10, ends_as_sent=True, verified_end=10
)


class Tails:
    """Logs whose last records differ; and how often somebody looked."""

    looks = 0

    def read_last_record(self, partition: Partition, start: int, end: int) -> Record | None:
        self.looks += 1
        return Record(offset=9, timestamp_ms=0, key=None, value=b"theirs", headers=())

    def read_record(self, partition: Partition, offset: int) -> Record | None:
        return None

    def find_foreign_after_own(
        self, partition: Partition, bounds: BothLogBounds, search_from: int | None
    ) -> int | None:
        return None

    def find_first_retimed(self, partition: Partition, start: int, bounds: BothLogBounds) -> int | None:
        return None


def ended(seen: BothLogBounds, *, until: int = 10) -> tuple[PartitionReplicator, int]:
    assigned = PartitionAssignment(
        partition=P,
        source_topic_id="",
        destination_topic_id="",
        stop_offset=Offset(until),
        source_epoch=1,
        all_answered=True,
    )
    one, tails = PartitionReplicator(assigned), Tails()
    one.set_leaders(1, 1, 1)
    decide(cast("LogInspector", tails), one, seen)
    return one, tails.looks


def test_an_idle_partition_that_was_compared_to_its_end_is_done() -> None:
    one, looks = ended(FORGOTTEN)
    assert (one.state, looks) == (CopyState.DONE, 0)


@pytest.mark.parametrize(
    ("seen", "until"),
    [
        (replace(FORGOTTEN, verified_end=None), 10),
        (replace(FORGOTTEN, verified_end=9), 10),
        (replace(FORGOTTEN, verified_end=11), 10),
        (replace(FORGOTTEN, source_end=12), 12),
    ],
    ids=["never compared", "not to its end", "another log was compared", "there is something to copy"],
)
def test_all_others_are_looked_at(seen: BothLogBounds, until: int) -> None:
    one, looks = ended(seen, until=until)
    assert looks == 1
    assert one.failure
    assert one.failure.kind is FailureKind.DIVERGED
