"""Bad days: what befalls the links between copiers and clusters, and what befalls single partitions for good.

Each sort of harm has a partition of its own, so that it is known what may be said of it at the end:

    action        what it does                                            equal in the end, or FAILED as
    blow        a side is up to 200 ms away, stalls, or is cut off      equal
    forget      the destination forgets who wrote what                  equal
    stamp       a mirror topic is set to LogAppendTime, for a while     altered
    shorten     records are deleted from a mirror topic                 deleted
    restore     the source's log is put back to an older copy of it     diverged
    usurp       of three nodes: an unclean election of the source       diverged
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.reassignment import reassign, wait_for_replicas
from mirror_core.kafka.topics import alter_configs, delete_records
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionFailure
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin, broker_setting
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored
from tests.support.waiting import wait_until
from tests.support.wan_clusters import Distant
from tests.support.wan_relay import Weather

FARTHEST_MS: Final = 100
"""One way."""
LONGEST_STALL_S: Final = 12.0
"""Longer than a lease stays fresh, and than any answer is waited for."""
FORGETS_S: Final = 1.0
"""It looks for producers of long ago five times meanwhile."""
SOME: Final = 30
QUICK: Final = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    "producer.id.expiration.check.interval.ms": "200",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
}
"""Broker properties with which these days don't last longer than they have to. The last one: a broker that is killed
within a minute (by default) after DeleteRecords has the deleted records again; what was copied meanwhile lacks them."""


class BadDays:
    """What it does to whom."""

    def __init__(self, distant: Distant, folder: Path, chance: random.Random) -> None:
        self.distant = distant
        self.pair: Pair = distant.pair
        self.folder = folder / "backup"
        self.chance = chance
        east, kept = self.pair.east, {"retention_ms": "-1"}
        self.topics = tuple(new_topic(east, 1, prefix, **kept) for prefix in ("r-", "u-", "s-", "d-"))
        self.restored, self.usurped, self.stamped, self.shortened = self.topics
        self.may_be: Mapping[Partition, FailureKind] = {
            Partition(self.restored, 0): FailureKind.DIVERGED,
            Partition(self.usurped, 0): FailureKind.DIVERGED,
            Partition(self.stamped, 0): FailureKind.ALTERED,
            Partition(self.shortened, 0): FailureKind.DELETED,
        }
        self.stamping = False
        self.struck: set[Partition] = set()

    @property
    def actions(self) -> list[tuple[int, Callable[[], object]]]:
        """With their weights."""
        return [(3, self.blow), (4, self.grow), (1, self.stamp), (1, self.shorten)]

    def calm(self) -> None:
        """The links are as they should be."""
        for cluster in (self.pair.east, self.pair.west):
            self.distant.becomes(cluster, Weather())

    def blow(self) -> None:
        cluster = self.chance.choice((self.pair.east, self.pair.west))
        kind = self.chance.random()
        if kind < 0.2:
            self.distant.cut(cluster)
        elif kind < 0.4:
            self.distant.becomes(cluster, Weather(stalled=True))
            time.sleep(self.chance.uniform(0.5, LONGEST_STALL_S))  # that is the action
            self.distant.becomes(cluster, Weather())
        else:
            self.distant.becomes(cluster, Weather(delay_ms=self.chance.choice((0, 0, 10, 40, FARTHEST_MS))))

    def forget(self) -> bool:
        """As when no producer has written for a day. False when a broker is not there to do it."""
        west, setting = self.pair.west, ("producer.id.expiration.ms", "1")
        if not all(map(west.pid, west.nodes())):
            return False
        with suppress(KafkaException, FutureTimeoutError), ExitStack() as stack:
            for node in west.nodes():
                stack.enter_context(broker_setting(west, *setting, broker=str(node)))
            time.sleep(FORGETS_S)  # that is the action
            return True
        return False

    def grow(self) -> None:
        """Somebody writes to a topic that is to be harmed."""
        produce(self.pair.east, self.chance.choice(self.topics), self.chance.choice((1, SOME)))

    def stamp(self) -> bool:
        """Begin or cease to give records of one topic the broker's time. False when no broker is there to do it."""
        kind = "CreateTime" if self.stamping else "LogAppendTime"
        with suppress(MirrorError), as_admin(self.pair.west) as client:
            self.struck.add(Partition(self.stamped, 0))  # also where no answer comes
            alter_configs(client, {self.stamped: {"message.timestamp.type": kind}})
            self.stamping = not self.stamping
            return True
        return False

    def shorten(self) -> bool:
        """Some of what was copied of one topic is deleted where it was copied to. False when there is nothing left."""
        partition = Partition(self.shortened, 0)
        with suppress(MirrorError), as_admin(self.pair.west) as client:
            start, end = (
                list_offsets(client, [partition], p)[partition] for p in (OffsetPoint.START, OffsetPoint.HIGH_WATERMARK)
            )
            if start == end:
                return False
            self.struck.add(partition)  # also where no answer comes
            delete_records(client, {partition: Offset(self.chance.randint(start + 1, end))})
            return True
        return False

    def back_up(self) -> None:
        """Of the source's only broker, which is down."""
        if not self.folder.exists():
            shutil.copytree(self._log_of(self.restored), self.folder)

    def restore(self) -> None:
        """As long as it is down: its log of then."""
        shutil.rmtree(self._log_of(self.restored))
        shutil.copytree(self.folder, self._log_of(self.restored))
        self.struck.add(Partition(self.restored, 0))

    def verdicts(self, mirrored: Mirrored, told: Collection[PartitionFailure]) -> Counter[str]:
        """Each is equal, or FAILED for the reason for which it may be; how many are. `told`: what copiers said of it
        meanwhile, which nobody has recorded."""
        self._await_driver(mirrored)
        statuses, found = mirrored.statuses, Counter[str]()
        for partition, kind in self.may_be.items():
            failed = statuses[partition].state is PartitionState.FAILED
            if not failed and kind is FailureKind.ALTERED and any(f.partition == partition for f in told):
                found[f"FAILED as {kind}, once"] += 1
            elif verdict := equal_or_failed(mirrored, partition, kind, struck=partition in self.struck):
                found[verdict] += 1
        return found

    def _await_driver(self, mirrored: Mirrored) -> None:
        """Copiers don't mind what is gone from the destination: a driver of later finds it."""
        partition = Partition(self.shortened, 0)
        with as_admin(self.pair.west) as client:
            if not list_offsets(client, [partition], OffsetPoint.START)[partition]:
                return  # nothing was, or its broker was killed and has forgotten that
        with driving(mirrored):
            wait_until(
                lambda: mirrored.statuses[partition].kind is FailureKind.DELETED,
                timeout_s=TIMEOUT_S,
                why=f"a driver finds out what is missing of {partition}",
            )

    def _log_of(self, topic: str) -> Path:
        return self.pair.east.log_dir() / f"{topic}-0"


