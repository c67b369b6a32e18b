"""A source that dies under groups that commit every 100 ms: none skips, and each repeats what it did just before."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Partition
from mirror_core.sync.offset_commits import OffsetCommitRounds, PendingOffsetCommits
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.broker_faults import killed
from tests.support.checked_threads import beside
from tests.support.group_commits import fetch_offsets
from tests.support.group_consumers import Handled, java, librdkafka
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import new_mirror
from tests.support.offset_following import replicating
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

PARTITIONS = 3
RECENT_S = 2.0
ROUNDS = 2


@contextmanager
def writing(cluster: SandboxCluster, topic: str) -> Iterator[None]:
    """A producer that writes a hundred records a second until the end of the block."""
    over = threading.Event()
    producer = Producer({**cluster.client_config("admin"), "enable.idempotence": True, "log_level": 0, "linger.ms": 0})

    def write() -> None:
        number = 0
        while not over.wait(0.01):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
            producer.poll(0)
            number += 1

    try:
        with beside(write, over.set):
            yield
    finally:
        producer.purge()
        producer.flush(5)


def offsets_of(cluster: ClusterClient, group: str) -> dict[Partition, int]:
    return {p: int(c.offset) for p, c in fetch_offsets(cluster, group).committed.items()}


class Watched:
    """The data plane's rounds: what the group had committed on the source at each, as long as that answers."""

    def __init__(self, source: ClusterClient, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended = 0
        self.committed = list[dict[Partition, int]]()
        commit = OffsetCommitRounds.commit_due

        def watched(rounds: OffsetCommitRounds, waiting: PendingOffsetCommits) -> None:
            with suppress(MirrorError):
                self.committed.append(offsets_of(source, group))
            commit(rounds, waiting)
            self.ended += 1

        monkeypatch.setattr(OffsetCommitRounds, "commit_due", watched)


class Still:
    """Whether the copy and the group's offsets have stood there for two rounds of the data plane."""

    def __init__(self, seen: Callable[[], object], watched: Watched) -> None:
        self._look, self._watched = seen, watched
        self._seen, self._since = seen(), watched.ended

    def __call__(self) -> bool:
        ended = self._watched.ended
        now = self._look()
        if now != self._seen:
            self._seen, self._since = now, ended
        return ended > self._since + ROUNDS


Consuming = Callable[..., AbstractContextManager[None]]


@pytest.mark.parametrize("consuming", [librdkafka, java])
def test_a_group_repeats_what_it_did_in_the_last_rounds_and_skips_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consuming: Consuming
) -> None:
    repeated_s(pair, tmp_path, monkeypatch, consuming)


@pytest.mark.timed
@pytest.mark.parametrize("consuming", [librdkafka, java])
def test_a_group_repeats_no_more_than_two_seconds(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consuming: Consuming
) -> None:
    assert repeated_s(pair, tmp_path, monkeypatch, consuming) <= RECENT_S


def repeated_s(pair: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch, consuming: Consuming) -> float:
    """The source is killed: how long before that the first record was handled that the group gets again."""
    topic, group, handled = new_topic(pair.east, PARTITIONS), "g-" + secrets.token_hex(4), Handled()
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, folder, topic, groups=(group,))
    mirrored.copy()
    partitions = [Partition(topic, index) for index in range(PARTITIONS)]
    with (
        ClusterClient(mirrored.link.destination) as west,
        ClusterClient(mirrored.link.source) as east,
        replicating(mirrored.link),
        writing(pair.east, topic),
        consuming(pair.east, group, topic, handled, folder),
    ):
        wait_until(lambda: len(handled) > 300, timeout_s=90, why="the group is at work")
        wait_until(lambda: len(fetch_offsets(west, group).committed) == PARTITIONS, timeout_s=60, why="it is followed")
        watched, before = Watched(east, group, monkeypatch), len(handled)
        wait_until(lambda: len(handled) > before + 500 and watched.ended > ROUNDS, timeout_s=60, why="it goes on")

        def arrived() -> tuple[object, object]:
            return list_offsets(west, partitions, OffsetPoint.LOG_END), offsets_of(west, group)

        with killed(pair.east):
            died = time.monotonic()
            # The copy's last records, and a last round behind them: then nothing moves any more.
            wait_until(Still(arrived, watched), timeout_s=60, why="nothing moves any more")
            there = offsets_of(west, group)
            ends = list_offsets(west, partitions, OffsetPoint.LOG_END)
    worst_s, known = 0.0, watched.committed[-1 - ROUNDS]
    for partition in partitions:
        mine = [(when, offset) for when, index, offset in handled if index == partition.index]
        assert there[partition] <= ends[partition]
        assert there[partition] <= max(offset for _, offset in mine) + 1, "it would skip"
        again = [died - when for when, offset in mine if there[partition] <= offset < ends[partition]]
        print(f"{partition}: {len(again)} records again, the first one of {max(again, default=0.0):.2f} s before")
        assert there[partition] >= min(known[partition], ends[partition]), f"more than of the last {ROUNDS} rounds"
        worst_s = max(worst_s, *again, 0.0)
    return worst_s
