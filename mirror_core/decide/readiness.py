"""Could a mirror be failed over now, and if not, why? And if its source died now?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mirror_core.decide.ages import MAX_AGES_S, NEVER_TEXTS, STALE_REMEDIES, STALE_TEXTS, FreshnessKind
from mirror_core.decide.clocks import compute_age_s, format_since
from mirror_core.decide.failover import PlanDecision
from mirror_core.decide.run_standing import RunProgress
from mirror_core.decide.watchers import WatcherStatus
from mirror_core.decide.without_source import UnplannedForecast
from mirror_core.model.drift import WRITING_ACTIONS, DriftRow, SyncAction
from mirror_core.model.mirror import Mirror


class PointWeight(StrEnum):
    """How much a point counts."""

    REFUSAL = "refusal"
    """A planned failover is refused by it."""
    WARNING = "warning"
    """It would cost something, or nobody knows."""


@dataclass(frozen=True, slots=True)
class ReadinessPoint:
    """Something that speaks against a failover now, and what to do about it."""

    weight: PointWeight
    text: str
    remedy: str = ""
    """Empty: the words say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    mirror: Mirror
    run_progress: RunProgress | None
    is_conducted: bool | None = None
    watcher: WatcherStatus | None = None
    points: tuple[ReadinessPoint, ...]
    figures: Mapping[str, str]
    predicted_s: float | None = None
    """Seconds without writes in a planned failover, from an earlier run or drill. None: unknown."""
    newest_ms: Mapping[FreshnessKind, int | None] = field(default_factory=dict)
    differing_partitions: int = 0
    unplanned: UnplannedForecast
    at_ms: int

    @property
    def is_ready(self) -> bool:
        return all(point.weight is not PointWeight.REFUSAL for point in self.points)

    def count_points(self, weight: PointWeight) -> int:
        return sum(point.weight is weight for point in self.points)


def list_plan_points(decision: PlanDecision) -> Iterator[ReadinessPoint]:
    yield from (ReadinessPoint(PointWeight.REFUSAL, reason) for reason in decision.reasons)
    yield from (ReadinessPoint(PointWeight.WARNING, line) for line in decision.plan.warnings)
    yield from (ReadinessPoint(PointWeight.WARNING, f"not known: {line}") for line in decision.plan.unknown)


def list_staleness_points(mirror: str, newest_ms: Mapping[FreshnessKind, int], now_ms: int) -> Iterator[ReadinessPoint]:
    for kind in FreshnessKind:
        at_ms = newest_ms.get(kind)
        seconds = None if at_ms is None else compute_age_s(now_ms, at_ms)
        if seconds is not None and seconds <= MAX_AGES_S[kind]:
            continue
        last_text = "" if seconds is None else "last "
        text = NEVER_TEXTS[kind] if at_ms is None else f"{STALE_TEXTS[kind]} {last_text}{format_since(now_ms, at_ms)}"
        remedy = STALE_REMEDIES[kind] if at_ms is None or seconds is not None else "set the clock here, look again"
        yield ReadinessPoint(PointWeight.WARNING, text, remedy.format(mirror=mirror))


def list_uncompared_points(mirror: str, partitions: int) -> Iterator[ReadinessPoint]:
    if partitions:
        yield ReadinessPoint(
            PointWeight.WARNING,
            f"{partitions} partition(s) were never compared",
            STALE_REMEDIES[FreshnessKind.VERIFICATION].format(mirror=mirror),
        )


_REPORTED_ACTIONS: Final = WRITING_ACTIONS - {SyncAction.STAGE, SyncAction.COMMIT}
"""Staged entries wait for promotion and group offsets always move: their age is a point of its own."""


def list_drift_points(mirror: str, rows: Iterable[DriftRow]) -> Iterator[ReadinessPoint]:
    drift_rows = list(rows)
    pending = Counter(str(row.part) for row in drift_rows if row.action in _REPORTED_ACTIONS and not row.done)
    if pending:
        text = ", ".join(f"{count} of {part}" for part, count in sorted(pending.items()))
        yield ReadinessPoint(
            PointWeight.WARNING, f"the two sides differ: {text}", f"`mirrorbook sync {mirror}`; often the next one"
        )
    for row in drift_rows:
        if row.action is SyncAction.REFUSE:
            yield ReadinessPoint(PointWeight.WARNING, f"{row.part}, {row.subject}: {row.reason}")