def equal_or_failed(mirrored: Mirrored, partition: Partition, kind: FailureKind, *, struck: bool) -> str:
    """As what it is FAILED, for the only reason that there may be; empty: both sides are equal. All else raises."""
    status = mirrored.statuses[partition]
    if status.state is PartitionState.FAILED:
        assert struck, f"nothing has happened to {partition}: {status.reason}"
        assert status.kind is kind, f"{partition}: {status.reason}"
        return f"FAILED as {kind}"
    pair = mirrored.pair
    with as_admin(pair.east) as there, as_admin(pair.west) as here:
        for point in (OffsetPoint.START, OffsetPoint.LOG_END):
            ours, theirs = (list_offsets(client, [partition], point)[partition] for client in (here, there))
            assert ours == theirs, f"{partition} has another {point}, and is not FAILED; struck: {struck}"
    source, copy = (read_all(side, partition.topic) for side in (pair.east, pair.west))
    assert source == copy, f"{partition} differs, and is not FAILED; struck: {struck}"
    return ""


class Usurper:
    """A replica of the source that was left behind leads: what it lacks was acknowledged, and is copied. Of three nodes
    two hold the partition; and two are there at any moment, for the quorum."""

    def __init__(self, cluster: SandboxCluster, partition: Partition) -> None:
        self._cluster = cluster
        self._partition = partition
        with as_admin(cluster) as client:
            reassign(client, {partition: (1, 2)})
            wait_for_replicas(client, {partition: (1, 2)})
            alter_configs(client, {partition.topic: {"unclean.leader.election.enable": "true"}})

    def __call__(self, copied: Callable[[], bool]) -> None:
        leader, _ = self._led()
        behind = 3 - leader
        self._cluster.kill(behind)
        wait_until(lambda: self._led() == (leader, [leader]), timeout_s=TIMEOUT_S, why=f"node {behind} is left behind")
        produce(self._cluster, self._partition.topic, SOME)
        wait_until(copied, timeout_s=TIMEOUT_S, why="what only the leader has is copied")
        self._cluster.stop_process(leader)
        process = self._cluster.brokers[behind - 1].spawn()
        self._cluster.wait_ready({behind: process}, whole_cluster=False)
        wait_until(lambda: self._led()[0] == behind, timeout_s=TIMEOUT_S, why=f"node {behind} leads, uncleanly")
        produce(self._cluster, self._partition.topic, 2 * SOME)
        self._cluster.cont_process(leader)

    def _led(self) -> tuple[int, list[int]]:
        seen = admin_client(self._cluster).list_topics(self._partition.topic, timeout=TIMEOUT_S).topics
        one = seen[self._partition.topic].partitions[self._partition.index]
        return one.leader, sorted(one.isrs)
