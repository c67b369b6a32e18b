"""Whether a process conducts a run, by the newest heartbeat in the state topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from mirror_core.decide.clocks import TOLERATED_MS
from mirror_core.model.checkpoint import Beat, Checkpoint
from mirror_core.model.clock import CONDUCTED_S
from mirror_core.model.run import Run

STEP: Final = "conduct"
"""Pseudo step under which conductors store their heartbeats."""

_BEAT: Final = msgspec.json.Decoder(Beat)  # once, by the thread that imports this: see `state/records.py`


class Sign(StrEnum):
    HEARD = "heard"
    RELEASED = "released"
    GONE = "gone"
    """The last conductor ended, or sent no heartbeat for too long by this machine's clock."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conducted:
    """As text it completes "run X: ..."."""

    sign: Sign
    by: str = ""
    host: str = ""
    pid: int | None = None
    seen_ms: int | None = None
    age_s: float | None = None
    why: str = ""
    ended: bool = False

    def __str__(self) -> str:
        match self.sign:
            case Sign.HEARD:
                return f"conducted by {self.by} on {self.host} (process {self.pid}), seen {_ago(self.age_s)}"
            case Sign.RELEASED:
                return f"nobody conducts it: {self.by} let go of it {_ago(self.age_s)}"
            case Sign.GONE if self.ended:
                seen = f"was last seen {_ago(self.age_s)}, and its process has ended"
                return f"nobody conducts it: {self.by} on {self.host} {seen}"
            case Sign.GONE:
                silent = f"{self.by} on {self.host} was not heard of for {_long(self.age_s)}"
                return f"{silent} by this machine's clock; `resume` watches for a sign of life"
            case Sign.UNKNOWN:
                return f"unknown whether anybody conducts it: {self.why}"

    def refusal(self, *, take_over: bool) -> str:
        """Why nobody else may continue the run, and what to do; empty: they may."""
        if self.sign is not Sign.HEARD:
            return ""
        why = f"it is {self}. Wait for its end, or end that process (Airflow: mark its task failed), then try again"
        if not take_over:
            return why
        return (
            f"{why}. If it hangs and cannot be ended, `--take-over` takes the run from it: that process may finish the "
            "request that it is at, and stops at its next write to the state topic (exit code 5)"
        )


NOT_KNOWN: Final = Conducted(sign=Sign.UNKNOWN, why="nobody looked")


def newest(run_id: str, checkpoints: Mapping[tuple[str, str, str], Checkpoint]) -> Beat | None:
    """The last heartbeat of the newest conductor; None: none that this version can read."""
    said = _read(checkpoints.get((run_id, STEP, Beat.__name__)))
    if said is None or said.released:
        return said
    return _read(checkpoints.get((run_id, place(said.token), Beat.__name__))) or said


def place(token: str) -> str:
    """Each conductor has its own key for later heartbeats, so one that lost the run hides nobody's."""
    return f"{STEP}.{token}"


def judged(run: Run, beat: Beat | None, age_s: float, has_ended: Callable[[Beat], bool]) -> Conducted:
    if beat is None or beat.by != run.conducted_by:
        return Conducted(sign=Sign.UNKNOWN, why=f"{run.conducted_by} tells no sign of life, as older Mirrorbooks do")
    ended = not beat.released and has_ended(beat)
    sign, why = Sign.HEARD, ""
    if beat.released and run.part_of:
        sign = Sign.UNKNOWN
        why = (
            f"it is a part of {run.part_of}, whose process lets go of it while it waits for the other mirrors, and "
            "takes it up again. `mirrorbook failover run-set` goes on with all of them"
        )
    elif beat.released:
        sign = Sign.RELEASED
    elif ended:
        sign = Sign.GONE
    elif age_s * 1000 < -TOLERATED_MS:
        sign = Sign.UNKNOWN
        why = f"the last sign of life, of {beat.by} on {beat.host}, is of the future: the clocks differ"
    elif age_s > CONDUCTED_S:
        sign = Sign.GONE
    return Conducted(
        sign=sign,
        by=beat.by,
        host=beat.host,
        pid=beat.pid,
        seen_ms=beat.at_ms,
        age_s=max(0.0, age_s),
        why=why,
        ended=ended,
    )


def _read(kept: Checkpoint | None) -> Beat | None:
    if kept is None or kept.version != Beat.VERSION:
        return None
    try:
        return _BEAT.decode(kept.value)
    except msgspec.MsgspecError:
        return None


def _ago(seconds: float | None) -> str:
    return f"{_long(seconds)} ago"


def _long(seconds: float | None) -> str:
    whole = round(seconds or 0.0)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"
