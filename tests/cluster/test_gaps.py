"""Logs with gaps: transactions, compaction, late beginnings. The copy has every record at its offset, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.kafka.topics import delete_records
from mirror_core.model.names import Offset, Partition
from tests.brokers import Pair, new_topic, produce
from tests.logs import as_admin, assert_equal, bounds, transaction, transactional, write
from tests.mirroring import new_mirror

pytestmark = pytest.mark.cluster


def test_transactions_committed_aborted_and_interleaved(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, partitions=2)
    one, two = transactional(pair.east), transactional(pair.east, compression_type="zstd")
    both = (0, 1)
    for turn in range(6):
        transaction(one, topic, 3, commit=turn % 3 != 1, partitions=both)
        produce(pair.east, topic, 2, partition=turn % 2)
        one.begin_transaction()
        write(one, topic, 2, both)
        transaction(two, topic, 4, commit=turn % 2 == 0, partitions=both)
        write(one, topic, 1, both)
        if turn % 2:
            one.commit_transaction(60)
        else:
            one.abort_transaction(60)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    # Records of transactions per partition: 4 * 3 of the first, 3 * 4 of the second, 3 * 3 of the interleaved; plain 6.
    assert_equal(pair, topic, records=2 * (12 + 12 + 9 + 6))
    produce(pair.east, topic, 10)
    mirrored.copy()
    assert_equal(pair, topic, records=2 * (12 + 12 + 9 + 6) + 10)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_open_at_the_end_waits_until_it_has_ended(pair: Pair, tmp_path: Path, commit: bool) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 5)
    producer = transactional(pair.east)
    producer.begin_transaction()
    write(producer, topic, 7)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    assert bounds(pair.west, topic)[Partition(topic, 0)] == (0, 5), "not beyond the last stable offset"
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)
    mirrored.copy()
    assert_equal(pair, topic, records=17 if commit else 10)


def test_a_log_that_begins_late_is_seeded_up_to_its_beginning(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    with as_admin(pair.east) as client:
        delete_records(client, {Partition(topic, 0): Offset(5)})
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    assert_equal(pair, topic, records=15)
    produce(pair.east, topic, 20)
    with as_admin(pair.east) as client:
        delete_records(client, {Partition(topic, 0): Offset(32)})
    mirrored.copy()
    assert_equal(pair, topic, records=8)
