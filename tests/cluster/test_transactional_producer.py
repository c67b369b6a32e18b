"""A producer that has its transactional id alone: whatever is lost on the way, a write is there once, or not at all."""

from __future__ import annotations

import itertools
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from kio.schema.end_txn.v2.request import EndTxnRequest
from kio.schema.end_txn.v2.response import EndTxnResponse

from mirror_core.kafka import transactional_producer
from mirror_core.kafka.codec import Request
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.transactional_producer import ProducerFenced, TransactionalProducer
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import Partition
from tests.support.cluster_admin import as_admin, undecided
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, read_all
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

BEGIN, APPEND, END = PARTS = ("_add_partition", "_append", "_end_transaction")
"""Of a write, in their order."""
FOR_GOOD: Final = float("inf")
LONG: Final = 3 * transactional_producer._BATCH_BYTES


class Log:
    """A topic, and who writes to it."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.cluster: ClusterConfig = load_config(pair.config_path).cluster("west")
        self.partition = Partition(new_topic(pair.west, 1, "t-"), 0)
        self.id = f"mirrorbook.control.{secrets.token_hex(4)}"

    def producer(self) -> TransactionalProducer:
        made = TransactionalProducer(
            self.cluster, self.id, self.partition, transaction_ms=10_000, where=f"topic {self.partition.topic}"
        )
        made.take_over(TIMEOUT_S)
        return made

    @property
    def keys(self) -> list[str]:
        """What a consumer of committed records gets who has nothing of ours, once nothing is open any more."""
        with as_admin(self.pair.west) as client:
            wait_until(lambda: not undecided(client, [self.partition]), timeout_s=TIMEOUT_S, why="all is decided")
        return [(one.key or b"").decode() for one in read_all(self.pair.west, self.partition.topic)]


@pytest.fixture
def log(pair: Pair) -> Log:
    return Log(pair)


class Clock:
    """Of producers: as much time as a test wants has passed, however slow the machine is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        self.sleep = time.sleep
        monkeypatch.setattr(transactional_producer, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


class Lossy:
    """Requests are lost, or their answers: so many, from the first one for this part of a write on.

    Where all of them are, nobody has time left after one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str, count: float, *, answers: bool) -> None:
        real, begun = TransactionalProducer._call_broker, getattr(TransactionalProducer, part)
        self.lost, self._begun = 0, False
        clock = Clock(monkeypatch)

        def begin(producer: TransactionalProducer, *arguments: Any, **more: Any) -> None:
            self._begun = True
            begun(producer, *arguments, **more)

        def exchanged(
            producer: TransactionalProducer, broker: int, limit_s: float, exchange: Callable[..., Any]
        ) -> Any:
            losing = self._begun and self.lost < count
            self.lost += losing
            found = real(producer, broker, limit_s, exchange) if answers or not losing else None
            if losing:
                clock.passed_s += TIMEOUT_S if count is FOR_GOOD else 0
                raise Unreachable("the answer was lost" if answers else "the request was lost")
            return found

        monkeypatch.setattr(TransactionalProducer, part, begin)
        monkeypatch.setattr(TransactionalProducer, "_call_broker", exchanged)


@pytest.mark.parametrize("answers", [False, True])
def test_whatever_is_lost_once_or_twice_each_write_is_there_once(
    log: Log, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    producer, wanted = log.producer(), list[str]()
    for part, count in itertools.product(PARTS, (1, 2)):
        with monkeypatch.context() as patched:
            lossy = Lossy(patched, part, count, answers=answers)
            for write in range(2):
                rows = [(f"{part}.{count}.{write}.{record}", b"x") for record in range(3)]
                producer.write(rows, TIMEOUT_S)
                wanted += [key for key, _ in rows]
            assert lossy.lost == count
    assert log.keys == wanted


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_what_came_of_a_write_that_was_not_answered_is_settled(
    log: Log, monkeypatch: pytest.MonkeyPatch, part: str, answers: bool
) -> None:
    producer = log.producer()
    producer.write([("before", b"x")], TIMEOUT_S)
    with monkeypatch.context() as patched:
        Lossy(patched, part, FOR_GOOD, answers=answers)
        with pytest.raises(Unreachable, match="cannot write: no answer in time"):
            producer.write([("lost", b"x")], TIMEOUT_S)
        with pytest.raises(Unreachable, match="cannot write: no answer in time"):
            producer.finish_transaction(TIMEOUT_S)
    given_up = producer.finish_transaction(TIMEOUT_S)
    assert given_up is (part != END)
    assert not producer.finish_transaction(TIMEOUT_S), "there is nothing more to settle"
    producer.write([("after", None)], TIMEOUT_S)
    assert log.keys == ["before", *["lost"] * (not given_up), "after"]


def test_who_takes_the_id_fences_its_owner_and_ends_what_he_left_open(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = log.producer()
    first.write([("first", b"x")], TIMEOUT_S)
    with monkeypatch.context() as patched:
        Lossy(patched, END, FOR_GOOD, answers=False)
        with pytest.raises(Unreachable):
            first.write([("open", b"x")], TIMEOUT_S)
    second = log.producer()
    second.write([("second", b"x")], TIMEOUT_S)
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            first.finish_transaction(TIMEOUT_S)
    assert log.keys == ["first", "second"]
    idle = log.producer()
    with pytest.raises(ProducerFenced):
        second.write([("too late", b"x")], TIMEOUT_S)
    idle.write([("third", b"x")], TIMEOUT_S)
    assert log.keys == ["first", "second", "third"]


@pytest.mark.parametrize("ours", [False, True])
def test_it_and_librdkafkas_producer_fence_each_other(log: Log, ours: bool) -> None:
    other = Producer({**log.pair.west.client_config("admin"), "transactional.id": log.id, "log_level": 0})
    if ours:
        other.init_transactions(TIMEOUT_S)
        other.begin_transaction()
        other.produce(log.partition.topic, key="open", value="x", partition=0)
        assert other.flush(TIMEOUT_S) == 0
    producer = log.producer()
    producer.write([("ours", b"x")], TIMEOUT_S)
    if not ours:
        other.init_transactions(TIMEOUT_S)
        with pytest.raises(ProducerFenced):
            producer.write([("open", b"x")], TIMEOUT_S)
    assert log.keys == ["ours"]


def test_much_goes_in_many_batches_all_or_none(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, value = log.producer(), secrets.token_bytes(100_000)
    rows = [(str(number), value) for number in range(4 * LONG // len(value))]
    with monkeypatch.context() as patched:
        Lossy(patched, APPEND, 1, answers=True)
        producer.write(rows, TIMEOUT_S)
    assert log.keys == [key for key, _ in rows]
    producer.write([], TIMEOUT_S)
    with monkeypatch.context() as patched:
        Lossy(patched, APPEND, FOR_GOOD, answers=True)
        with pytest.raises(Unreachable):
            producer.write(rows, TIMEOUT_S)
    assert producer.finish_transaction(TIMEOUT_S)
    assert log.keys == [key for key, _ in rows]


@pytest.mark.slow
def test_a_transaction_that_brokers_have_ended_is_nobodys(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = log.producer()
    with monkeypatch.context() as patched:
        Lossy(patched, END, FOR_GOOD, answers=False)
        with pytest.raises(Unreachable):
            producer.write([("open", b"x")], TIMEOUT_S)
    assert log.keys == [], "the coordinator ends it"
    with pytest.raises(ProducerFenced):
        producer.finish_transaction(TIMEOUT_S)


def test_who_may_not_write_is_told_which_right_is_missing(log: Log) -> None:
    producer = log.producer()
    producer._partition = Partition("__consumer_offsets", 0)
    with pytest.raises(MissingPermission, match="cannot write: TOPIC_AUTHORIZATION_FAILED for mirror-control"):
        producer.write([("x", b"x")], TIMEOUT_S)
    stranger = TransactionalProducer(log.cluster, "a-strangers", log.partition, transaction_ms=10_000, where="here")
    with pytest.raises(MissingPermission, match="here: cannot take over: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for"):
        stranger.take_over(TIMEOUT_S)


def test_a_topic_that_is_not_there_is_waited_for_and_then_said(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, clock, asked = log.producer(), Clock(monkeypatch), itertools.count(1)
    producer._partition = Partition("t-nowhere", 0)
    real = TransactionalProducer._call_broker

    def exchanged(self: TransactionalProducer, *arguments: Any) -> Any:
        clock.passed_s = next(asked) * TIMEOUT_S / 3
        return real(self, *arguments)

    monkeypatch.setattr(TransactionalProducer, "_call_broker", exchanged)
    with pytest.raises(RemoteFault, match="UNKNOWN_TOPIC_OR_PARTITION"):
        producer.write([("x", b"x")], TIMEOUT_S)
    assert next(asked) > 3


def test_the_copy_of_a_commit_that_was_interrupted_ends_no_later_write(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the next write is half done."""
    producer, late = log.producer(), list[Request]()
    real, append = Connection.call, TransactionalProducer._append

    def call(connection: Connection, request: Request, answer: Any, timeout_s: float | None = None) -> Any:
        if isinstance(request, EndTxnRequest) and not late:
            late.append(request)
            raise KeyboardInterrupt
        return real(connection, request, answer, timeout_s)

    def appended(self: TransactionalProducer, batches: Sequence[tuple[bytearray, int]], deadline: float) -> None:
        append(self, batches[:1], deadline)
        with as_admin(log.pair.west) as client:
            assert client.call(late[0], EndTxnResponse).error_code is ErrorCode.producer_fenced
        append(self, batches[1:], deadline)

    monkeypatch.setattr(Connection, "call", call)
    with pytest.raises(KeyboardInterrupt):
        producer.write([("first", b"x")], TIMEOUT_S)
    assert not producer.finish_transaction(TIMEOUT_S)
    monkeypatch.setattr(TransactionalProducer, "_append", appended)
    producer.write([("second", secrets.token_bytes(transactional_producer._BATCH_BYTES)), ("third", b"x")], TIMEOUT_S)
    assert log.keys == ["first", "second", "third"]


def test_who_has_lost_the_id_in_the_middle_of_an_abort_does_not_take_it_from_its_owner(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    loser = log.producer()
    with monkeypatch.context() as patched:
        Lossy(patched, APPEND, FOR_GOOD, answers=False)
        with pytest.raises(Unreachable):
            loser.write([("lost", b"x")], TIMEOUT_S)
    with monkeypatch.context() as patched:
        Lossy(patched, "_init_producer_id", FOR_GOOD, answers=False)
        with pytest.raises(Unreachable):
            loser.finish_transaction(TIMEOUT_S)
    owner, append = log.producer(), TransactionalProducer._append

    def appended(self: TransactionalProducer, batches: Sequence[tuple[bytearray, int]], deadline: float) -> None:
        append(self, batches, deadline)
        with pytest.raises(ProducerFenced):
            loser.finish_transaction(TIMEOUT_S)

    monkeypatch.setattr(TransactionalProducer, "_append", appended)
    owner.write([("owner", b"x")], TIMEOUT_S)
    assert log.keys == ["owner"]


def test_a_write_that_failed_hides_nothing_of_others_and_fences_nobody(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, sent = log.producer(), TransactionalProducer._send_batches

    def short(self: TransactionalProducer, *arguments: Any) -> ErrorCode:
        sent(self, *arguments)
        clock.passed_s += TIMEOUT_S / 3
        return ErrorCode.not_enough_replicas_after_append

    with monkeypatch.context() as patched:
        clock = Clock(patched)
        patched.setattr(TransactionalProducer, "_send_batches", short)
        with pytest.raises(Unreachable, match="NOT_ENOUGH_REPLICAS_AFTER_APPEND"):
            producer.write([("failed", b"x")], TIMEOUT_S)
    with as_admin(log.pair.west) as client:
        assert not undecided(client, [log.partition])
    producer.write([("next", b"x")], TIMEOUT_S)
    assert log.keys == ["next"]


def test_the_end_of_a_connection_that_was_idle_costs_no_new_epoch(log: Log) -> None:
    producer = log.producer()
    producer.write([("one", b"x")], TIMEOUT_S)
    epoch = producer._producer_id_epoch
    for idle in producer._client._connections.values():
        idle.sock.shutdown(socket.SHUT_WR)  # the broker closes its side, as it does with what is idle for long
        wait_until(lambda one=idle: one.is_readable, timeout_s=TIMEOUT_S, why="its end has come")  # type: ignore[misc]
    for number in range(2):
        producer.write([(str(number), b"x")], TIMEOUT_S)
    assert producer._producer_id_epoch == epoch
    assert log.keys == ["one", "0", "1"]
