"""Reads the state topic. `writer` writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.topics import BROKER_TIME_CONFIGS
from mirror_core.model.text import format_shell_command
from mirror_core.state.state_cache import STATE_CACHE, read_from_cache
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.state.topic_reader import read_from_start

STATE_TOPIC_CONFIGS: Final[Mapping[str, str]] = MappingProxyType(
    {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1", **BROKER_TIME_CONFIGS}
)
"""With other settings brokers delete records of mirrors and of pending fences. Without limits of time and size,
`delete` removes nothing, even if a policy for all topics of the cluster sets it.
"""
STATE_TRANSACTION_MS: Final = 10_000
"""Also for owners killed during a commit."""
_ABORT_WAIT_S: Final = 35.0
"""Brokers check timeouts every 10 s."""


def _format_transactions_command(action: str, *options: str) -> str:
    where = ("--topic", STATE_TOPIC, "--partition", "0")
    return format_shell_command("kafka-transactions.sh", "--bootstrap-server", "BOOTSTRAP", action, *where, *options)


_HANGING_HINT: Final = (
    "a transaction that is open there hides what stands behind it. A coordinator ends one after "
    f"{STATE_TRANSACTION_MS / 1000:.0f} s; `{_format_transactions_command('find-hanging')}` names one that nobody ends,"
    f" and `{_format_transactions_command('abort', '--start-offset', 'START_OFFSET')}` ends it"
)
"""A coordinator may drop the marker for a broker that is just starting."""


def read_state(
    cluster: ClusterConfig,
    *,
    timeout_s: float = 10.0,
    wait_for_open: bool = False,
    on_progress: Callable[[], None] = lambda: None,
) -> State:
    """Empty without the topic. A killed owner's open transaction hides later records.

    That suffices for display; to act, use `wait_for_open`. The limit is for silence, until the end was seen once.
    Cached during a run.
    """
    remembered = STATE_CACHE.pop(cluster) if STATE_CACHE.is_enabled else None
    cached = read_from_cache(cluster, remembered, on_progress) if remembered else None
    if cached is None:
        topic_read = read_from_start(
            cluster,
            STATE_TOPIC,
            timeout_s=timeout_s,
            wait_for_open=wait_for_open,
            on_progress=on_progress,
            hanging_hint=_HANGING_HINT,
        )
        if topic_read.cached is None or not STATE_CACHE.is_enabled:
            return topic_read.state
        cached = topic_read.cached
    state = cached.state.copy()  # the caller changes its copy
    STATE_CACHE.put(cluster, cached)
    return state


def read_complete_state(cluster: ClusterConfig) -> State:
    return read_state(cluster, timeout_s=_ABORT_WAIT_S, wait_for_open=True)
