"""Many idle partitions that a far destination has forgotten, beside a busy one: it is not kept waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Partition
from tests.drill.one_task import one_task
from tests.support.checked_threads import beside
from tests.support.cluster_admin import as_admin
from tests.support.expired_producers import Application, Looked, caught_up, forgotten
from tests.support.kafka_clients import TIMEOUT_S
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import Writer
from tests.support.topic_equality import assert_same
from tests.support.waiting import wait_until
from tests.support.wan_clusters import Distant, distant_clusters

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

IDLE = 300
BUSY_S = 2.0
"""A busy partition is never further behind, whatever becomes of idle ones."""
ROUND_TRIP_MS = 50


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    often = {"producer.id.expiration.check.interval.ms": "200"}
    with distant_clusters(tmp_path_factory.mktemp("far"), extra=often) as made:
        yield made


class Lags:
    """How long ago the destination's log end was the source's: seen again and again, until left."""

    def __init__(self, mirrored: Mirrored, partition: Partition) -> None:
        self.most_s = 0.0
        self.looks = 0
        self._mirrored, self._partition = mirrored, partition
        self._stop = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        with beside(self._watch, self._stop.set):
            yield

    def _watch(self) -> None:
        pair, ends = self._mirrored.pair, list[tuple[float, int]]()
        with as_admin(pair.east) as east, as_admin(pair.west) as west:
            while not self._stop.wait(0.02):
                position = list_offsets(west, [self._partition], OffsetPoint.LOG_END)[self._partition]
                now = time.monotonic()
                while ends and ends[0][1] <= position:
                    ends.pop(0)
                if ends:
                    self.most_s = max(self.most_s, now - ends[0][0])
                ends.append((now, list_offsets(east, [self._partition], OffsetPoint.STABLE_END)[self._partition]))
                self.looks += 1


@pytest.mark.timed
def test_idle_ones_that_are_forgotten_do_not_hold_up_a_busy_one(
    distant: Distant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = distant.pair
    idle, busy = Application(pair, IDLE), Application(pair, 1)
    mirrored = new_mirror(pair, tmp_path, idle.topic, busy.topic)
    everything = [*idle.partitions, *busy.partitions]
    idle.plain(range(IDLE), 2)
    busy.plain([0])
    mirrored.copy()
    looked = Looked(monkeypatch)
    [partition] = busy.partitions
    forgotten(mirrored, everything)
    with distant.is_far(pair.west, ROUND_TRIP_MS), one_task(mirrored, everything) as task:
        lags = Lags(mirrored, partition)
        with Writer(pair.east, busy.topic, 1):
            wait_until(lambda: task.copies(partition), timeout_s=TIMEOUT_S, why="the busy one has its place")
            with lags.watched():
                wait_until(lambda: lags.looks > 100, timeout_s=TIMEOUT_S, why="a while")
            assert lags.most_s < BUSY_S, f"busy beside {IDLE} idle ones: {lags.most_s:.2f} s behind"
            assert set(looked.at) <= {partition}, "nothing was to be copied of the others"
            lags = Lags(mirrored, partition)
            with lags.watched():
                idle.plain(range(IDLE), 1)
                caught_up(mirrored, idle.partitions)
            assert lags.most_s < BUSY_S, f"busy while {IDLE} are looked at: {lags.most_s:.2f} s behind"
        caught_up(mirrored, everything)
    assert sorted(set(looked.at) - {partition}) == idle.partitions
    assert_same(pair, [idle.topic, busy.topic])
