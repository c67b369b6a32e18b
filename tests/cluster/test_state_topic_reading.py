"""Reading the state right behind its writer."""

from __future__ import annotations

import itertools
import threading
from functools import partial

import pytest
from confluent_kafka import Producer

from mirror_core.kafka.config import load_config
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.topics import delete_records
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.state import state_topic as state_topic
from mirror_core.state import topic_reader
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state
from mirror_core.wire.batch_encoder import compress, encode_record
from mirror_core.wire.fetch import FetchedPartition, FetchPosition
from mirror_core.wire.records import Codec
from tests.support.checked_threads import Work
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.parity_topics import append_batches, batch_of

pytestmark = pytest.mark.cluster


def test_a_reader_waits_for_the_marker_of_a_commit_that_is_under_way(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.west)
    monkeypatch.setattr(state_topic, "STATE_TOPIC", topic)
    monkeypatch.setattr(topic_reader, "OPEN_TRANSACTION_WAIT_S", TIMEOUT_S)
    lease = Lease(mirror=MirrorName("m"), owner="me", generation=1, heartbeat_ms=1, writers_until_ms=1)
    producer = Producer({**pair.west.client_config("admin"), "transactional.id": f"tx-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    ((key, value),) = State().to_rows(lease)
    producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0

    real, undecided = topic_reader._fetch_records, threading.Event()

    def watched(link: FetchLink, wanted: FetchPosition, *, is_waiting: bool) -> FetchedPartition | None:
        answer = real(link, wanted, is_waiting=is_waiting)
        assert answer is not None
        if not answer.records and answer.high_watermark > wanted.offset:
            undecided.set()
        return answer

    monkeypatch.setattr(topic_reader, "_fetch_records", watched)
    west = load_config(pair.config_path).cluster("west")
    reader = Work(partial(read_state, west, timeout_s=TIMEOUT_S), "reader").start()
    assert undecided.wait(TIMEOUT_S), "it has seen no open transaction"
    assert reader.alive
    producer.commit_transaction(TIMEOUT_S)
    assert reader.result(TIMEOUT_S).leases == {"m": lease}


def test_a_reader_does_not_wait_long_for_a_transaction_whose_owner_is_gone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.west)
    monkeypatch.setattr(state_topic, "STATE_TOPIC", topic)
    producer = Producer({**pair.west.client_config("admin"), "transactional.id": f"tx-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"undecided", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    # Unreachable after the time limit, if it waited for what nobody ends.
    west = load_config(pair.config_path).cluster("west")
    assert read_state(west, timeout_s=TIMEOUT_S).leases == {}
    # Whoever is about to act is told what holds him up, and what ends it.
    with pytest.raises(Unreachable, match=r"a transaction that is open there .* find-hanging"):
        read_state(west, timeout_s=5.0, wait_for_open=True)
    producer.abort_transaction(TIMEOUT_S)


def test_a_leader_that_is_being_elected_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment after its start a broker answers so; when that is cannot be chosen, so the answer is put in here."""
    topic = new_topic(pair.west)
    monkeypatch.setattr(state_topic, "STATE_TOPIC", topic)
    west = load_config(pair.config_path).cluster("west")
    produce(pair.west, topic, 1)
    codes = iter([ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch, ErrorCode.offset_out_of_range])
    real = topic_reader._fetch_records

    def electing(link: FetchLink, wanted: FetchPosition, *, is_waiting: bool) -> FetchedPartition | None:
        answer = real(link, wanted, is_waiting=is_waiting)
        return answer and answer._replace(error=int(next(codes, ErrorCode.none)))

    monkeypatch.setattr(topic_reader, "_fetch_records", electing)
    assert read_state(west, timeout_s=TIMEOUT_S).leases == {}
    assert next(codes, None) is None
    codes = itertools.repeat(ErrorCode.not_leader_or_follower)
    with pytest.raises(Unreachable, match=r"cluster west, state topic .*: not read within 4.0 s: NOT_LEADER"):
        read_state(west, timeout_s=4.0)


def test_what_is_damaged_or_senseless_is_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(pair.west)
    monkeypatch.setattr(state_topic, "STATE_TOPIC", topic)
    produce(pair.west, topic, 3)
    west = load_config(pair.config_path).cluster("west")
    real = topic_reader._fetch_records

    def damaged(link: FetchLink, wanted: FetchPosition, *, is_waiting: bool) -> FetchedPartition | None:
        answer = real(link, wanted, is_waiting=is_waiting)
        assert answer is not None
        whole = bytearray(answer.records)
        whole[-1:] = bytes(byte ^ 1 for byte in whole[-1:])
        return answer._replace(records=memoryview(whole))

    monkeypatch.setattr(topic_reader, "_fetch_records", damaged)
    with pytest.raises(RemoteFault, match=rf"state topic {topic}: batch at offset 0 is damaged"):
        read_state(west, timeout_s=TIMEOUT_S)

    def cut_short(link: FetchLink, wanted: FetchPosition, *, is_waiting: bool) -> FetchedPartition | None:
        answer = real(link, wanted, is_waiting=is_waiting)
        assert answer is not None
        return answer._replace(records=answer.records[:20])

    monkeypatch.setattr(topic_reader, "_fetch_records", cut_short)
    with pytest.raises(RemoteFault, match=rf"state topic {topic}, offset 0: no whole batch"):
        read_state(west, timeout_s=TIMEOUT_S)


def test_a_batch_that_nobody_can_decode_ends_no_reader_and_is_named(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers take it: Java ignores what follows the compressed data. It stays for as long as the topic does."""
    topic = new_topic(pair.west)
    monkeypatch.setattr(state_topic, "STATE_TOPIC", topic)
    row = encode_record(0, 0, b"\2k\2v\0")
    crafted = batch_of(compress(Codec.GZIP, row) + b"what follows it", 1, Codec.GZIP)
    append_batches(pair, "west", topic, [crafted])
    lease = Lease(mirror=MirrorName("m"), owner="me", generation=1, heartbeat_ms=1, writers_until_ms=1)
    producer = Producer({**pair.west.client_config("admin")})
    ((key, value),) = State().to_rows(lease)
    producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    state = read_state(load_config(pair.config_path).cluster("west"), timeout_s=TIMEOUT_S)
    assert state.leases == {"m": lease}
    assert [*state.unreadable] == ["batch/0"]
    assert "gzip data cannot be decompressed" in state.unreadable["batch/0"]


def test_a_topic_that_is_not_there_is_empty_and_one_whose_beginning_went_is_read_from_there(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    west = load_config(pair.config_path).cluster("west")
    monkeypatch.setattr(state_topic, "STATE_TOPIC", "never-made")
    assert read_state(west, timeout_s=TIMEOUT_S) == State()
    topic = new_topic(pair.west)
    monkeypatch.setattr(state_topic, "STATE_TOPIC", topic)
    assert read_state(west, timeout_s=TIMEOUT_S) == State()
    for generation in (1, 2):
        lease = Lease(mirror=MirrorName("m"), owner="me", generation=generation, heartbeat_ms=1, writers_until_ms=1)
        producer = Producer(pair.west.client_config("admin"))
        for key, value in State().to_rows(lease):
            producer.produce(topic, key=key, value=value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
    with as_admin(pair.west) as client:
        delete_records(client, {Partition(topic, 0): Offset(1)})
        assert read_state(west, timeout_s=TIMEOUT_S).leases == {"m": lease}
        delete_records(client, {Partition(topic, 0): Offset(2)})
    assert read_state(west, timeout_s=TIMEOUT_S) == State()
