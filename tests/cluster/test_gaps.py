"""Logs with gaps: transactions, late beginnings. The copy has every record at its offset, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from mirror_core.copy import gap_ownership
from mirror_core.copy import task as copy_task
from mirror_core.copy.driver_messages import ClaimBoard
from mirror_core.copy.task_datagrams import DatagramKind
from mirror_core.dataplane.datagram_receiver import DatagramReceiver
from mirror_core.decide.gaps_and_resume import MAX_ATTEMPT
from mirror_core.kafka.config import Principal
from mirror_core.kafka.log_offsets import describe_producers
from mirror_core.kafka.marker_link import MarkerLink
from mirror_core.model.mirror import FailureKind, GapFilling
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.task_messages import ListenAddress
from mirror_core.wire.txn_markers import MarkerEntry
from tests.support.cluster_admin import as_admin, restore_rights, rights_of
from tests.support.gap_assignments import assignment, client_connection
from tests.support.gap_logs import assert_equal, bounds, transaction, transactional, write
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.managed_service import managed
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

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


def test_a_foreign_record_behind_a_gap_fails_the_partition_at_its_offset(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    producer = transactional(pair.east)
    for commit in (True, False, True):
        transaction(producer, topic, 3, commit=commit)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    produce(pair.west, topic, 1)
    transaction(producer, topic, 3, commit=True)
    assert "offset 12 was not written by this mirror" in failed(mirrored, topic)


def test_a_marker_too_many_fails_the_partition_at_its_offset(pair: Pair, tmp_path: Path) -> None:
    """Nobody but a defect of ours could write it; the copy would be shifted from there on."""
    topic = new_topic(pair.east)
    producer = transactional(pair.east)
    transaction(producer, topic, 3, commit=True)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    partition = Partition(topic, 0)
    with as_admin(pair.west) as client, client_connection(client, partition) as connection:
        append(MarkerLink(connection), MarkerEntry(mirrored.link.mirror.producer_id, 0, 1 << 3 | 1, (partition,)))
    produce(pair.east, topic, 5)
    assert format_sentence("log_end_past_gap", 5, 4) in failed(mirrored, topic)


@pytest.mark.parametrize("more", [0, 5])
def test_a_marker_too_many_among_nothing_but_markers_is_not_put_down_to_the_source(
    pair: Pair, tmp_path: Path, more: int
) -> None:
    """Their count alone does not tell: data before them may have been forgotten."""
    topic = new_topic(pair.east)
    partition = Partition(topic, 0)
    transaction(transactional(pair.east), topic, 3, commit=False)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with as_admin(pair.west) as client, client_connection(client, partition) as connection:
        append(MarkerLink(connection), MarkerEntry(mirrored.link.mirror.producer_id, 0, 4 << 3 | 2, (partition,)))
    if more:
        produce(pair.east, topic, more)
    assert format_sentence("log_end_past_gap", 5, 4) in failed(mirrored, topic)
    status = mirrored.statuses[partition]
    assert (status.kind, status.failed_at) == (FailureKind.GAP_LIMIT, 4)


@pytest.mark.parametrize(
    ("intruder", "reason"),
    [
        # Three transactions of two records and a marker each; the intruder comes behind the second one's marker.
        ("record", "offset 6 was not written by this mirror"),
        ("marker", format_sentence("log_end_past_gap", 9, 8)),
    ],
)
def test_what_slips_in_behind_an_owners_marker_is_found_by_the_data_behind_it(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, intruder: str, reason: str
) -> None:
    topic = new_topic(pair.east)
    producer = transactional(pair.east)
    for _ in range(3):
        transaction(producer, topic, 2, commit=True)
    mirrored = new_mirror(pair, tmp_path, topic)
    ask, take, sent = MarkerLink.send_markers, MarkerLink.receive_codes, list[MarkerEntry]()

    def ask_and_note(link: MarkerLink, entries: Iterable[MarkerEntry]) -> None:
        sent.extend(entries)
        ask(link, sent[-1:])

    def take_and_intrude(link: MarkerLink) -> Mapping[tuple[str, int], int] | None:
        found = take(link)
        if found is not None and len(sent) == 2:
            if intruder == "record":
                produce(pair.west, topic, 1)
            else:
                with monkeypatch.context() as plainly:
                    plainly.setattr(MarkerLink, "send_markers", ask)
                    plainly.setattr(MarkerLink, "receive_codes", take)
                    append(link, sent[-1]._replace(coordinator_epoch=sent[-1].coordinator_epoch + 1))
        return found

    monkeypatch.setattr(MarkerLink, "send_markers", ask_and_note)
    monkeypatch.setattr(MarkerLink, "receive_codes", take_and_intrude)
    assert reason in failed(mirrored, topic)
    assert len(sent) == 2, "nothing was written behind what is wrong"


def test_without_the_right_to_write_markers_the_grant_is_named(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    transaction(transactional(pair.east), topic, 3, commit=True)
    with managed(pair, tmp_path, AclOperation.CLUSTER_ACTION) as given:
        mirrored = new_mirror(given, tmp_path, topic)
        assert mirrored.link.mirror.gaps is GapFilling.MARKERS
        user = mirrored.link.destination.user(Principal.DATA)
        lost = {acl for acl in rights_of(pair.west) if (acl.principal, acl.resource) == (f"User:{user}", "CLUSTER")}
        assert lost
        restore_rights(pair.west, rights_of(pair.west) - lost)
        reason = failed(mirrored, topic)
    assert "may not write the markers that fill them" in reason
    assert f"--add --allow-principal User:{user} --operation ClusterAction --cluster`" in reason


def append(link: MarkerLink, marker: MarkerEntry) -> None:
    link.send_markers([marker])
    codes = wait_until(link.receive_codes, timeout_s=TIMEOUT_S, why="markers are answered")
    assert codes is not None
    assert set(codes.values()) == {0}


def failed(mirrored: Mirrored, topic: str) -> str:
    """Replicate; the topic's only partition is FAILED. Returns the reason."""
    return replicate(mirrored.link).failed[Partition(topic, 0)]


