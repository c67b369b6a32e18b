"""Whether a process conducts a run, by the newest heartbeat in the state topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from mirror_core.decide.clocks import MAX_CLOCK_SKEW_MS
from mirror_core.model.checkpoint import Checkpoint, RunHeartbeat
from mirror_core.model.clock import CONDUCTOR_TIMEOUT_S
from mirror_core.model.run import Run

CONDUCTOR_STEP: Final = "conduct"
"""Pseudo step under which conductors store their heartbeats."""

_HEARTBEAT_DECODER: Final = msgspec.json.Decoder(
    RunHeartbeat
)  # once, by the thread that imports this: see `state/records.py`


class ConductorState(StrEnum):
    ALIVE = "heard"
    RELEASED = "released"
    SILENT = "gone"
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
    has_ended: bool = False

    def __str__(self) -> str:
        match self.state:
            case ConductorState.ALIVE:
                return f"conducted by {self.by} on {self.host} (process {self.pid}), seen {_format_ago(self.age_s)}"
            case ConductorState.RELEASED:
                return f"nobody conducts it: {self.by} let go of it {_format_ago(self.age_s)}"
            case ConductorState.SILENT if self.has_ended:
                last_seen = f"was last seen {_format_ago(self.age_s)}, and its process has ended"
                return f"nobody conducts it: {self.by} on {self.host} {last_seen}"
            case ConductorState.SILENT:
                silence_text = f"{self.by} on {self.host} was not heard of for {_format_seconds(self.age_s)}"
                return f"{silence_text} by this machine's clock; `resume` watches for a sign of life"
            case ConductorState.UNKNOWN:
                return f"unknown whether anybody conducts it: {self.unknown_because}"

    def explain_refusal(self, *, can_take_over: bool) -> str:
        """Why nobody else may continue the run, and what to do; empty: they may."""
        if self.state is not ConductorState.ALIVE:
            return ""
        reason = f"it is {self}. Wait for its end, or end that process (Airflow: mark its task failed), then try again"
        if not can_take_over:
            return reason
        return (
            f"{reason}. If it hangs and cannot be ended, `--take-over` takes the run from it: that process may finish the "
            "request that it is at, and stops at its next write to the state topic (exit code 5)"
        )


UNKNOWN_CONDUCTOR: Final = ConductorStatus(state=ConductorState.UNKNOWN, unknown_because="nobody looked")


def find_conductor_heartbeat(
    run_id: str, checkpoints: Mapping[tuple[str, str, str], Checkpoint]
) -> RunHeartbeat | None:
    """The last heartbeat of the newest conductor; None: none that this version can read."""
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
    run: Run, heartbeat: RunHeartbeat | None, age_s: float, has_process_ended: Callable[[RunHeartbeat], bool]
) -> ConductorStatus:
    if heartbeat is None or heartbeat.by != run.conducted_by:
        return ConductorStatus(
            state=ConductorState.UNKNOWN,
            unknown_because=f"{run.conducted_by} tells no sign of life, as older Mirrorbooks do",
        )
    process_ended = not heartbeat.released and has_process_ended(heartbeat)
    state, unknown_because = ConductorState.ALIVE, ""
    if heartbeat.released and run.set_run:
        state = ConductorState.UNKNOWN
        unknown_because = (
            f"it is a part of {run.set_run}, whose process lets go of it while it waits for the other mirrors, and "
            "takes it up again. `mirrorbook failover run-set` goes on with all of them"
        )
    elif heartbeat.released:
        state = ConductorState.RELEASED
    elif process_ended:
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
        has_ended=process_ended,
    )


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
