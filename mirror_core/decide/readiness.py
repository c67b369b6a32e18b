"""Could a mirror be failed over now, and if not, why? And if its source died now?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mirror_core.decide.ages import NEVER, OLD_S, REMEDY, WORDS, Known
from mirror_core.decide.clocks import age_s, since
from mirror_core.decide.failover import Decision
from mirror_core.decide.run_standing import Standing
from mirror_core.decide.watchers import Watched
from mirror_core.decide.without_source import WithoutSource
from mirror_core.model.drift import CHANGES, Action, DriftRow
from mirror_core.model.mirror import Mirror


class Weight(StrEnum):
    """How much a point counts."""

    REFUSAL = "refusal"
    """A planned failover is refused by it."""
    WARNING = "warning"
    """It would cost something, or nobody knows."""


@dataclass(frozen=True, slots=True)
class Point:
    """Something that speaks against a failover now, and what to do about it."""

    weight: Weight
    words: str
    remedy: str = ""
    """Empty: the words say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    mirror: Mirror
    run: Standing | None
    conducted: bool | None = None
    watched: Watched | None = None
    points: tuple[Point, ...]
    figures: Mapping[str, str]
    predicted_s: float | None = None
    """Seconds without writes in a planned failover, from an earlier run or drill. None: unknown."""
    known_ms: Mapping[Known, int | None] = field(default_factory=dict)
    differs: int = 0
    unplanned: WithoutSource
    at_ms: int

    @property
    def ready(self) -> bool:
        return all(point.weight is not Weight.REFUSAL for point in self.points)

    def count(self, weight: Weight) -> int:
        return sum(point.weight is weight for point in self.points)


def of_plan(decision: Decision) -> Iterator[Point]:
    yield from (Point(Weight.REFUSAL, reason) for reason in decision.reasons)
    yield from (Point(Weight.WARNING, line) for line in decision.plan.warnings)
    yield from (Point(Weight.WARNING, f"not known: {line}") for line in decision.plan.unknown)


def of_ages(mirror: str, known_ms: Mapping[Known, int], now_ms: int) -> Iterator[Point]:
    for what in Known:
        at_ms = known_ms.get(what)
        seconds = None if at_ms is None else age_s(now_ms, at_ms)
        if seconds is not None and seconds <= OLD_S[what]:
            continue
        last = "" if seconds is None else "last "
        words = NEVER[what] if at_ms is None else f"{WORDS[what]} {last}{since(now_ms, at_ms)}"
        remedy = REMEDY[what] if at_ms is None or seconds is not None else "set the clock here, look again"
        yield Point(Weight.WARNING, words, remedy.format(mirror=mirror))


def of_uncompared(mirror: str, partitions: int) -> Iterator[Point]:
    if partitions:
        yield Point(
            Weight.WARNING, f"{partitions} partition(s) were never compared", REMEDY[Known.PROOF].format(mirror=mirror)
        )


_DRIFT: Final = CHANGES - {Action.STAGE, Action.COMMIT}
"""Staged entries wait for promotion and group offsets always move: their age is a point of its own."""


def of_drift(mirror: str, rows: Iterable[DriftRow]) -> Iterator[Point]:
    found = list(rows)
    pending = Counter(str(row.part) for row in found if row.action in _DRIFT and not row.done)
    if pending:
        words = ", ".join(f"{count} of {part}" for part, count in sorted(pending.items()))
        yield Point(Weight.WARNING, f"the two sides differ: {words}", f"`mirrorbook sync {mirror}`; often the next one")
    for row in found:
        if row.action is Action.REFUSE:
            yield Point(Weight.WARNING, f"{row.part}, {row.subject}: {row.reason}")
