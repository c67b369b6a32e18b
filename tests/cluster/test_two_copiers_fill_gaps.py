"""Two copiers that find the same gaps at the same moment, and neither of which wrote the markers before them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.copy import task as copy_task
from mirror_core.model.names import Offset
from tests.support.gap_assignments import assignment
from tests.support.gap_logs import assert_equal, bounds, transaction, transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.mirrored_topics import new_mirror
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
PARTITIONS = 60


def test_newcomers_take_turns(pair: Pair, tmp_path: Path) -> None:
    """Of two that wait for a gap of one offset, the second one has to see what the first one did."""
    topic = new_topic(pair.east, partitions=PARTITIONS)
    producer = transactional(pair.east)
    transaction(producer, topic, 1, commit=True, partitions=range(PARTITIONS))
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    transaction(producer, topic, 1, commit=True, partitions=range(PARTITIONS))
    whole_log = (0, 2 * (1 + 1))  # the last markers are written behind the commit's answer
    wait_until(
        lambda: set(bounds(pair.east, topic).values()) == {whole_log}, timeout_s=TIMEOUT_S, why="all markers are there"
    )
    now, until = int(time.time() * 1000), Offset(whole_log[1])
    # Each ends when it has seen that all partitions are where they should be, whoever of both has brought them there.
    works = [assignment(mirrored, epoch, now, now + 120_000) for epoch in (7, 8)]
    whole = [replace(w, partitions=tuple(replace(p, stop_offset=until) for p in w.partitions)) for w in works]
    with ThreadPoolExecutor(2) as pool:
        newcomers = [pool.submit(copy_task.run, work) for work in whole]
    assert [newcomer.result().failures for newcomer in newcomers] == [(), ()]
    assert_equal(pair, topic)
