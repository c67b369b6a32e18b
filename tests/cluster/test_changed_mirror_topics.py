"""Somebody changes a mirror topic on the destination: what that does to records is found, and the partition FAILED."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror_core.copy.log_ends import LogTail, find_ends_as_sent, find_equal_tails
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.produce_link import ProduceLink, Tag
from mirror_core.kafka.topics import TopicConfigs, alter_configs, delete_records, describe_configs
from mirror_core.mirrors.mirror_creation import ensure_state_topic
from mirror_core.model.errors import PartitionFailed, RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sync_state import SyncCategory
from mirror_core.model.task_messages import Assignment, TaskReport
from mirror_core.state.state_records import STATE_TOPIC, PartitionRecord
from mirror_core.state.state_topic import STATE_TOPIC_CONFIGS
from mirror_core.sync.mirror_sync import preview_sync, sync_mirror
from mirror_core.wire.fetch import FetchPosition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import writer_of
from tests.drill.one_task import one_task
from tests.support.cluster_admin import as_admin
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.log_shapes import Row, new_producer, send
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def offset(cluster: SandboxCluster, partition: Partition, point: OffsetPoint) -> int:
    with as_admin(cluster) as client:
        return list_offsets(client, [partition], point)[partition]


def test_a_broker_that_gives_records_its_own_time_is_found(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    partition = Partition(topic, 0)
    mirrored = new_mirror(pair, tmp_path, topic)
    produce(pair.east, topic, 5)
    mirrored.copy()
    with as_admin(pair.west) as client:
        alter_configs(client, {topic: {"message.timestamp.type": "LogAppendTime"}})
    produce(pair.east, topic, 3)
    with pytest.raises(PartitionFailed, match=f"cluster west, {partition}: from offset 5 on records have the broker's"):
        mirrored.copy()
    status = mirrored.statuses[partition]
    assert (status.state, status.kind, status.failed_at) == (PartitionState.FAILED, FailureKind.ALTERED, 5)


@contextmanager
def answers_lost(monkeypatch: pytest.MonkeyPatch, cluster: SandboxCluster, partition: Partition) -> Iterator[list[int]]:
    """The connection breaks as soon as what was sent is in the log; how far the log went then, once that happened."""
    before, lost = offset(cluster, partition, OffsetPoint.LOG_END), list[int]()
    answers = ProduceLink.read_responses

    def broken(link: ProduceLink[Tag]) -> object:
        if lost:
            return answers(link)
        wait_until(
            lambda: offset(cluster, partition, OffsetPoint.LOG_END) > before,
            timeout_s=TIMEOUT_S,
            why="the batch has landed",
        )
        lost.append(offset(cluster, partition, OffsetPoint.LOG_END))
        raise Unreachable("cut")

    with monkeypatch.context() as patched:
        patched.setattr(ProduceLink, "read_responses", broken)
        yield lost


def stamped(pair: Pair, folder: Path) -> tuple[Mirrored, Partition]:
    """Copied up to 5; the broker gives what comes then its own times."""
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, folder, topic)
    produce(pair.east, topic, 5)
    mirrored.copy()
    with as_admin(pair.west) as client:
        alter_configs(client, {topic: {"message.timestamp.type": "LogAppendTime"}})
    produce(pair.east, topic, 3, linger_ms="1000")  # in one batch: an answer to a part of it is lost before the rest
    return mirrored, Partition(topic, 0)


def test_the_brokers_own_time_is_found_also_where_the_answer_that_tells_it_was_lost(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, partition = stamped(pair, tmp_path)
    with (
        answers_lost(monkeypatch, pair.west, partition) as lost,
        one_task(mirrored, [partition], {partition: 8}) as task,
    ):
        [failure] = task.ends().failures
    assert lost == [8]
    assert (failure.kind, failure.offset) == (FailureKind.ALTERED, 5), failure.reason


def test_the_brokers_own_time_is_found_by_who_comes_after_a_copier_that_was_killed(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the broker has stopped doing so meanwhile, and nothing comes behind."""
    mirrored, partition = stamped(pair, tmp_path)
    with answers_lost(monkeypatch, pair.west, partition) as lost, one_task(mirrored, [partition]) as task:
        wait_until(lambda: lost, timeout_s=TIMEOUT_S, why="the answer is lost")
        task.ended()
    assert lost == [8]
    with as_admin(pair.west) as client:
        alter_configs(client, {partition.topic: {"message.timestamp.type": "CreateTime"}})
    assert set(replicate(mirrored.link).failed) == {partition}
    status = mirrored.statuses[partition]
    assert (status.state, status.kind, status.failed_at) == (PartitionState.FAILED, FailureKind.ALTERED, 5)


