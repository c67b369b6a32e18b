"""Filters change under load while data planes are killed, suspended and replaced: nothing is lost, shifted or open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from mirror_core.decide.mirror_change import FilterChange
from mirror_core.mirrors.mirror_change import change_mirror, finish_change, prepare_change
from mirror_core.model.mirror import PartitionState, TopicAccess
from mirror_core.model.names import Partition
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import PATIENCE_S, Progress, Writer, assert_prefix, at_work
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

STATES = (None, PartitionState.STOPPING, PartitionState.STOPPED)


def record(mirrored: Mirrored, **changes: object) -> None:
    wanted = FilterChange(**changes)  # type: ignore[arg-type]
    change_mirror(mirrored.link, wanted, prepare_change(mirrored.link, mirrored.state, wanted).plan.hash)


@pytest.mark.parametrize("reached", STATES, ids=["recorded", "stopping", "stopped"])
@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_a_change_outlives_its_data_plane(
    pair: Pair, tmp_path: Path, fault: str, reached: PartitionState | None
) -> None:
    stays, leaves = app_topic(pair), app_topic(pair)
    mirrored = new_mirror(pair, tmp_path, stays, leaves)
    copied, partition = Progress(mirrored, "west", leaves), Partition(leaves, 0)

    def is_reached() -> bool:
        status = mirrored.statuses.get(partition)
        return reached is None or status is None or status.state is reached

    with ExitStack() as everything:
        writers = everything.enter_context(ExitStack())
        for topic in (stays, leaves):
            produce(pair.east, topic, 100)
            writers.enter_context(Writer(pair.east, topic, 1))
        first = everything.enter_context(at_work(mirrored, "local", tmp_path))
        copied.reaches(150, first)
        record(mirrored, exclude_topics=(leaves,), access=TopicAccess.RELEASED)
        wait_until(is_reached, timeout_s=PATIENCE_S, why=f"the data plane has come to {reached}")
        if fault == "kill":
            first.kill()
        else:
            first.psutil.suspend()
        second_folder = tmp_path / "second"
        second_folder.mkdir()
        second = everything.enter_context(at_work(mirrored, "local", second_folder))
        assert finish_change(mirrored.link, timeout_s=PATIENCE_S)
        departure = mirrored.state.departures[mirrored.name][leaves]
        [ended] = departure.statuses
        assert (departure.is_done, ended.state, ended.lmo) == (True, PartitionState.STOPPED, copied.total())
        if fault == "suspend":
            first.psutil.resume()
            assert first.ends() == 5, "another process has the mirror"
        assert copied.total() == ended.lmo, "somebody has written the topic that was released"
        assert_prefix(read_all(pair.west, leaves), read_all(pair.east, leaves))
        record(mirrored, exclude_topics=())
        wait_until(is_written_past(copied, ended.lmo or 0), timeout_s=PATIENCE_S, why="it returns while it is written")
        assert denied(pair.west, leaves)
        writers.close()
        for topic in (stays, leaves):
            wait_until(
                partial(is_equal, pair, topic),
                timeout_s=PATIENCE_S,
                why=f"{topic} is copied, at the same offsets",
            )
        assert second.code is None, second.said
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}


def is_equal(pair: Pair, topic: str) -> bool:
    return read_all(pair.west, topic) == read_all(pair.east, topic)


def is_written_past(copied: Progress, end: int) -> Callable[[], bool]:
    return lambda: copied.total() > end
