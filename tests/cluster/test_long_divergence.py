"""Where two long logs part is found by reading little of them: a comparison has to end, however long they are."""

from __future__ import annotations

import pytest

from mirror_core.copy.log_inspection import DivergenceFinder
from mirror_core.model.names import Offset, Partition
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import Pair
from tests.support.log_shapes import T2020, Row, new_producer, send
from tests.support.parity_topics import twin_topics

pytestmark = pytest.mark.cluster

LENGTH = 40_000
LOOKED_AT = 10_000


@pytest.mark.parametrize("parts", [12_345, 1_200, 39_990])
def test_the_first_offset_that_differs_is_found_by_reading_few_records(pair: Pair, parts: int) -> None:
    """As after a source was cut there and has grown beyond the copy, while nobody knows a place near it where both
    agreed."""
    topic = twin_topics(pair)
    for cluster in (pair.east, pair.west):
        rows = [
            Row(value=b"same" if number < parts else cluster.name.encode(), timestamp_ms=T2020 + number)
            for number in range(LENGTH)
        ]
        send(new_producer(cluster, linger_ms="20"), topic, rows)
    read = [0]

    def count() -> None:
        read[0] += 1

    partition = Partition(topic, 0)
    with as_admin(pair.east) as east, as_admin(pair.west) as west, DivergenceFinder(east, west, count) as divergence:
        for since in (0, None):
            read[0] = 0
            assert divergence.find_first_divergence(partition, Offset(LENGTH), since) == parts
            assert read[0] < LOOKED_AT, "of twice so many as each log holds"
        assert divergence.find_first_divergence(partition, Offset(parts), 0) is None
