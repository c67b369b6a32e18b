"""Somebody changes a mirror topic on the destination: what that does to records is found, and the partition FAILED."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.topics import alter_configs, delete_records
from mirror_core.model.errors import PartitionFailed
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.sandbox.cluster import SandboxCluster
from tests.administering import as_admin
from tests.brokers import TIMEOUT_S, Pair, new_topic, produce
from tests.driving import driving
from tests.mirroring import new_mirror
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster


def offset(cluster: SandboxCluster, partition: Partition, point: Point) -> int:
    with as_admin(cluster) as client:
        return list_offsets(client, [partition], point)[partition]


def test_a_broker_that_gives_records_its_own_time_is_found(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    partition = Partition(topic, 0)
    mirrored = new_mirror(pair, tmp_path, topic)
    produce(pair.east, topic, 5)
    mirrored.copy()
    with as_admin(pair.west) as client:
        alter_configs(client, {topic: {"message.timestamp.type": "LogAppendTime"}})
    produce(pair.east, topic, 3)
    with pytest.raises(PartitionFailed, match=f"cluster west, {partition}: from offset 5 on records have the broker's"):
        mirrored.copy()
    status = mirrored.statuses[partition]
    assert (status.state, status.kind, status.failed_at) == (PartitionState.FAILED, FailureKind.ALTERED, 5)


def test_what_is_deleted_on_the_destination_alone_is_found(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, 3)
    here, both, none = [Partition(topic, index) for index in range(3)]
    mirrored = new_mirror(pair, tmp_path, topic)
    for partition in (here, both, none):
        produce(pair.east, topic, 10, partition=partition.index)

    def copied() -> bool:
        known = mirrored.statuses
        return (
            {here, both, none} <= known.keys()
            and {s.state for s in known.values()} == {PartitionState.MIRRORING}
            and all(offset(pair.west, p, Point.LOG_END) == 10 for p in (here, both, none))
        )

    with driving(mirrored), as_admin(pair.east) as east, as_admin(pair.west) as west:
        wait_until(copied, timeout_s=TIMEOUT_S, why="all of it is copied")
        delete_records(west, {here: Offset(4)})
        delete_records(east, {both: Offset(4)})
        wait_until(
            lambda: mirrored.statuses[here].kind is FailureKind.DELETED, timeout_s=TIMEOUT_S, why="that is found"
        )
        reason = mirrored.statuses[here].reason
        assert reason is not None
        assert f"{here}: records below 4 were deleted there, and the source still has those from 0 on" in reason
        wait_until(
            lambda: offset(pair.west, both, Point.START) == 4,
            timeout_s=TIMEOUT_S,
            why="what the source deletes goes here, too",
        )
    assert {mirrored.statuses[p].state for p in (both, none)} == {PartitionState.MIRRORING}
