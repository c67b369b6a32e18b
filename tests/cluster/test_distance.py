"""Far away: what takes a round trip near by takes one there, and nothing stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.brokers import new_topic
from tests.distant import Distant, distant_clusters
from tests.mirroring import new_mirror
from tests.same import assert_same

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    with distant_clusters(tmp_path_factory.mktemp("distant")) as made:
        yield made


@pytest.mark.parametrize("side", ["east", "west"])
@pytest.mark.parametrize("round_trip_ms", [80, 200])
def test_transactions_come_over(distant: Distant, tmp_path: Path, side: str, round_trip_ms: int) -> None:
    pair = distant.pair
    topic = new_topic(pair.east, 4)
    producer = Producer({**pair.east.client_config("admin"), "transactional.id": topic})
    producer.init_transactions()
    for number in range(50):
        producer.begin_transaction()
        for each in range(20):
            producer.produce(topic, f"{number} {each}".encode(), partition=each % 4)
        producer.commit_transaction()
    mirrored = new_mirror(pair, tmp_path, topic)
    with distant.is_far(getattr(pair, side), round_trip_ms):
        mirrored.copy()
    assert_same(pair, [topic])
