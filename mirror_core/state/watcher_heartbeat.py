"""Heartbeats of `mirror watch`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from mirror_core.decide.clock_skew import to_local_clock_ms
from mirror_core.decide.process_liveness import (
    MAX_MISSED_PROBES,
    WATCHER_STEP,
    WatcherState,
    WatcherStatus,
    decide_watcher_status,
    find_watcher_heartbeat,
)
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import format_safe_error
from mirror_core.model.findings import Finding
from mirror_core.model.logs import get_logger
from mirror_core.model.names import DRILL_PREFIX, MirrorName
from mirror_core.model.run_checkpoints import WatcherHeartbeat
from mirror_core.model.timing import CLOCK_TIMEOUT_S, now_ms
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.non_transactional_writer import NonFencingWriter
from mirror_core.state.state_records import State
from mirror_core.supervisor.process_identity import get_current_process

_log = get_logger(__name__)

WATCHER_HEARTBEAT_S: Final = 30.0
"""Minimum interval."""
_FLUSH_TIMEOUT_S: Final = 2.0


class WatcherHeartbeats:
    """Failures never affect watching."""

    def __init__(self, cluster: ClusterConfig, watcher: str, every_s: float) -> None:
        """`every_s`: longest interval."""
        self._cluster = cluster
        self._watcher = watcher
        self._every_s = every_s
        self._writer: NonFencingWriter | None = None
        self._must_renew = False
        """The client may hold an expired certificate."""
        self._sent_at: dict[MirrorName, float] = {}

    def __enter__(self) -> WatcherHeartbeats:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self._writer is not None and not self._writer.flush(_FLUSH_TIMEOUT_S):
                self._warn_lost("no answer in time")
        except Exception as error:  # noqa: BLE001 - said, and nothing depends on it
            self._warn_lost(format_safe_error(error))

    def send(self, mirror: MirrorName) -> None:
        """Rate-limited. Drills are not watched."""
        if mirror.startswith(DRILL_PREFIX):
            return
        if time.monotonic() - self._sent_at.get(mirror, -WATCHER_HEARTBEAT_S) < WATCHER_HEARTBEAT_S:
            return
        self._sent_at[mirror] = time.monotonic()
        self._put(mirror)

    def end(self, mirror: MirrorName) -> None:
        if mirror in self._sent_at:
            self._put(mirror, ended=True)

    def _put(self, mirror: MirrorName, *, ended: bool = False) -> None:
        process = get_current_process()
        heartbeat = WatcherHeartbeat(
            by=self._watcher,
            host=process.machine.host,
            pid=process.pid,
            at_ms=now_ms(),
            interval_s=self._every_s,
            ended=ended,
        )
        try:
            if self._writer is None or self._must_renew:
                if self._writer is not None:
                    self._writer.flush(0.0)
                self._writer, self._must_renew = NonFencingWriter(self._cluster), False
            self._writer.put(make_checkpoint(mirror, WATCHER_STEP, heartbeat), self._warn_lost)
        except Exception as error:  # noqa: BLE001 - said, and the next one is tried
            self._warn_lost(format_safe_error(error))

    def _warn_lost(self, reason: str) -> None:
        self._must_renew = True
        _log.warning(
            "watches on, but its sign of life was not written to the state topic, so others may say that nobody "
            "watches: %s",
            reason,
            cluster=self._cluster.name,
        )


def extra_interval_s(link: MirrorLink) -> float:
    """Slow fence commands delay checks. `MAX_MISSED_PROBES` checks may be missed."""
    ruling = link.source.ruling
    fence_command, unfence_command = ruling.fence_command, ruling.unfence_command
    unfence_s = unfence_command.timeout_s * (unfence_command.retries + 1) if unfence_command else 0.0
    return max(fence_command.timeout_s if fence_command else 0.0, unfence_s) / MAX_MISSED_PROBES


def observe_watcher(cluster: ClusterConfig, state: State, mirror: MirrorName) -> WatcherStatus:
    """Asks `cluster`, whose state it is, for its clock where a watcher is needed."""
    is_needed = mirror in state.pending_fences
    ahead_ms = measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S) if is_needed else None
    return find_watcher_status(state, mirror, ahead_ms)


def find_watcher_status(
    state: State, mirror: MirrorName, clock_ahead_ms: int | None, at_ms: int | None = None
) -> WatcherStatus:
    """`clock_ahead_ms`: this machine's, relative to the state's cluster."""
    now, fence_key = now_ms() if at_ms is None else at_ms, f"pending_fence/{mirror}"
    if fence_key in state.unreadable and not mirror.startswith(DRILL_PREFIX):
        finding = Finding("watch_need_unknown", mirror, reason=state.unreadable[fence_key])
        return WatcherStatus(state=WatcherState.UNKNOWN, finding=finding)
    fence, heartbeat = state.pending_fences.get(mirror), find_watcher_heartbeat(mirror, state.checkpoints)
    if fence is not None:
        fence = replace(fence, since_ms=to_local_clock_ms(fence.since_ms, clock_ahead_ms, None))
    if heartbeat is not None:
        record = state.checkpoints[mirror, WATCHER_STEP, WatcherHeartbeat.__name__]
        at = to_local_clock_ms(heartbeat.at_ms, clock_ahead_ms, state.find_append_time_ms(record))
        heartbeat = replace(heartbeat, at_ms=at)
    return decide_watcher_status(mirror, fence, heartbeat, now)