def test_a_failover_drains_and_proves_logs_with_gaps(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, message_timestamp_type="LogAppendTime")
    producer = transactional(pair.east, compression_type="lz4")
    for commit in (True, False, True):
        transaction(producer, topic, 5, commit=commit)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    for commit in (True, False):
        transaction(producer, topic, 3, commit=commit)  # the drain's work; ends with a gap
    failover = mirrored.failover
    run = failover.begin(failover.plan(RunMode.PLANNED).hash)
    assert failover.drive(run.id).state is RunState.DONE
    assert mirrored.statuses[Partition(topic, 0)].lmo == 3 * 6 + 2 * 4
    assert_equal(pair, topic, records=13)


@pytest.mark.slow
def test_two_copiers_at_once_fill_each_gap_once(pair: Pair, tmp_path: Path) -> None:
    """The older one has the right to fill; the younger one takes it over when the older one has ended."""
    topic = new_topic(pair.east, partitions=4)
    producer = transactional(pair.east)
    transaction(producer, topic, 1, commit=True, partitions=range(4))
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    now, turn = int(time.time() * 1000), 0

    def transact() -> None:
        nonlocal turn
        turn += 1
        transaction(producer, topic, turn % 4 + 1, commit=turn % 3 != 0, partitions=range(4))

    def comes(ends: dict[Partition, tuple[int, int]]) -> bool:
        transact()
        return all(here >= ends[partition] for partition, here in bounds(pair.west, topic).items())

    def more(transactions: int) -> None:
        """So many more are copied, each of which leaves a gap in every partition; others go on beside that."""
        for _ in range(transactions):
            transact()
        wait_until(partial(comes, bounds(pair.east, topic)), timeout_s=90, why=f"{transactions} more are copied")

    ended = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        older = pool.submit(copy_task.run, assignment(mirrored, 1, now, now + 600_000), ended[0].is_set)
        younger = pool.submit(copy_task.run, assignment(mirrored, 2, now + 1_000, now + 600_000), ended[1].is_set)
        try:
            more(100)
            ended[0].set()
            older.result()
            more(50)
        finally:
            for one in ended:
                one.set()
    reports = [older.result(), younger.result()]
    assert [report.failures for report in reports] == [(), ()]
    for report in reports:
        assert sum(receipt.gaps for receipt in report.receipts) > 20, "both have filled gaps, or the test shows little"
        assert all(receipt.records + receipt.gaps == receipt.next - receipt.first for receipt in report.receipts)
    mirrored.copy()
    assert_equal(pair, topic)


@pytest.mark.parametrize(("told", "attempt"), [(True, 0), (False, 1)])
def test_an_epoch_goes_on_with_the_markers_of_the_one_before(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool, attempt: int
) -> None:
    """Snapshot that the owner has ended well, its successor need not shut it out: markers carry no higher attempt."""
    topic = new_topic(pair.east, partitions=3)
    producer = transactional(pair.east)
    transaction(producer, topic, 2, commit=True, partitions=range(3))
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with (
        DatagramReceiver(ListenAddress(), {DatagramKind.CLAIMS: ClaimBoard().handle}) as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        for epoch in (1, 2):
            if told and epoch == 2:  # who is told in time waits for no quiet, though the driver's thread be held up
                monkeypatch.setattr(gap_ownership, "QUIET_S", 20.0)
            now = int(time.time() * 1000)
            work = assignment(mirrored, epoch, now, now + 120_000)
            ended = threading.Event()
            task = pool.submit(
                copy_task.run, replace(work, driver_address=channel.address_for(epoch) if told else None), ended.is_set
            )
            transaction(producer, topic, epoch, commit=True, partitions=range(3))
            wait_until(
                lambda: bounds(pair.west, topic) == bounds(pair.east, topic), timeout_s=60, why="the gap is filled"
            )
            ended.set()
            assert task.result().failures == ()
    with as_admin(pair.west) as client:
        seen = describe_producers(client, [Partition(topic, index) for index in range(3)])
    assert {view.coordinator_epoch & MAX_ATTEMPT for (view,) in seen.values()} == {attempt}
    assert_equal(pair, topic, records=3 * (2 + 1 + 2))
