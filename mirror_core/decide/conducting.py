"""Whether anybody conducts a run, by the newest sign of life in the state topic. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from mirror_core.decide.clocks import TOLERATED_MS
from mirror_core.model.checkpoint import Beat, Checkpoint
from mirror_core.model.clock import CONDUCTED_S
from mirror_core.model.run import Run

STEP: Final = "conduct"
"""No step of any plan: the place of a run's one beat among what its steps keep."""

_BEAT: Final = msgspec.json.Decoder(Beat)  # once, by the thread that imports this: see `state/records.py`


class Sign(StrEnum):
    """What is known of a run's conductor."""

    HEARD = "heard"
    """Somebody conducts it."""
    RELEASED = "released"
    """Whoever conducted it last has let go of it: nobody does."""
    GONE = "gone"
    """Whoever conducted it last has died, or was not heard of for too long: nobody does, as far as can be known."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conducted:
    """What is known of it at one moment. As text it goes on after "run X: ..."."""

    sign: Sign
    by: str = ""
    host: str = ""
    pid: int | None = None
    seen_ms: int | None = None
    """The last sign of life, by the clock of that host."""
    age_s: float | None = None
    why: str = ""
    """It is not known, or that it has ended is."""

    def __str__(self) -> str:
        match self.sign:
            case Sign.HEARD:
                return f"conducted by {self.by} on {self.host} (process {self.pid}), seen {_ago(self.age_s)}"
            case Sign.RELEASED:
                return f"nobody conducts it: {self.by} let go of it {_ago(self.age_s)}"
            case Sign.GONE:
                return f"nobody conducts it: {self.by} on {self.host} was last seen {_ago(self.age_s)}{self.why}"
            case Sign.UNKNOWN:
                return f"unknown whether anybody conducts it: {self.why}"

    def refusal(self) -> str:
        """Why nobody goes on with the run now, and from when on it is possible; empty: it is now."""
        if self.sign is not Sign.HEARD:
            return ""
        left = CONDUCTED_S - (self.age_s or 0.0)
        return (
            f"it is {self}. Let it end, or end that process (of Airflow: mark the task failed). What was killed counts "
            f"as gone {CONDUCTED_S:.0f} s after its last sign of life: in {left:.0f} s, if there is none until then"
        )


NOT_KNOWN: Final = Conducted(sign=Sign.UNKNOWN, why="nobody looked")


def judged(run: Run, kept: Checkpoint | None, now_ms: int, has_ended: Callable[[Beat], bool]) -> Conducted:
    """`kept`: its newest beat, as it is stored. `has_ended`: whether the process that wrote it certainly has."""
    beat = beat_of(kept)
    if beat is None or beat.by != run.conducted_by:
        return Conducted(sign=Sign.UNKNOWN, why=f"{run.conducted_by} tells no sign of life, as older Mirrorbooks do")
    if beat.at_ms - now_ms > TOLERATED_MS:
        why = f"the last sign of life, of {beat.by} on {beat.host}, is of the future: the clocks differ"
        return Conducted(sign=Sign.UNKNOWN, by=beat.by, host=beat.host, pid=beat.pid, seen_ms=beat.at_ms, why=why)
    age_s = max(0, now_ms - beat.at_ms) / 1000
    ended = not beat.released and has_ended(beat)
    sign = Sign.RELEASED if beat.released else Sign.GONE if ended or age_s > CONDUCTED_S else Sign.HEARD
    return Conducted(
        sign=sign,
        by=beat.by,
        host=beat.host,
        pid=beat.pid,
        seen_ms=beat.at_ms,
        age_s=age_s,
        why=", and its process has ended" if ended else "",
    )


def beat_of(kept: Checkpoint | None) -> Beat | None:
    """None: there is none, or it is not one that this Mirrorbook reads."""
    if kept is None or kept.version != Beat.VERSION:
        return None
    try:
        return _BEAT.decode(kept.value)
    except msgspec.MsgspecError:
        return None


def _ago(seconds: float | None) -> str:
    """Seconds, as long as they can be counted."""
    whole = round(seconds or 0.0)
    if whole < 120:
        return f"{whole} s ago"
    return f"{whole // 60} min ago" if whole < 7200 else f"{whole // 3600} h ago"
