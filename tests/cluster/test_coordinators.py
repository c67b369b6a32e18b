"""Open transactions while their coordinators are being elected, or move: asked again, and never taken for ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v0.response import ListTransactionsResponse

from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.config import load_config
from mirror_core.kafka.fan_out import TRANSACTION_STATE_TOPIC
from mirror_core.kafka.transactions import list_open_transactions
from mirror_core.model.errors import Unreachable
from tests.support.gap_logs import transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

Change = Callable[[Any, int], Any]
"""An answer as it is while a coordinator is elected, by how many more such ones there will be; None: not of these."""


def loading(found: Any, left: int) -> Any:
    if not isinstance(found, ListTransactionsResponse):
        return None
    return replace(found, error_code=ErrorCode.coordinator_load_in_progress, transaction_states=())


def resigned(found: Any, left: int) -> Any:
    if not isinstance(found, DescribeTransactionsResponse):
        return None
    rows = tuple(replace(row, error_code=ErrorCode.not_coordinator) for row in found.transaction_states)
    return replace(found, transaction_states=rows)


def moving(found: Any, left: int) -> Any:
    if not isinstance(found, ClusterMetadata) or TRANSACTION_STATE_TOPIC not in found.topics:
        return None
    log = found.topics[TRANSACTION_STATE_TOPIC]
    leaders = {index: leader._replace(epoch=-left) for index, leader in log.partitions.items()}
    return replace(found, topics={**found.topics, TRANSACTION_STATE_TOPIC: replace(log, partitions=leaders)})


class Electing(ClusterClient):
    """A real cluster's, and so are its answers but for the first ones of a kind."""

    change: Change
    left = 0

    def call(self, *asked: Any) -> Any:
        return self._changed(super().call(*asked))

    def metadata(self, *asked: Any, **how: Any) -> Any:
        return self._changed(super().metadata(*asked, **how))

    def _changed(self, found: Any) -> Any:
        changed = self.change(found, self.left) if self.left else None
        if changed is None:
            return found
        self.left -= 1
        return changed


@pytest.mark.parametrize("change", [loading, resigned, moving])
def test_an_open_transaction_is_found_or_it_is_said_that_nobody_can_tell(pair: Pair, change: Change) -> None:
    topic = new_topic(pair.east)
    producer = transactional(pair.east)
    producer.begin_transaction()
    producer.produce(topic, b"joined", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    client = Electing(load_config(pair.config_path).cluster("east"), timeout_s=TIMEOUT_S)
    with client:
        client.change = change
        client.left = 1
        assert len(list_open_transactions(client, {topic})) == 1
        assert client.left == 0, "it was not asked"
        client.left, client.timeout_s = 1_000_000, 2.0
        with pytest.raises(Unreachable, match="coordinator"):
            list_open_transactions(client, {topic})
        client.left, client.timeout_s = 0, TIMEOUT_S
        producer.abort_transaction(TIMEOUT_S)
        over = lambda: list_open_transactions(client, {topic}) == ()  # noqa: E731
        wait_until(over, timeout_s=TIMEOUT_S, why="it is over")
