"""Whether a process conducts a run, or watches an old source, by its newest heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

from mirror_core.decide.clock_skew import MAX_CLOCK_SKEW_MS, compute_age_s
from mirror_core.decide.fence_state import FenceState, find_fence_state
from mirror_core.model.findings import Finding
from mirror_core.model.names import DRILL_PREFIX, MirrorName
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run import Run
from mirror_core.model.run_checkpoints import Checkpoint, RunHeartbeat, WatcherHeartbeat
from mirror_core.model.timing import CONDUCTOR_TIMEOUT_S

CONDUCTOR_STEP: Final = "conduct"
"""Pseudo step under which conductors store their heartbeats."""
_HEARTBEAT_DECODER: Final = msgspec.json.Decoder(
    RunHeartbeat
)  # once, by the thread that imports this: see `state/state_records.py`


class ProcessState(StrEnum):
    """UNKNOWN: on another machine."""

    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


class ConductorState(StrEnum):
    ALIVE = "alive"
    RELEASED = "released"
    SILENT = "silent"
    """The last conductor ended, or sent no heartbeat for too long by this machine's clock."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorStatus:
    """As text it completes "run X: ..."."""

    state: ConductorState
    by: str = ""
    host: str = ""
    pid: int | None = None
    last_seen_ms: int | None = None
    age_s: float | None = None
    unknown_because: str = ""
    process: ProcessState = ProcessState.UNKNOWN
    is_let_go: bool = False
    """A set's process let go of it, to take it up again."""

    @property
    def may_await_answer(self) -> bool:
        return self.state is ConductorState.RELEASED and self.process is ProcessState.RUNNING

    @property
    def has_ended(self) -> bool:
        return self.state is ConductorState.SILENT and self.process is ProcessState.ENDED

    def __str__(self) -> str:
        match self.state:
            case ConductorState.ALIVE:
                return f"conducted by {self.by} on {self.host} (process {self.pid}), seen {_format_ago(self.age_s)}"
            case ConductorState.RELEASED:
                return str(self._explain_release())
            case ConductorState.SILENT if self.has_ended:
                last_seen = f"was last seen {_format_ago(self.age_s)}, and its process has ended"
                return f"nobody conducts it: {self.by} on {self.host} {last_seen}"
            case ConductorState.SILENT:
                silence_text = f"{self.by} on {self.host} was not heard of for {_format_seconds(self.age_s)}"
                return f"{silence_text} by this machine's clock; `resume` watches for a sign of life"
            case ConductorState.UNKNOWN if self.is_let_go and self.process is ProcessState.RUNNING:
                return str(self._explain_release())
            case ConductorState.UNKNOWN:
                return f"unknown whether anybody conducts it: {self.unknown_because}"

    def _explain_release(self) -> Finding:
        process, ago = self.process, _format_ago(self.age_s)
        return Finding("run_let_go", self.by, host=self.host, pid=self.pid, process=process, ago=ago)

    def explain_refusal(self, *, can_take_over: bool) -> str:
        """Why nobody else may continue the run, and what to do; empty: they may."""
        if self.state is not ConductorState.ALIVE:
            return ""
        reason = f"it is {self}. Wait for its end, or end that process (Airflow: mark its task failed), then try again"
        if not can_take_over:
            return reason
        return (
            f"{reason}. If it hangs and cannot be ended, `--take-over` takes the run from it: that process may finish"
            " the request that it is at, and stops at its next write to the state topic (exit code 5)"
        )


UNKNOWN_CONDUCTOR: Final = ConductorStatus(state=ConductorState.UNKNOWN, unknown_because="nobody looked")


def find_conductor_heartbeat(
    run_id: str, checkpoints: Mapping[tuple[str, str, str], Checkpoint]
) -> RunHeartbeat | None:
    """None where this version can read none."""
    heartbeat = _decode_heartbeat(checkpoints.get((run_id, CONDUCTOR_STEP, RunHeartbeat.__name__)))
    if heartbeat is None or heartbeat.released:
        return heartbeat
    return (
        _decode_heartbeat(checkpoints.get((run_id, format_heartbeat_step(heartbeat.token), RunHeartbeat.__name__)))
        or heartbeat
    )


def format_heartbeat_step(token: str) -> str:
    """Each conductor has its own key for later heartbeats, so one that lost the run hides nobody's."""
    return f"{CONDUCTOR_STEP}.{token}"


def decide_conductor_status(
    run: Run, heartbeat: RunHeartbeat | None, age_s: float, find_process: Callable[[RunHeartbeat], ProcessState]
) -> ConductorStatus:
    if heartbeat is None or heartbeat.by != run.conducted_by:
        return ConductorStatus(
            state=ConductorState.UNKNOWN,
            unknown_because=f"{run.conducted_by} has left no heartbeat",
        )
    process = find_process(heartbeat)
    state, unknown_because = ConductorState.ALIVE, ""
    if heartbeat.released and run.set_run:
        state = ConductorState.UNKNOWN
        unknown_because = (
            f"it is a part of {run.set_run}, whose process lets go of it while it waits for the other mirrors, and "
            f"takes it up again. `mirrorbook {run.leading_kind} run-set` goes on with all of them"
        )
    elif heartbeat.released:
        state = ConductorState.RELEASED
    elif process is ProcessState.ENDED:
        state = ConductorState.SILENT
    elif age_s * 1000 < -MAX_CLOCK_SKEW_MS:
        state = ConductorState.UNKNOWN
        unknown_because = (
            f"the last sign of life, of {heartbeat.by} on {heartbeat.host}, is of the future: the clocks differ"
        )
    elif age_s > CONDUCTOR_TIMEOUT_S:
        state = ConductorState.SILENT
    return ConductorStatus(
        state=state,
        by=heartbeat.by,
        host=heartbeat.host,
        pid=heartbeat.pid,
        last_seen_ms=heartbeat.at_ms,
        age_s=max(0.0, age_s),
        unknown_because=unknown_because,
        process=process,
        is_let_go=heartbeat.released and bool(run.set_run),
    )


