"""The state topic: read by anyone who may. Who writes it: `state/writer.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.shell_command import shell_command
from mirror_core.state.reading import read_from_start
from mirror_core.state.records import TOPIC, State
from mirror_core.state.remembered import REMEMBERED, read_on

TRANSACTION_MS: Final = 10_000
"""Longest life of a transaction, so of one whose owner was killed in the middle of a commit."""
_ABORTED_S: Final = 35.0
"""By then it is aborted: brokers look for timed-out transactions every 10 s by default."""
_FIND_HANGING: Final = shell_command(
    "kafka-transactions.sh", "--bootstrap-server", "BOOTSTRAP", "find-hanging", "--topic", TOPIC, "--partition", "0"
)
_HANGING: Final = (
    "a transaction that is open there hides what stands behind it. A coordinator ends one after "
    f"{TRANSACTION_MS / 1000:.0f} s; `{_FIND_HANGING}` names one that nobody ends, and `abort` ends it"
)
"""A coordinator that meets a broker in the moment of its start may drop the marker that it had for it."""


def read_state(
    cluster: ClusterConfig,
    *,
    timeout_s: float = 10.0,
    whole: bool = False,
    heard: Callable[[], None] = lambda: None,
) -> State:
    """The committed state at this moment; empty when the state topic does not exist.

    Behind the open transaction of a killed owner, committed records of others are hidden until the broker aborts it.
    For a look that is good enough; who is about to act (`whole`) waits for it within the time limit.
    The limit is for silence: while answers come, it begins anew, until the end was seen once; `heard` is told so.
    While a run is at work, it is read on from where it was read before (`remembered`).
    """
    known = REMEMBERED.take(cluster) if REMEMBERED.keeps else None
    memory = read_on(cluster, known, heard) if known else None
    if memory is None:
        found = read_from_start(cluster, TOPIC, timeout_s=timeout_s, whole=whole, heard=heard, hanging=_HANGING)
        if found.memory is None or not REMEMBERED.keeps:
            return found.state
        memory = found.memory
    state = memory.state.copy()  # whoever asked puts into it what it writes; what is remembered was read
    REMEMBERED.put(cluster, memory)
    return state


def read_whole(cluster: ClusterConfig) -> State:
    """The state for one who is about to act on it: a killed owner's open transaction is waited for."""
    return read_state(cluster, timeout_s=_ABORTED_S, whole=True)
