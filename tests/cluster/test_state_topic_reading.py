"""Reading the state right behind its writer."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from mirror_core.kafka.config import load_config
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName
from mirror_core.state import topic as state_topic
from mirror_core.state.records import State
from mirror_core.state.topic import read_state
from tests.brokers import TIMEOUT_S, Pair, new_topic
from tests.threads import Work

pytestmark = pytest.mark.cluster


def test_a_reader_waits_for_the_marker_of_a_commit_that_is_under_way(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.west)
    monkeypatch.setattr(state_topic, "TOPIC", topic)
    monkeypatch.setattr(state_topic, "_MARKER_S", TIMEOUT_S)
    lease = Lease(mirror=MirrorName("m"), owner="me", generation=1, beat_ms=1, writers_until_ms=1)
    producer = Producer({**pair.west.client_config("admin"), "transactional.id": f"tx-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    ((key, value),) = State().rows(lease)
    producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0

    real, undecided = state_topic._all_decided, threading.Event()

    def watched(consumer: Consumer, low: int) -> int | None:
        decided = real(consumer, low)
        if decided is None:
            undecided.set()
        return decided

    monkeypatch.setattr(state_topic, "_all_decided", watched)
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
    monkeypatch.setattr(state_topic, "TOPIC", topic)
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
        read_state(west, timeout_s=1.0, whole=True)
    producer.abort_transaction(TIMEOUT_S)


def test_a_leader_that_is_being_elected_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment after its start a broker answers so; when that is cannot be chosen, so the answer is put in here."""
    topic = new_topic(pair.west)
    monkeypatch.setattr(state_topic, "TOPIC", topic)
    answers = iter([KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE])

    class Electing(Consumer):
        def get_watermark_offsets(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
            if (code := next(answers, None)) is not None:
                raise KafkaException(KafkaError(code))
            return super().get_watermark_offsets(*args, **kwargs)

    monkeypatch.setattr(state_topic, "Consumer", Electing)
    assert read_state(load_config(pair.config_path).cluster("west"), timeout_s=TIMEOUT_S).leases == {}
    assert next(answers, None) is None
    answers = itertools.repeat(KafkaError.NOT_LEADER_FOR_PARTITION)
    with pytest.raises(Unreachable, match=r"cluster west, state topic .*: no answer in time \(NOT_LEADER"):
        read_state(load_config(pair.config_path).cluster("west"), timeout_s=2.0)
