"""Waits until all brokers know of a change: the controller answers before any of them does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from mirror_core.kafka.at_once import ask_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.model.errors import RemoteFault, Unreachable

_PAUSE_S: Final = 0.02


def late(
    client: ClusterClient, shows: Callable[[Connection], bool], within_s: float, *, anew: bool = False
) -> Mapping[int, RemoteFault | None]:
    """Late brokers, each with its error if it answered with one.

    Each answers from its own metadata, which follows the controller's order. `shows_change` runs in several threads.
    Only timeouts are retried, with `retry_timeouts` at once.
    """
    deadline = time.monotonic() + within_s
    waiting = dict[int, RemoteFault | None].fromkeys(client.brokers())
    over = dict[int, RemoteFault | None]()
    while waiting:
        asked = time.monotonic()
        for broker in waiting if anew and asked <= deadline else ():
            client.silent.pop(broker, None)
        said = ask_brokers(client, dict.fromkeys(waiting, shows))
        waiting = {
            broker: word if isinstance(word, RemoteFault) else None for broker, word in said.items() if word is not True
        }
        over |= {broker: why for broker, why in waiting.items() if why and not isinstance(why, Unreachable)}
        waiting = {broker: why for broker, why in waiting.items() if broker not in over}
        there = client.brokers() if waiting else ()
        waiting = {broker: why for broker, why in waiting.items() if broker in there}  # dead brokers leave the list
        if asked > deadline:
            break
        time.sleep(_PAUSE_S if waiting else 0)
    return {**waiting, **over}