def decide_member_status(
    run: Run, status: ConductorStatus, others: Mapping[MirrorName, ConductorStatus | None]
) -> ConductorStatus:
    """Decides about one of a set's runs by all of them: one process conducts all, one after the other.

    `others`: by mirror, as far as they are recorded beside `run`. None: that run has ended.
    """
    statuses = [status, *(other for other in others.values() if other is not None)]
    if alive := next((other for other in statuses if other.state is ConductorState.ALIVE), None):
        return alive
    is_recorded_here = bool(run.set_mirrors) and {*run.set_mirrors} <= {run.plan.mirror, *others}
    if not is_recorded_here or not all(s.is_let_go or s.state is ConductorState.SILENT for s in statuses):
        return status
    newest = min(statuses, key=lambda other: other.age_s or 0.0)
    return replace(newest, state=ConductorState.RELEASED, unknown_because="") if newest.is_let_go else newest


def _decode_heartbeat(checkpoint: Checkpoint | None) -> RunHeartbeat | None:
    if checkpoint is None or checkpoint.version != RunHeartbeat.VERSION:
        return None
    try:
        return _HEARTBEAT_DECODER.decode(checkpoint.value)
    except msgspec.MsgspecError:
        return None


def _format_ago(seconds: float | None) -> str:
    return f"{_format_seconds(seconds)} ago"


def _format_seconds(seconds: float | None) -> str:
    whole = round(seconds or 0.0)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"


WATCHER_STEP: Final = "watch"
MAX_MISSED_PROBES: Final = 3
WATCHER_GRACE_S: Final = 180.0
_MAX_TIME_MS: Final = 253_402_300_800_000
_MAX_INTERVAL_S: Final = 7200.0
_WATCHER_DECODER: Final = msgspec.json.Decoder(
    WatcherHeartbeat
)  # once, by the thread that imports this: see `state/state_records.py`


class WatcherState(StrEnum):
    NOT_NEEDED = "not needed"
    ALIVE = "alive"
    AWAITED = "awaited"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherStatus:
    state: WatcherState
    cluster: str = ""
    fence_state: FenceState = FenceState.NONE
    finding: Finding | None = None

    def __str__(self) -> str:
        return self.state if self.finding is None else str(self.finding)

    @property
    def alarms(self) -> tuple[Finding, ...]:
        is_alarm = self.state in (WatcherState.MISSING, WatcherState.UNKNOWN)
        return (self.finding,) if is_alarm and self.finding is not None else ()


def decide_watcher_status(
    mirror: MirrorName, pending_fence: PendingFence | None, watcher: WatcherHeartbeat | None, now_ms: int
) -> WatcherStatus:
    if pending_fence is None or mirror.startswith(DRILL_PREFIX):
        return WatcherStatus(state=WatcherState.NOT_NEEDED)
    cluster, fence_state = pending_fence.cluster, find_fence_state(pending_fence)
    status = WatcherStatus(state=WatcherState.UNKNOWN, cluster=cluster, fence_state=fence_state)
    since_failover_s = compute_age_s(now_ms, pending_fence.since_ms)
    silent_s = None if watcher is None else compute_age_s(now_ms, watcher.at_ms)
    if watcher is not None and silent_s is None and watcher.at_ms - now_ms <= watcher.interval_s * 1000:
        silent_s = 0.0  # clocks that differ by less than a look: one that dies is missed that much later
    has_ended = watcher is not None and watcher.ended
    is_recent = watcher is not None and silent_s is not None and silent_s <= MAX_MISSED_PROBES * watcher.interval_s
    if watcher is not None and is_recent and not has_ended:
        finding = Finding(
            "source_watched", cluster, watcher=watcher.by, host=watcher.host, pid=watcher.pid, silent_s=silent_s
        )
        return replace(status, state=WatcherState.ALIVE, finding=finding)
    is_clock_ahead = watcher is not None and silent_s is None
    has_left = watcher is not None and has_ended and watcher.at_ms >= pending_fence.since_ms
    is_fresh = since_failover_s is not None and since_failover_s <= WATCHER_GRACE_S
    if is_fresh and not is_clock_ahead and not has_left:
        finding = Finding("watcher_awaited", cluster, age_s=since_failover_s, run=pending_fence.run)
        return replace(status, state=WatcherState.AWAITED, finding=finding)
    state = WatcherState.UNKNOWN if watcher is None or is_clock_ahead else WatcherState.MISSING
    finding = Finding(
        "source_unwatched",
        cluster,
        mirror=mirror,
        watcher_state=state,
        fence_state=fence_state,
        since_ms=max(0 if watcher is None else watcher.at_ms, pending_fence.since_ms),
        watcher="" if watcher is None else watcher.by,
        host="" if watcher is None else watcher.host,
        pid=0 if watcher is None else watcher.pid,
        seen_ms=0 if watcher is None else watcher.at_ms,
    )
    return replace(status, state=state, finding=finding)


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
