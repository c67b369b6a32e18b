"""A request to every broker about what it coordinates; complete, or an error.

An entry that moves from a broker not yet asked to one already asked would be in no response.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from mirror_core.kafka.client import ClusterClient, ClusterMetadata, Leader
from mirror_core.model.errors import Unreachable

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
_COORDINATOR_PAUSE_S: Final = 0.1

CoordinatorResult = TypeVar("CoordinatorResult")


class CoordinatorMoving(Unreachable):
    """A coordinator is loading, or has moved."""


def call_coordinators(
    client: ClusterClient, topic: str, call: Callable[[int], CoordinatorResult]
) -> dict[int, CoordinatorResult]:
    """No coordinator's leader changed meanwhile. Retries until the client's limit, then CoordinatorMoving."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        metadata_before = client.metadata([topic])
        try:
            results = {broker: call(broker) for broker in sorted(metadata_before.brokers)}
            if _find_leaders(metadata_before, topic) == _find_leaders(client.metadata([topic]), topic):
                return results
            moving_error = CoordinatorMoving(f"cluster {client.name}: coordinators are moving (leaders of {topic})")
        except CoordinatorMoving as error:
            moving_error = error
        if time.monotonic() > deadline:
            raise moving_error
        time.sleep(_COORDINATOR_PAUSE_S)


def _find_leaders(metadata: ClusterMetadata, topic: str) -> Mapping[int, Leader]:
    described = metadata.topics.get(topic)
    return described.partitions if described else {}
