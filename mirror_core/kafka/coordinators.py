"""A request to every broker about what it coordinates; complete, or an error.

An entry that moves from a broker not yet asked to one already asked would be in no response.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from mirror_core.kafka.client import ClusterClient, ClusterView, Leader
from mirror_core.model.errors import Unreachable

TRANSACTIONS: Final = "__transaction_state"
_PAUSE_S: Final = 0.1

T = TypeVar("T")


class Moving(Unreachable):
    """A coordinator is loading, or has moved."""


def ask_all(client: ClusterClient, log: str, ask: Callable[[int], T]) -> dict[int, T]:
    """No coordinator's leader changed meanwhile. Retries until the client's limit, then CoordinatorMoving."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        before = client.metadata([log])
        try:
            found = {broker: ask(broker) for broker in sorted(before.brokers)}
            if _leaders(before, log) == _leaders(client.metadata([log]), log):
                return found
            moving = Moving(f"cluster {client.name}: coordinators are moving (leaders of {log})")
        except Moving as error:
            moving = error
        if time.monotonic() > deadline:
            raise moving
        time.sleep(_PAUSE_S)


def _leaders(view: ClusterView, log: str) -> Mapping[int, Leader]:
    seen = view.topics.get(log)
    return seen.partitions if seen else {}
