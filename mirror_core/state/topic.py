"""Reads the state topic. `writer` writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.shell_command import shell_command
from mirror_core.state.reading import read_from_start
from mirror_core.state.records import TOPIC, State
from mirror_core.state.remembered import REMEMBERED, read_on

TRANSACTION_MS: Final = 10_000
"""Also for owners killed during a commit."""
_ABORTED_S: Final = 35.0
"""Brokers check timeouts every 10 s."""
_FIND_HANGING: Final = shell_command(
    "kafka-transactions.sh", "--bootstrap-server", "BOOTSTRAP", "find-hanging", "--topic", TOPIC, "--partition", "0"
)
_HANGING: Final = (
    "a transaction that is open there hides what stands behind it. A coordinator ends one after "
    f"{TRANSACTION_MS / 1000:.0f} s; `{_FIND_HANGING}` names one that nobody ends, and `abort` ends it"
)
"""A coordinator may drop the marker for a broker that is just starting."""


def read_state(
    cluster: ClusterConfig,
    *,
    timeout_s: float = 10.0,
    whole: bool = False,
    heard: Callable[[], None] = lambda: None,
) -> State:
    """Empty without the topic. A killed owner's open transaction hides later records.

    That suffices for display; to act, use `wait_for_open`. The limit is for silence: each response restarts it until
    the end was seen once. Cached during a run.
    """
    known = REMEMBERED.take(cluster) if REMEMBERED.keeps else None
    memory = read_on(cluster, known, heard) if known else None
    if memory is None:
        found = read_from_start(cluster, TOPIC, timeout_s=timeout_s, whole=whole, heard=heard, hanging=_HANGING)
        if found.memory is None or not REMEMBERED.keeps:
            return found.state
        memory = found.memory
    state = memory.state.copy()  # the caller changes its copy
    REMEMBERED.put(cluster, memory)
    return state


def read_whole(cluster: ClusterConfig) -> State:
    """For deciding."""
    return read_state(cluster, timeout_s=_ABORTED_S, whole=True)
