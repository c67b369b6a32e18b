"""Whether a process watches the old source of a failover, by the newest watcher's heartbeat.

Needed while the fence is pending or applied: watchers apply it when the cluster answers again, and check that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from mirror_core.decide.clocks import compute_age_s, format_ago
from mirror_core.decide.standing import FenceState, find_fence_state, format_time
from mirror_core.model.checkpoint import Checkpoint, WatcherHeartbeat
from mirror_core.model.names import DRILL_PREFIX, MirrorName
from mirror_core.model.standing import PendingFence

WATCHER_STEP: Final = "watch"
"""Pseudo step under which watchers store their heartbeats."""
MAX_MISSED_PROBES: Final = 3
WATCHER_GRACE_S: Final = 180.0

_MAX_TIME_MS: Final = 253_402_300_800_000
_MAX_INTERVAL_S: Final = 7200.0
_WATCHER_DECODER: Final = msgspec.json.Decoder(
    WatcherHeartbeat
)  # once, by the thread that imports this: see `state/records.py`
_UNWATCHED_RISKS: Final[Mapping[FenceState, str]] = MappingProxyType(
    {
        FenceState.PENDING: "nobody would fence it when it answers",
        FenceState.APPLIED: "nobody would see that its fence is removed",
        FenceState.WATCHED_ONLY: "nobody would see that it takes writes",
        FenceState.LIFTING: "nobody would remove its fence when it answers, and its applications stay kept out",
    }
)


class WatcherState(StrEnum):
    NOT_NEEDED = "none needed"
    ALIVE = "somebody"
    AWAITED = "awaited"
    MISSING = "nobody"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherStatus:
    state: WatcherState
    mirror: MirrorName
    cluster: str = ""
    fence_state: FenceState = FenceState.NONE
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.state

    def format_alarms(self) -> Iterator[str]:
        if self.fence_state is FenceState.NONE and self.state is WatcherState.UNKNOWN:
            yield self.text
        elif self.state in (WatcherState.MISSING, WatcherState.UNKNOWN):
            risk = (
                _UNWATCHED_RISKS[self.fence_state]
                if self.state is WatcherState.MISSING
                else f"without one {_UNWATCHED_RISKS[self.fence_state]}"
            )
            yield f"{self.text}: {risk}. Start `mirrorbook mirror watch {self.mirror}`, or unpause DAG mirror_watch"


def decide_watcher_status(
    mirror: MirrorName, pending_fence: PendingFence | None, watcher: WatcherHeartbeat | None, now_ms: int
) -> WatcherStatus:
    if pending_fence is None or mirror.startswith(DRILL_PREFIX):
        return WatcherStatus(state=WatcherState.NOT_NEEDED, mirror=mirror)
    status = WatcherStatus(
        state=WatcherState.UNKNOWN,
        mirror=mirror,
        cluster=pending_fence.cluster,
        fence_state=find_fence_state(pending_fence),
    )
    doubt_text = f"it is not known whether anybody watches cluster {pending_fence.cluster}"
    since_failover_s = compute_age_s(now_ms, pending_fence.since_ms)
    silent_s = None if watcher is None else compute_age_s(now_ms, watcher.at_ms)
    if watcher is not None and silent_s is None and watcher.at_ms - now_ms <= watcher.interval_s * 1000:
        silent_s = 0.0  # clocks that differ by less than a look: one that dies is missed that much later
    if watcher is not None and silent_s is not None and silent_s <= MAX_MISSED_PROBES * watcher.interval_s:
        return replace(
            status, state=WatcherState.ALIVE, text=f"{_format_watcher(watcher)}, seen {format_ago(silent_s)}"
        )
    if watcher is not None and silent_s is None:
        return replace(
            status, text=f"{doubt_text}, as clocks differ: {_format_watcher(watcher)} was last seen in the future"
        )
    if since_failover_s is not None and since_failover_s <= WATCHER_GRACE_S:
        return replace(
            status, state=WatcherState.AWAITED, text=f"none yet, {since_failover_s:.0f} s after run {pending_fence.run}"
        )
    if watcher is None:
        return replace(
            status,
            text=f"{doubt_text}, as no watcher has left a sign of life that this Mirrorbook reads; those of an older "
            "Mirrorbook leave none",
        )
    since_text = format_time(max(watcher.at_ms, pending_fence.since_ms))
    last_text = f"the last one was {_format_watcher(watcher)}, seen {format_time(watcher.at_ms)}"
    return replace(
        status,
        state=WatcherState.MISSING,
        text=f"nobody watches cluster {pending_fence.cluster} since {since_text} by this machine's clock ({last_text})",
    )


def find_watcher_heartbeat(
    mirror: MirrorName, checkpoints: Mapping[tuple[str, str, str], Checkpoint]
) -> WatcherHeartbeat | None:
    checkpoint = checkpoints.get((mirror, WATCHER_STEP, WatcherHeartbeat.__name__))
    if checkpoint is None or checkpoint.version != WatcherHeartbeat.VERSION:
        return None
    try:
        watcher = _WATCHER_DECODER.decode(checkpoint.value)
    except msgspec.MsgspecError:
        return None
    return watcher if 0 <= watcher.at_ms < _MAX_TIME_MS and 0 < watcher.interval_s <= _MAX_INTERVAL_S else None


def _format_watcher(watcher: WatcherHeartbeat) -> str:
    return f"{watcher.by} on {watcher.host} (process {watcher.pid})"