def test_what_is_deleted_on_the_destination_alone_is_found(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, 3)
    here, both, none = [Partition(topic, index) for index in range(3)]
    mirrored = new_mirror(pair, tmp_path, topic)
    for partition in (here, both, none):
        produce(pair.east, topic, 10, partition=partition.index)

    def copied() -> bool:
        known = mirrored.statuses
        return (
            {here, both, none} <= known.keys()
            and {s.state for s in known.values()} == {PartitionState.MIRRORING}
            and all(offset(pair.west, p, OffsetPoint.LOG_END) == 10 for p in (here, both, none))
        )

    with driving(mirrored), as_admin(pair.east) as east, as_admin(pair.west) as west:
        wait_until(copied, timeout_s=TIMEOUT_S, why="all of it is copied")
        delete_records(west, {here: Offset(4)})
        delete_records(east, {both: Offset(4)})
        wait_until(
            lambda: mirrored.statuses[here].kind is FailureKind.DELETED, timeout_s=TIMEOUT_S, why="that is found"
        )
        reason = mirrored.statuses[here].reason
        assert reason is not None
        assert format_sentence("records_below_were_deleted", here, 4, 0) in reason
        wait_until(
            lambda: offset(pair.west, both, OffsetPoint.START) == 4,
            timeout_s=TIMEOUT_S,
            why="what the source deletes goes here, too",
        )
    assert {mirrored.statuses[p].state for p in (both, none)} == {PartitionState.MIRRORING}


def test_what_is_deleted_on_the_destination_while_nobody_copies_is_found(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, 3)
    here, both, none = [Partition(topic, index) for index in range(3)]
    mirrored = new_mirror(pair, tmp_path, topic)
    for partition in (here, both, none):
        produce(pair.east, topic, 10, partition=partition.index)
    mirrored.copy()
    with as_admin(pair.east) as east, as_admin(pair.west) as west:
        delete_records(west, {here: Offset(4), both: Offset(4)})
        delete_records(east, {both: Offset(6)})
    with driving(mirrored):
        wait_until(
            lambda: mirrored.statuses[here].kind is FailureKind.DELETED, timeout_s=TIMEOUT_S, why="that is found"
        )
        wait_until(
            lambda: offset(pair.west, both, OffsetPoint.START) == 6,
            timeout_s=TIMEOUT_S,
            why="what the source deletes goes here, too",
        )
    assert mirrored.statuses[here].failed_at == 0
    assert {mirrored.statuses[p].state for p in (both, none)} == {PartitionState.MIRRORING}


def test_where_a_log_began_that_an_older_version_recorded_is_taken_as_it_is_found(pair: Pair, tmp_path: Path) -> None:
    """So are logs that applications come home to: what is missing there by then is nobody's fault."""
    topic = new_topic(pair.east)
    partition = Partition(topic, 0)
    mirrored = new_mirror(pair, tmp_path, topic)
    produce(pair.east, topic, 10)
    mirrored.copy()
    assert mirrored.statuses[partition].initial_log_start == 0
    with writer_of(mirrored.link) as writer:
        writer.put(PartitionRecord(mirrored.name, replace(mirrored.statuses[partition], initial_log_start=None)))
    with as_admin(pair.west) as west:
        delete_records(west, {partition: Offset(4)})
        with driving(mirrored) as said:
            wait_until(
                lambda: mirrored.statuses[partition].initial_log_start == 4, timeout_s=TIMEOUT_S, why="that is recorded"
            )
        assert not [line for line in said if line.startswith("FAILED")]
        delete_records(west, {partition: Offset(6)})
    with driving(mirrored):
        wait_until(
            lambda: mirrored.statuses[partition].kind is FailureKind.DELETED, timeout_s=TIMEOUT_S, why="that is found"
        )
    assert mirrored.statuses[partition].initial_log_start == 4


def test_the_ends_of_many_logs_are_looked_at_together(pair: Pair) -> None:
    """Also where no answer has room for all of them."""
    fine, altered = new_topic(pair.west, 70), new_topic(pair.west, 70, message_timestamp_type="LogAppendTime")
    ends = {Partition(topic, index): 1 for topic in (fine, altered) for index in range(70)}
    with as_admin(pair.west) as client:
        producer = new_producer(pair.west, compression_type="none")
        for partition in ends:
            send(producer, partition.topic, [Row(value=bytes(300_000))], partition=partition.index)
        led = {broker: {p: ends[p] for p in mine} for broker, mine in client.leaders(ends).items()}
        assert find_ends_as_sent(client, led) == {p for p in ends if p.topic == fine}


