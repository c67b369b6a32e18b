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

from mirror_core.decide.clocks import age_s, ago
from mirror_core.decide.standing import Standing, standing_of, when
from mirror_core.model.checkpoint import Checkpoint, Watcher
from mirror_core.model.names import DRILL, MirrorName
from mirror_core.model.standing import Debt

STEP: Final = "watch"
"""Pseudo step under which watchers store their heartbeats."""
LOOKS: Final = 3
COMES_S: Final = 180.0

_LAST_MS: Final = 253_402_300_800_000
_LONGEST_S: Final = 7200.0
_WATCHER: Final = msgspec.json.Decoder(Watcher)  # once, by the thread that imports this: see `state/records.py`
_OPEN: Final[Mapping[Standing, str]] = MappingProxyType(
    {
        Standing.OWED: "nobody would fence it when it answers",
        Standing.STANDS: "nobody would see that its fence is removed",
        Standing.WATCHED: "nobody would see that it takes writes",
        Standing.LIFTING: "nobody would remove its fence when it answers, and its applications stay kept out",
    }
)


class Watching(StrEnum):
    NOT_NEEDED = "none needed"
    SOMEBODY = "somebody"
    AWAITED = "awaited"
    NOBODY = "nobody"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    watching: Watching
    mirror: MirrorName
    cluster: str = ""
    fence: Standing = Standing.NOTHING
    words: str = ""

    def __str__(self) -> str:
        return self.words or self.watching

    def alarms(self) -> Iterator[str]:
        if self.fence is Standing.NOTHING and self.watching is Watching.UNKNOWN:
            yield self.words
        elif self.watching in (Watching.NOBODY, Watching.UNKNOWN):
            then = _OPEN[self.fence] if self.watching is Watching.NOBODY else f"without one {_OPEN[self.fence]}"
            yield f"{self.words}: {then}. Start `mirrorbook mirror watch {self.mirror}`, or unpause DAG mirror_watch"


def judged(mirror: MirrorName, debt: Debt | None, watcher: Watcher | None, now_ms: int) -> Watched:
    if debt is None or mirror.startswith(DRILL):
        return Watched(watching=Watching.NOT_NEEDED, mirror=mirror)
    found = Watched(watching=Watching.UNKNOWN, mirror=mirror, cluster=debt.cluster, fence=standing_of(debt))
    doubt = f"it is not known whether anybody watches cluster {debt.cluster}"
    left_s = age_s(now_ms, debt.since_ms)
    silent_s = None if watcher is None else age_s(now_ms, watcher.at_ms)
    if watcher is not None and silent_s is None and watcher.at_ms - now_ms <= watcher.every_s * 1000:
        silent_s = 0.0  # clocks that differ by less than a look: one that dies is missed that much later
    if watcher is not None and silent_s is not None and silent_s <= LOOKS * watcher.every_s:
        return replace(found, watching=Watching.SOMEBODY, words=f"{_named(watcher)}, seen {ago(silent_s)}")
    if watcher is not None and silent_s is None:
        return replace(found, words=f"{doubt}, as clocks differ: {_named(watcher)} was last seen in the future")
    if left_s is not None and left_s <= COMES_S:
        return replace(found, watching=Watching.AWAITED, words=f"none yet, {left_s:.0f} s after run {debt.run}")
    if watcher is None:
        return replace(
            found,
            words=f"{doubt}, as no watcher has left a sign of life that this Mirrorbook reads; those of an older "
            "Mirrorbook leave none",
        )
    since = when(max(watcher.at_ms, debt.since_ms))
    last = f"the last one was {_named(watcher)}, seen {when(watcher.at_ms)}"
    return replace(
        found,
        watching=Watching.NOBODY,
        words=f"nobody watches cluster {debt.cluster} since {since} by this machine's clock ({last})",
    )


def newest(mirror: MirrorName, checkpoints: Mapping[tuple[str, str, str], Checkpoint]) -> Watcher | None:
    kept = checkpoints.get((mirror, STEP, Watcher.__name__))
    if kept is None or kept.version != Watcher.VERSION:
        return None
    try:
        found = _WATCHER.decode(kept.value)
    except msgspec.MsgspecError:
        return None
    return found if 0 <= found.at_ms < _LAST_MS and 0 < found.every_s <= _LONGEST_S else None


def _named(watcher: Watcher) -> str:
    return f"{watcher.by} on {watcher.host} (process {watcher.pid})"
