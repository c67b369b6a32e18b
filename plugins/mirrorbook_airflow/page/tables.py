"""The tables of a mirror's page: worst first, a hundred rows of each, and how many more there are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from mirror_core.decide.failover_readiness import GroupReadAgain, format_group_read_again
from mirror_core.decide.loss_bound import find_oldest
from mirror_core.mirrors.describe import PartitionDescription
from mirror_core.model.mirror import PartitionState
from mirror_core.model.sync_state import DriftRow, SyncAction
from mirrorbook_airflow.page.mirror_state import Seen
from mirrorbook_airflow.page.number_format import UNKNOWN, counted

PER_PAGE: Final = 100
"""Rows of a table."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """Rows of one page of many."""

    rows: Sequence[T]
    total: int
    page: int
    pages: int

    @property
    def more(self) -> int:
        """Rows that are on other pages."""
        return self.total - len(self.rows)


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """One partition."""

    row: PartitionDescription
    behind: str
    """Seconds since the copy held all that the source then had."""
    proved: str
    """Next offset after the last one that was compared and found equal."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic, summed up."""

    topic: str
    partitions: int
    states: str
    lag: str
    behind: str
    """Seconds, of the partition that is furthest behind."""
    proved: str
    """How many of its offsets were compared and found equal."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One consumer group."""

    name: str
    words: str
    """As the plan of a planned failover has them."""
    again: str
    """What it would read again if the source died now."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How far copies are behind in time, by partition as it is written. None: unknown."""

    seconds: Mapping[str, float | None]
    stopped: bool
    """The mirror does not follow its source any more, and an age would say nothing."""

    def of(self, partitions: Iterable[str]) -> str:
        """The greatest; unknown where it is so of one of them."""
        if self.stopped:
            return "stopped"
        greatest = find_oldest([self.seconds.get(partition) for partition in partitions])
        return UNKNOWN if greatest is None else f"{greatest:,.1f}"


def lateness(fresh: Seen | None, *, stopped: bool) -> Lateness:
    """`fresh`: the last look; None: it is too old."""
    partitions = fresh.loss.partitions if fresh and fresh.loss else {}
    return Lateness({str(partition): one.behind_s for partition, one in partitions.items()}, stopped)


def partition_table(
    rows: Iterable[PartitionDescription], late: Lateness, page: int, *, asked: bool
) -> Table[PartitionLine]:
    """FAILED first, then those whose lag is unknown, then the greatest lag. `asked`: the rows are of a fresh look."""
    found = _page_of(sorted(rows, key=_worst_partition), page)
    lines = [PartitionLine(row, late.of([row.partition]), _proved(row, asked=asked)) for row in found.rows]
    return Table(lines, found.total, found.page, found.pages)


def topic_table(rows: Iterable[PartitionDescription], late: Lateness, page: int) -> Table[TopicRow]:
    """The most FAILED partitions first, then those whose lag is unknown, then the greatest lag, then by name."""
    by_topic: dict[str, list[PartitionDescription]] = {}
    for row in rows:
        by_topic.setdefault(row.partition.rpartition("-")[0], []).append(row)
    found = _page_of(sorted(by_topic, key=lambda topic: (*_worst_topic(by_topic[topic]), topic)), page)
    return Table([_topic(topic, by_topic[topic], late) for topic in found.rows], found.total, found.page, found.pages)


def group_table(words: Mapping[str, str], again: Mapping[str, GroupReadAgain]) -> Table[GroupRow]:
    """Those first of which it is unknown what they would read again, then those that would read the most."""

    def worst(group: str) -> tuple[bool, int, str]:
        most = again[group].most if group in again else None
        return most is not None, -(most or 0), group

    found = _page_of(sorted(words, key=worst), 1)
    rows = [GroupRow(name, words[name], format_group_read_again(again.get(name))) for name in found.rows]
    return Table(rows, found.total, found.page, found.pages)


def drift_table(rows: Iterable[DriftRow]) -> Table[DriftRow]:
    """What differs, or needs a person."""
    return _page_of([row for row in rows if row.action is not SyncAction.EQUAL], 1)


def _page_of(ranked: Sequence[T], page: int) -> Table[T]:
    pages = max(1, -(-len(ranked) // PER_PAGE))
    page = min(max(1, page), pages)
    return Table(ranked[(page - 1) * PER_PAGE : page * PER_PAGE], len(ranked), page, pages)


def _worst_partition(row: PartitionDescription) -> tuple[bool, bool, int, str]:
    copied = row.state is PartitionState.MIRRORING
    return row.state is not PartitionState.FAILED, row.lag is not None or not copied, -(row.lag or 0), row.partition


def _worst_topic(rows: Sequence[PartitionDescription]) -> tuple[int, bool, int]:
    lag = _lag(rows)
    return -sum(row.state is PartitionState.FAILED for row in rows), lag is not None, -(lag or 0)


def _topic(topic: str, rows: Sequence[PartitionDescription], late: Lateness) -> TopicRow:
    lag = _lag(rows)
    return TopicRow(
        topic=topic,
        partitions=len(rows),
        states=counted(row.state for row in rows),
        lag=UNKNOWN if lag is None else f"{lag:,}",
        behind=late.of(row.partition for row in rows if row.state is not PartitionState.FAILED),
        proved=_proved_of(rows),
    )


def _lag(rows: Iterable[PartitionDescription]) -> int | None:
    """Of those that have not FAILED, in offsets. None: unknown of one of them, or all have."""
    lags = [row.lag for row in rows if row.state is not PartitionState.FAILED]
    return None if not lags or None in lags else sum(lag or 0 for lag in lags)


def _proved(row: PartitionDescription, *, asked: bool) -> str:
    if not asked:
        return UNKNOWN
    return "none" if row.verified_end is None else f"{row.verified_end:,}"


def _proved_of(rows: Sequence[PartitionDescription]) -> str:
    """As the core counts it of a whole mirror: offsets below what was proved, of those below the positions."""
    known = [(row.verified_end or 0, row.position) for row in rows if row.position is not None]
    if len(known) < len(rows):
        return UNKNOWN
    return f"{sum(map(min, known)):,} of {sum(position for _, position in known):,}"
