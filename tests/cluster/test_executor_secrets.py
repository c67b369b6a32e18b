"""What an executor needs, and what it must not: the control principal's secrets stay with the driver."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.copy import task as copy_task
from mirror_core.copy.driver_messages import ClaimBoard
from mirror_core.dataplane.datagram_receiver import DatagramReceiver, build_handlers
from mirror_core.model.names import Offset
from mirror_core.model.task_messages import ListenAddress
from mirror_core.model.timing import now_ms
from tests.support.gap_assignments import assignment
from tests.support.gap_logs import assert_equal, transaction, transactional
from tests.support.kafka_clients import Pair, new_topic
from tests.support.mirrored_topics import new_mirror
from tests.support.shifted_clock import ShiftedClock

pytestmark = pytest.mark.cluster


def test_a_task_needs_no_secret_of_the_control_principal(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    transaction(transactional(pair.east), topic, 5, commit=True)
    known = pair.config_path.read_text(encoding="utf-8")
    assert ":mirror-control}" in known
    path = tmp_path / "of-an-executor.yaml"
    path.write_text(known.replace(":mirror-control}", ":gone}"), encoding="utf-8")
    now = int(time.time() * 1000)
    given = replace(assignment(mirrored, 7, now, now + 120_000), config_path=str(path))
    ends = tuple(replace(one, stop_offset=Offset(6)) for one in given.partitions if one.partition.topic == topic)
    assert copy_task.run(replace(given, partitions=ends)).failures == ()
    assert_equal(pair, topic)


def test_a_task_whose_clock_is_behind_stops_when_its_driver_says_that_its_time_is_over(
    pair: Pair, tmp_path: Path, clock: ShiftedClock
) -> None:
    """It waited in Spark's queue for a minute, which its own clock cannot tell."""
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    now, asked = now_ms(), list[float]()
    given = assignment(mirrored, 7, now - 59_000, now - 30_000)
    with DatagramReceiver(ListenAddress(), build_handlers(ClaimBoard(), None)) as driver:
        address = driver.address_for(7, now)
        clock.hours = -1
        began_s = time.monotonic()

        def is_cancelled() -> bool:
            asked.append(time.monotonic() - began_s)
            return asked[-1] > 25

        copy_task.run(replace(given, submitted_ms=now - 60_000, driver_address=address), is_cancelled)
        clock.hours = 0
    assert max(asked) < 25, "it went on until it was told to stop"
