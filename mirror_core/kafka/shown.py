"""Waits until all brokers know of a change: the controller answers before any of them does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from mirror_core.kafka.at_once import call_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.model.errors import RemoteFault, Unreachable

_PROPAGATION_PAUSE_S: Final = 0.02


def wait_for_propagation(
    client: ClusterClient, shows_change: Callable[[Connection], bool], within_s: float, *, retry_timeouts: bool = False
) -> Mapping[int, RemoteFault | None]:
    """Late brokers, each with its error if it answered with one.

    Each answers from its own metadata, which follows the controller's order. `shows_change` runs in several threads.
    Only timeouts are retried, with `retry_timeouts` at once.
    """
    deadline = time.monotonic() + within_s
    waiting = dict[int, RemoteFault | None].fromkeys(client.brokers())
    wrong = dict[int, RemoteFault | None]()
    while waiting:
        asked_at = time.monotonic()
        for broker in waiting if retry_timeouts and asked_at <= deadline else ():
            client.timed_out_at.pop(broker, None)
        results = call_brokers(client, dict.fromkeys(waiting, shows_change))
        waiting = {
            broker: result if isinstance(result, RemoteFault) else None
            for broker, result in results.items()
            if result is not True
        }
        wrong |= {broker: error for broker, error in waiting.items() if error and not isinstance(error, Unreachable)}
        waiting = {broker: error for broker, error in waiting.items() if broker not in wrong}
        live_brokers = client.brokers() if waiting else ()
        waiting = {
            broker: error for broker, error in waiting.items() if broker in live_brokers
        }  # dead brokers leave the list
        if asked_at > deadline:
            break
        time.sleep(_PROPAGATION_PAUSE_S if waiting else 0)
    return {**waiting, **wrong}
