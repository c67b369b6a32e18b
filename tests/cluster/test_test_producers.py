"""The tests' own hands must not lie: what they produce is what both client families read."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.support.kafka_clients import Pair, new_topic, produce, read_all, read_all_aiokafka

pytestmark = pytest.mark.cluster


def test_both_readers_see_exactly_what_was_acknowledged(pair: Pair) -> None:
    topic = new_topic(pair.east, partitions=2)
    sent = produce(pair.east, topic, 500) + produce(pair.east, topic, 300, partition=1, compression_type="zstd")
    assert [record.offset for record in sent] == [*range(500), *range(300)]
    assert read_all(pair.east, topic) == sent
    assert read_all_aiokafka(pair.east, topic) == sent


def test_readers_stop_behind_a_trailing_aborted_transaction(pair: Pair) -> None:
    topic = new_topic(pair.west, cleanup_policy="compact")
    sent = produce(pair.west, topic, 6)
    producer = Producer({**pair.west.client_config("admin"), "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(20):
        producer.produce(topic, key=b"gone", value=str(number).encode())
    producer.flush(30)
    producer.abort_transaction(30)
    assert read_all(pair.west, topic) == sent
    assert read_all_aiokafka(pair.west, topic) == sent


def test_readers_find_nothing_in_an_empty_topic(pair: Pair) -> None:
    topic = new_topic(pair.east)
    assert read_all(pair.east, topic) == []
    assert read_all_aiokafka(pair.east, topic) == []
