"""Two copiers that find the same gaps at the same moment, and neither of which wrote the markers before them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirror_core.copy import task as copy_task
from tests.brokers import Pair, new_topic
from tests.cluster.test_gaps import assignment
from tests.logs import assert_equal, transaction, transactional
from tests.mirroring import new_mirror

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
    now = int(time.time() * 1000)
    with ThreadPoolExecutor(2) as pool:
        newcomers = [pool.submit(copy_task.run, assignment(mirrored, epoch, now, now + 6_000)) for epoch in (7, 8)]
    assert [newcomer.result().failures for newcomer in newcomers] == [(), ()]
    assert_equal(pair, topic)
