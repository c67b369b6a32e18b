"""Each guard against a bad day, taken away: then the copy is wrong without a word, and the check of histories sees it.

fault class                                  guard that is taken away                             where
latency, answers that come late              what was looked at in another turn counts no more    test_copier_model
stalls, SIGSTOP for longer than a lease      who has slept looks again before it writes           test_copier_model
two copiers, refused and unheard batches     sequences, fences, barriers, turns (20 of them)      test_copier_model
producer expiry                              logs' ends are compared where nothing is remembered  test_copier_model
restored source; `source_epoch`              the epoch under which both agreed last is kept       here
restored source, unclean election            the logs' contents are compared                      here
unclean election under another leader        the epoch under which both agreed last is kept       test_three_nodes
LogAppendTime on the destination             the time in a broker's answer                        here
retention and deletion on the destination    log starts are compared                              here
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from mirror_core.copy import batch_producer
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.response_errors import handle_produce_response
from mirror_core.copy.resume_decision import ResumeDecider
from mirror_core.copy.send_queue import SentBatch
from mirror_core.dataplane.epoch_planner import Planner
from mirror_core.kafka.topics import alter_configs, delete_records
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionFailure
from mirror_core.wire.produce import ProducedPartition
from tests.drill.weather import equal_or_failed
from tests.support.cluster_admin import as_admin
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.log_cutting import batch_of_100, lose_tails
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

ENOUGH_LOOKS: Final = 5
"""Two that see it are believed."""
Fault = Callable[[Mirrored, str], None]
Guard = Callable[[pytest.MonkeyPatch], None]


def _restored(mirrored: Mirrored, topic: str) -> None:
    """The source comes back with an older copy of its log, and grows beyond where it was before."""
    lose_tails(mirrored.pair.east, {topic: 300})
    for first in range(5_000, 6_000, 100):
        batch_of_100(mirrored.pair.east, topic, first)
    replicate(mirrored.link)


def _stamped(mirrored: Mirrored, topic: str) -> None:
    """The mirror topic gives records the broker's time."""
    with as_admin(mirrored.pair.west) as client:
        alter_configs(client, {topic: {"message.timestamp.type": "LogAppendTime"}})
    batch_of_100(mirrored.pair.east, topic, 500)
    replicate(mirrored.link)


def _deleted(mirrored: Mirrored, topic: str) -> None:
    """The mirror topic loses its beginning, while a data plane is at work."""
    partition, look, looks = Partition(topic, 0), Planner.follow_log_start, list[int]()

    def counted(planner: Planner, partitions: Iterable[Partition]) -> list[PartitionFailure]:
        found = look(planner, partitions)
        looks.append(len(found))
        return found

    with pytest.MonkeyPatch.context() as patch, driving(mirrored), as_admin(mirrored.pair.west) as client:
        delete_records(client, {partition: Offset(200)})
        patch.setattr(Planner, "follow_log_start", counted)
        wait_until(
            lambda: mirrored.statuses[partition].kind is not None or len(looks) >= ENOUGH_LOOKS,
            timeout_s=TIMEOUT_S,
            why="a driver has looked where the logs begin",
        )


def _epochs(patch: pytest.MonkeyPatch) -> None:
    """Whatever leads the source now is what both agreed under, and has what was copied."""
    patch.setattr(ResumeDecider, "_has_other_tail", lambda *_: False)
    patch.setattr(PartitionReplicator, "agreed_epoch", property(lambda one: one.source_epoch))


def _contents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ResumeDecider, "_check_divergence", lambda *_: None)


def _times(patch: pytest.MonkeyPatch) -> None:
    def timeless(one: PartitionReplicator, sent: SentBatch, produced: ProducedPartition, side: ClusterSide) -> bool:
        return handle_produce_response(one, sent, produced._replace(append_time=-1), side)

    patch.setattr(batch_producer, "handle_produce_response", timeless)


def _starts(patch: pytest.MonkeyPatch) -> None:
    def unseen(planner: Planner, partitions: Iterable[Partition]) -> list[PartitionFailure]:
        return []

    patch.setattr(Planner, "follow_log_start", unseen)


class Case(NamedTuple):
    fault: Fault
    kind: FailureKind
    guard: Guard


CASES: Final = (
    Case(_restored, FailureKind.DIVERGED, _epochs),
    Case(_restored, FailureKind.DIVERGED, _contents),
    Case(_stamped, FailureKind.ALTERED, _times),
    Case(_deleted, FailureKind.DELETED, _starts),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.fault.__name__}{case.guard.__name__}")
def test_without_its_guard_a_fault_makes_a_wrong_copy_and_the_check_of_histories_sees_it(
    case: Case, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after_the_fault() -> str:
        topic = new_topic(pair.east, retention_ms="-1")
        for first in range(0, 500, 100):
            batch_of_100(pair.east, topic, first)
        mirrored = new_mirror(pair, tmp_path, topic)
        mirrored.copy()
        case.fault(mirrored, topic)
        return equal_or_failed(mirrored, Partition(topic, 0), case.kind, struck=True)

    assert after_the_fault() == f"FAILED as {case.kind}"
    case.guard(monkeypatch)
    with pytest.raises(AssertionError, match="and is not FAILED"):
        after_the_fault()
