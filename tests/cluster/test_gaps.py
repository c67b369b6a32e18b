"""Logs with gaps: transactions, compaction, late beginnings. The copy has every record at its offset, and nothing else."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirror_core.engine import pump
from mirror_core.kafka.topics import delete_records
from mirror_core.model.copying import Assigned, Assignment
from mirror_core.model.names import Offset, Partition
from tests.brokers import Pair, new_topic, produce
from tests.logs import as_admin, assert_equal, bounds, transaction, transactional, write
from tests.mirroring import Mirrored, new_mirror

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


def test_two_copiers_at_once_fill_each_gap_once(pair: Pair, tmp_path: Path) -> None:
    """The older one has the right to fill; the younger one takes it over when the older one has ended."""
    topic = new_topic(pair.east, partitions=4)
    producer = transactional(pair.east)
    transaction(producer, topic, 1, commit=True, partitions=range(4))
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    now = int(time.time() * 1000)
    with ThreadPoolExecutor(2) as pool:
        older = pool.submit(pump.run, assignment(mirrored, 1, now, now + 5_000))
        younger = pool.submit(pump.run, assignment(mirrored, 2, now + 1_000, now + 9_000))
        turn = 0
        while not younger.done():
            turn += 1
            transaction(producer, topic, turn % 4 + 1, commit=turn % 3 != 0, partitions=range(4))
    reports = [older.result(), younger.result()]
    assert [report.failures for report in reports] == [(), ()]
    for report in reports:
        assert sum(receipt.gaps for receipt in report.receipts) > 20, "both have filled gaps, or the test shows little"
        assert all(receipt.records + receipt.gaps == receipt.next - receipt.first for receipt in report.receipts)
    mirrored.copy()
    assert_equal(pair, topic)


def assignment(mirrored: Mirrored, epoch: int, start_ms: int, stop_ms: int) -> Assignment:
    """All partitions of the mirror, without an end."""
    mirror = mirrored.link.mirror
    return Assignment(
        mirror=mirror.name,
        source=mirror.source,
        destination=mirror.destination,
        config_path=str(mirrored.config.path),
        producer_id=mirror.producer_id,
        partitions=tuple(
            Assigned(
                partition=status.partition,
                source_topic_id=status.source_topic_id,
                destination_topic_id=status.destination_topic_id,
            )
            for status in mirrored.statuses.values()
        ),
        epoch=epoch,
        task=0,
        start_ms=start_ms,
        stop_ms=stop_ms,
    )