def test_last_records_of_many_logs_are_compared_together(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind the marker of a transaction, and where a mirror sent several batches as one."""
    plain, committed = new_topic(pair.east, 70), new_topic(pair.east, 70)
    producer = new_producer(pair.east, transactional_id=committed)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for index in range(70):
        producer.produce(committed, b"%d" % index, partition=index)
    producer.commit_transaction(TIMEOUT_S)
    producer = new_producer(pair.east)
    for _ in range(3):
        for index in range(70):
            send(producer, plain, [Row(value=b"%d" % index)], partition=index)
    mirrored = new_mirror(pair, tmp_path, plain, committed)
    mirrored.copy()
    link = mirrored.link
    for cluster in (pair.east, pair.west):
        produce(cluster, plain, 1)
    partitions = [Partition(topic, index) for topic in (plain, committed) for index in range(70)]
    requests, send_fetch = list[int](), FetchLink.send_fetch

    def counted(link: FetchLink, wanted: Iterable[FetchPosition], **settings: Any) -> None:
        requests.append(len(positions := list(wanted)))
        send_fetch(link, positions, **settings)

    monkeypatch.setattr(FetchLink, "send_fetch", counted)
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        ends = list_offsets(source, partitions, OffsetPoint.LOG_END)
        ((from_broker, _),), ((to_broker, _),) = source.leaders(ends).items(), destination.leaders(ends).items()
        # In this order, whichever of both names sorts first: 58 of the first 128 end with a marker.
        tails = {p: LogTail(from_broker, to_broker, 0, ends[p]) for p in partitions}
        assert find_equal_tails(source, destination, tails) == {*partitions} - {Partition(plain, 0)}
    assert requests == [128, 58, 128, 12, 12, 12]


@pytest.mark.slow
def test_a_data_plane_that_goes_on_looks_at_the_ends_of_logs_once(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic)
    produce(pair.east, topic, 5)
    mirrored.copy()
    told = list[bool]()
    submit = LocalRunner.submit

    def listening(runner: LocalRunner, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        told.extend(one.all_answered for a in assignments for one in a.partitions if one.partition.topic == topic)
        return submit(runner, assignments)

    monkeypatch.setattr(LocalRunner, "submit", listening)
    with driving(mirrored):
        wait_until(lambda: len(told) >= 4, timeout_s=TIMEOUT_S, why="epochs go by")
    # The second epoch is planned before the first one's tasks have said anything.
    assert told[:4] == [False, False, True, True]


def describe_state_topic(cluster: SandboxCluster) -> TopicConfigs:
    with as_admin(cluster) as client:
        return describe_configs(client, [STATE_TOPIC])[STATE_TOPIC]


@pytest.mark.parametrize("found_by", ["sync", "creation"])
def test_a_policy_for_all_topics_does_not_make_brokers_forget_mirrors_and_fences(
    pair: Pair, tmp_path: Path, found_by: str
) -> None:
    """Whatever is older than its retention would go within minutes: a mirror is recorded once."""
    mirrored = new_mirror(pair, tmp_path, new_topic(pair.east))
    with as_admin(pair.west) as client:
        alter_configs(client, {STATE_TOPIC: {"cleanup.policy": "delete"}})
        assert describe_state_topic(pair.west).effective["retention.ms"] == "-1", "nothing goes before it is corrected"
        alter_configs(client, {STATE_TOPIC: {"retention.ms": None, "retention.bytes": "1000000"}})
        configs = frozenset({SyncCategory.CONFIGS})
        drift = {row.subject for row in preview_sync(mirrored.link, mirrored.state, only=configs).rows}
        wrong = {f"{STATE_TOPIC}: {key}" for key in ("cleanup.policy", "retention.ms", "retention.bytes")}
        assert wrong <= drift, "readiness names it"
        assert describe_state_topic(pair.west).effective["cleanup.policy"] == "delete", "a look changes nothing"
        if found_by == "sync":
            with writer_of(mirrored.link) as writer:
                done = sync_mirror(mirrored.link, writer, only=configs)
            assert {row.subject for row in done.rows if row.done} >= wrong
        else:
            with ClusterClient(mirrored.link.destination) as control:
                ensure_state_topic(control)
        wait_until(
            lambda: STATE_TOPIC_CONFIGS.items() <= describe_state_topic(pair.west).effective.items(),
            timeout_s=TIMEOUT_S,
            why="the broker has taken the corrected settings over",
        )
        with pytest.raises(RemoteFault, match="policy_violation"):
            delete_records(client, {Partition(STATE_TOPIC, 0): Offset(1)})
