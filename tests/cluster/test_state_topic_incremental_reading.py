"""Reading the state topic on from where it was read before says what a whole read says, whatever happened between."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.topics import NewTopic, create_topics, delete_records, delete_topics
from mirror_core.kafka.transactional_producer import LogReplaced
from mirror_core.model.errors import LostOwnership, RemoteFault, StateNotWritten
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.run_checkpoints import Checkpoint
from mirror_core.state import state_topic as state_topic
from mirror_core.state import topic_reader
from mirror_core.state import writer as state_writer
from mirror_core.state.lease import HeldLease, take_over_lease
from mirror_core.state.record_encoding import PIECE_BYTES
from mirror_core.state.state_cache import STATE_CACHE
from mirror_core.state.state_records import State, StateRecord, Tombstone
from mirror_core.state.state_topic import read_complete_state, read_state
from mirror_core.state.topic_reader import TopicRead
from mirror_core.state.writer import StateWriter, make_control_id
from tests.support.cluster_admin import as_admin, broker_setting
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.log_cutting import lose_tails
from tests.support.log_shapes import HOUR_MS, Row, await_cleaner, send
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

MIRRORS = (MirrorName("m"), MirrorName("n"))


def lease(generation: int, mirror: MirrorName = MIRRORS[0]) -> Lease:
    return Lease(mirror=mirror, owner="me", generation=generation, heartbeat_ms=1, writers_until_ms=1)


class Desk:
    """A state topic of the test's own on west, and one who reads it as a run at work does."""

    def __init__(self, pair: Pair, topic: str) -> None:
        self.pair = pair
        self.topic = topic
        self.cluster: ClusterConfig = load_config(pair.config_path).cluster("west")
        self.wholes = 0

    def writer(self, mirror: MirrorName = MIRRORS[0]) -> StateWriter:
        return StateWriter(self.cluster, make_control_id(mirror))

    def transaction(self, name: str, *records: StateRecord | Tombstone) -> Producer:
        """One that is open, with these records in the log."""
        producer = Producer({**self.pair.west.client_config("admin"), "transactional.id": f"{name}-{self.topic}"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for record in records:
            for key, value in State().to_rows(record):
                producer.produce(self.topic, key=key, value=value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        return producer

    def plain(self, *rows: tuple[str, bytes | None], time_ms: int | None = None) -> None:
        """Records outside of any transaction."""
        when = int(time.time() * 1000) if time_ms is None else time_ms
        made = [Row(key=key.encode(), value=value, timestamp_ms=when) for key, value in rows]
        send(Producer(self.pair.west.client_config("admin")), self.topic, made)

    def read(self) -> tuple[State, bool]:
        """The state as a run at work reads it now, and whether it was read whole for that. It is what is there."""
        before = self.wholes
        found = read_state(self.cluster, timeout_s=TIMEOUT_S)
        whole = self.wholes > before
        assert found == self.by_another_client()
        return found, whole

    def by_another_client(self) -> State:
        """What a consumer of committed records gets, who has nothing of ours."""
        state = State()
        partition = TopicPartition(self.topic, 0)
        consumer = Consumer(
            {
                **self.pair.west.client_config("admin"),
                "group.id": "nobody",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        try:
            low, _ = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)
            consumer.assign([TopicPartition(self.topic, 0, low)])
            while True:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF
                    return state
                key, value = message.key(), message.value()
                if key is not None:
                    text = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
                    state.apply(text, value.encode() if isinstance(value, str) else value)
        finally:
            consumer.close()


@pytest.fixture
def desk(pair: Pair, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Desk]:
    topic = new_topic(pair.west, 1, "t-", **getattr(request, "param", {"cleanup_policy": "compact"}))
    for module in (state_topic, state_writer):
        monkeypatch.setattr(module, "STATE_TOPIC", topic)
    made, real = Desk(pair, topic), topic_reader.read_from_start

    def counted(*given: Any, **more: Any) -> TopicRead:
        made.wholes += 1
        return real(*given, **more)

    monkeypatch.setattr(state_topic, "read_from_start", counted)
    # A commit or an abort is answered before its marker is written: who writes it may be held up.
    monkeypatch.setattr(topic_reader, "OPEN_TRANSACTION_WAIT_S", 5.0)
    with STATE_CACHE.enable():
        yield made


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_it_is_the_same_whoever_writes_takes_over_gives_up_or_writes_nonsense(desk: Desk, seed: int) -> None:
    chance = random.Random(seed)
    desk.read()
    writers = {mirror: desk.writer(mirror).__enter__() for mirror in MIRRORS}
    before = desk.wholes
    for number in range(40):
        mirror = chance.choice(MIRRORS)
        kept = Checkpoint(
            run=f"{mirror}-failover-20261122T090000-a1b2",
            step=chance.choice(("drain", "fence")),
            kind="DrainResult",
            version=1,
            value=chance.choice("xyz") * chance.choice((10, PIECE_BYTES, 2 * PIECE_BYTES + number)),
        )
        match chance.randrange(8):
            case 0 | 1:
                writers[mirror].put(lease(number, mirror), kept)
            case 2:
                writers[mirror].put(kept)
            case 3:
                writers[mirror].put(Tombstone(chance.choice((kept, lease(0, mirror)))))
            case 4:
                sleeper, writers[mirror] = writers[mirror], desk.writer(mirror).__enter__()
                with pytest.raises(LostOwnership):
                    sleeper.put(lease(-1, mirror))
            case 5:
                desk.transaction("a", lease(1000 + number, mirror), kept).abort_transaction(TIMEOUT_S)
            case 6:
                desk.plain(("lease/é", b"{"), ("", b""), ("lease/nobodys", b"{}"))
            case 7:
                with desk.writer(MirrorName("o")) as other:
                    other.put(kept, lease(number, MirrorName("o")))
        desk.read()
    assert desk.wholes == before, "of all these none was read whole"


def test_what_is_put_by_one_reader_is_not_in_what_the_next_one_reads(desk: Desk) -> None:
    found, _ = desk.read()
    found.put(lease(1))
    found.apply("lease/m", b"{")
    assert desk.read() == (State(), False)


def test_behind_the_open_transaction_of_a_killed_owner_nothing_is_missed_when_it_is_decided(desk: Desk) -> None:
    desk.plain(("nothing", b""))
    desk.read()
    killed = desk.transaction("killed", lease(1, MIRRORS[1]))
    desk.transaction("other", lease(2)).commit_transaction(TIMEOUT_S)
    found, whole = desk.read()
    assert (found.leases, whole) == ({}, True)
    killed.abort_transaction(TIMEOUT_S)
    found, _ = desk.read()
    assert found.leases == {MIRRORS[0]: lease(2)}
    desk.transaction("other", lease(3)).commit_transaction(TIMEOUT_S)
    found, whole = desk.read()
    assert (found.leases, whole) == ({MIRRORS[0]: lease(3)}, False)


def test_another_topic_of_the_same_name_is_read_whole(desk: Desk) -> None:
    desk.transaction("before", lease(1), lease(1, MIRRORS[1])).commit_transaction(TIMEOUT_S)
    desk.read()
    with as_admin(desk.pair.west) as client:
        delete_topics(client, [desk.topic])
        create_topics(client, [NewTopic(name=desk.topic, partitions=1, replication_factor=1, configs={})])
    desk.plain(*[("other", b"")] * 10)
    found, whole = desk.read()
    assert (found.leases, whole) == ({}, True)
    assert desk.read()[1] is False


@pytest.mark.parametrize("desk", [{"cleanup_policy": "compact,delete"}], indirect=True)
def test_a_log_whose_beginning_was_deleted_is_read_whole(desk: Desk) -> None:
    desk.plain(*State().to_rows(lease(1)), ("other", b""))
    assert desk.read()[0].leases
    with as_admin(desk.pair.west) as client:
        delete_records(client, {Partition(desk.topic, 0): Offset(1)})
    found, whole = desk.read()
    assert (found.leases, whole) == ({}, True)


@pytest.mark.parametrize("desk", [{"cleanup_policy": "compact,delete"}], indirect=True)
def test_readers_know_that_records_of_the_state_topic_were_deleted(desk: Desk) -> None:
    """Compaction never moves the log start: what is missing may be a pending fence."""
    desk.plain(*State().to_rows(lease(1)), ("other", b""))
    assert desk.read()[0].log_start_offset == 0
    with as_admin(desk.pair.west) as client:
        delete_records(client, {Partition(desk.topic, 0): Offset(1)})
    assert desk.read()[0].log_start_offset == 1
    assert read_complete_state(desk.cluster).log_start_offset == 1


def test_nobody_writes_on_in_a_state_topic_that_was_created_anew(desk: Desk) -> None:
    """What the owner knows, the new topic does not hold: its records would seem to be all that there is."""
    with desk.writer() as owner:
        owner.put(lease(1))
        with as_admin(desk.pair.west) as client:
            delete_topics(client, [desk.topic])
            create_topics(client, [NewTopic(name=desk.topic, partitions=1, replication_factor=1, configs={})])
        with pytest.raises(RemoteFault, match="was recreated, or lost its end"):
            owner.put(lease(2))
        assert desk.read()[0].leases == {}
        with pytest.raises(RemoteFault, match="was recreated, or lost its end"):
            owner.put(lease(3))
    with desk.writer() as next_owner:
        next_owner.put(lease(4))
        assert desk.read()[0].leases == {MIRRORS[0]: lease(4)}


def log_end(desk: Desk) -> int:
    with as_admin(desk.pair.west) as client:
        (end,) = list_offsets(client, [Partition(desk.topic, 0)], OffsetPoint.LOG_END).values()
    return end


@pytest.mark.parametrize("is_away", [False, True], ids=["at work", "cut off meanwhile"])
def test_a_data_plane_whose_state_log_lost_its_end_does_not_write_on(desk: Desk, is_away: bool) -> None:
    """By an unclean election. Others have written as much since, so that no offset tells of it."""
    held = take_over_lease(desk.cluster, MIRRORS[0], "me")
    kept_end = log_end(desk)
    held.put(lease(7, MIRRORS[1]))
    lose_tails(desk.pair.west, {desk.topic: kept_end})
    for number in range(3):
        desk.transaction("other", lease(number, MirrorName("other"))).commit_transaction(TIMEOUT_S)
    assert log_end(desk) > kept_end + 2
    if is_away:
        with pytest.raises(StateNotWritten):
            raise held._begin_recovery(RemoteFault("no broker answered"))
    with pytest.raises(LogReplaced, match=r"lost its end: mirrorbook.data.m wrote offset .*`mirrorbook mirror list`"):
        wait_until(lambda: _put(held, lease(8, MIRRORS[1])), timeout_s=TIMEOUT_S, why="it is told, or writes on")
    assert desk.read()[0].leases.get(MIRRORS[1]) is None


def _put(held: HeldLease, record: StateRecord) -> bool:
    try:
        held.put(record)
    except StateNotWritten:
        return False
    return True


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_that_lost_only_its_marker_ends_as_it_was_decided_and_strands_nobody(
    desk: Desk, committed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By an unclean election: its coordinator has ended it, and nobody would ever send the marker again."""
    with desk.writer() as owner:
        owner.put(lease(1))
        if committed:
            owner.put(lease(2))
        else:
            producer = desk.transaction("another", lease(2))
            producer.abort_transaction(TIMEOUT_S)
    wait_until(lambda: desk.read()[0].leases, timeout_s=TIMEOUT_S, why="the last marker is written")
    lose_tails(desk.pair.west, {desk.topic: log_end(desk) - 1})
    with caplog.at_level("WARNING"), desk.writer() as next_owner:
        assert next_owner.state.leases[MIRRORS[0]].generation == (2 if committed else 1)
        next_owner.put(lease(3, MIRRORS[1]))
    assert desk.read()[0].leases[MIRRORS[0]].generation == (2 if committed else 1)
    assert "had lost its marker" in caplog.text


@pytest.mark.parametrize("newer", [-1, 1])
def test_a_log_of_another_leader_epoch_is_read_whole(desk: Desk, newer: int) -> None:
    """What was read may have been cut off since. Elections that lose records need brokers that this test has not."""
    desk.transaction("before", lease(1)).commit_transaction(TIMEOUT_S)
    desk.read()
    known = STATE_CACHE.pop(desk.cluster)
    assert known is not None
    known.state.put(lease(7))
    log = replace(known.log, leader_epoch=known.log.leader_epoch + newer)
    STATE_CACHE.put(desk.cluster, replace(known, log=log))
    found, whole = desk.read()
    assert (found.leases, whole) == ({MIRRORS[0]: lease(1)}, True)


def test_a_log_that_ends_before_the_place_is_read_whole(desk: Desk) -> None:
    desk.transaction("before", lease(1)).commit_transaction(TIMEOUT_S)
    desk.read()
    known = STATE_CACHE.pop(desk.cluster)
    assert known is not None
    STATE_CACHE.put(desk.cluster, replace(known, position=known.position + 5))
    assert desk.read()[1] is True


@pytest.mark.parametrize(
    "desk",
    [
        {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": "0.01",
            "segment_ms": str(HOUR_MS),
            "delete_retention_ms": "0",
            "message_timestamp_after_max_ms": str(2**63 - 1),
        }
    ],
    indirect=True,
)
def test_a_tombstone_that_was_cleaned_while_the_process_slept_is_not_missed(desk: Desk) -> None:
    now_ms, partition = int(time.time() * 1000), Partition(desk.topic, 0)
    ((key, value),) = State().to_rows(lease(1))
    desk.plain((key, value), time_ms=now_ms)
    assert desk.read()[0].leases
    with broker_setting(desk.pair.west, "log.cleaner.backoff.ms", "100"):
        desk.plain((key, None), time_ms=now_ms)
        for hours in (2, 4):  # the first time through it is given its time, the second time it goes
            desk.plain(("other", b""), time_ms=now_ms + hours * HOUR_MS)
            await_cleaner(desk.pair.west, {partition: 1 + hours // 2})
    found, whole = desk.read()
    assert (found.leases, whole) == ({}, True)


def test_nothing_is_remembered_where_no_run_is_at_work(desk: Desk) -> None:
    desk.read()
    assert desk.read()[1] is False
    inner = STATE_CACHE._users
    assert inner == 1
    STATE_CACHE._users = 0
    try:
        assert desk.read()[1] is True
    finally:
        STATE_CACHE._users = inner
