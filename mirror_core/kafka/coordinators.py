"""Every broker asked for what it coordinates: complete, or said not to be.

A coordinator leads a partition of a log (of transactions, of groups). While leaders are elected or moved, what goes
from a broker that was not asked yet to one that was already would be in nobody's answer.
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
    """A coordinator is not ready yet, or not the coordinator any more."""


def ask_all(client: ClusterClient, log: str, ask: Callable[[int], T]) -> dict[int, T]:
    """What `ask` tells of each broker, without a coordinator of this log having moved meanwhile.

    `ask` raises Moving where one is not ready. Asked again up to the client's time limit; raises Moving then.
    """
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
    """Nothing where the log does not exist yet, or we may not describe it."""
    seen = view.topics.get(log)
    return seen.partitions if seen else {}
