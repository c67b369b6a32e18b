"""A destination whose log has lost its end under a copier at work, as by an unclean leader election there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.model.names import Partition
from tests.drill.one_task import one_task
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, read_all
from tests.support.log_cutting import lose_tails
from tests.support.log_shapes import new_producer
from tests.support.mirrored_topics import new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

TRANSACTIONS = 20
"""Of one record and its marker each."""


def test_gaps_that_it_has_lost_are_filled_anew(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, retention_ms="-1")
    producer = new_producer(pair.east, transactional_id=f"{topic}-id")
    producer.init_transactions(TIMEOUT_S)

    def commit(count: int) -> None:
        for _ in range(count):
            producer.begin_transaction()
            producer.produce(topic, value=b"paid", partition=0)
            producer.commit_transaction(TIMEOUT_S)

    commit(TRANSACTIONS)
    mirrored, partition = new_mirror(pair, tmp_path, topic), Partition(topic, 0)
    mirrored.copy()
    with one_task(mirrored, [partition], {partition: 6 * TRANSACTIONS}) as task:
        commit(TRANSACTIONS)
        wait_until(
            lambda: len(read_all(pair.west, topic)) == 2 * TRANSACTIONS, timeout_s=TIMEOUT_S, why="they are not copied"
        )
        lose_tails(pair.west, {topic: 3 * TRANSACTIONS})
        commit(TRANSACTIONS)
        assert task.ends().failures == ()
    assert read_all(pair.west, topic) == read_all(pair.east, topic)
    assert len(read_all(pair.west, topic)) == 3 * TRANSACTIONS
