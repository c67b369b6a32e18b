"""Tables of the page: worst first, 100 rows per page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from mirror_core.decide.failover_readiness import GroupReadAgain, format_group_read_again
from mirror_core.decide.loss_bound import find_oldest
from mirror_core.mirrors.describe import PartitionDescription
from mirror_core.model.figures import Figures, format_figures
from mirror_core.model.mirror import PartitionState
from mirror_core.model.sync_state import DriftRow, SyncAction
from mirrorbook_airflow.page.mirror_state import MirrorView
from mirrorbook_airflow.page.number_format import UNKNOWN, format_counts

ROWS_PER_PAGE: Final = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TablePage(Generic[T]):
    rows: Sequence[T]
    total: int
    page: int
    pages: int

    @property
    def more(self) -> int:
        return self.total - len(self.rows)


@dataclass(frozen=True, slots=True)
class PartitionTableRow:
    row: PartitionDescription
    behind: str
    """Seconds since the copy held all that the source then had."""
    verified_end: str
    """Next offset after the last one that was compared and found equal."""


@dataclass(frozen=True, slots=True)
class TopicTableRow:
    topic: str
    partitions: int
    states: str
    lag: str
    behind: str
    """Seconds, of the partition that is furthest behind."""
    verified: str
    """How many of its offsets were compared and found equal."""


@dataclass(frozen=True, slots=True)
class GroupTableRow:
    name: str
    progress: str
    """As the plan of a planned failover has them."""
    read_again: str
    """What it would read again if the source died now."""


@dataclass(frozen=True, slots=True)
class CopyLateness:
    """Seconds by partition. None: unknown."""

    seconds: Mapping[str, float | None]
    stopped: bool
    """The mirror does not follow its source any more, and an age would say nothing."""

    def format_greatest(self, partitions: Iterable[str]) -> str:
        """Unknown where one of them is unknown."""
        if self.stopped:
            return "stopped"
        greatest = find_oldest([self.seconds.get(partition) for partition in partitions])
        return UNKNOWN if greatest is None else f"{greatest:,.1f}"


def compute_lateness(view: MirrorView | None, *, stopped: bool) -> CopyLateness:
    """`view`: None: too old."""
    partitions = view.loss.partitions if view and view.loss else {}
    return CopyLateness(
        {str(partition): partition_loss.behind_s for partition, partition_loss in partitions.items()}, stopped
    )


def make_partition_table(
    rows: Iterable[PartitionDescription], lateness: CopyLateness, page: int, *, has_offsets: bool
) -> TablePage[PartitionTableRow]:
    """FAILED first, then unknown lag, then the greatest. `has_offsets`: the rows are current."""
    table_page = _select_page(sorted(rows, key=_rank_partition), page)
    lines = [
        PartitionTableRow(
            row, lateness.format_greatest([row.partition]), _format_verified_end(row, has_offsets=has_offsets)
        )
        for row in table_page.rows
    ]
    return TablePage(lines, table_page.total, table_page.page, table_page.pages)


def make_topic_table(
    rows: Iterable[PartitionDescription], lateness: CopyLateness, page: int
) -> TablePage[TopicTableRow]:
    """Most FAILED partitions first, then unknown lag, then the greatest."""
    by_topic: dict[str, list[PartitionDescription]] = {}
    for row in rows:
        by_topic.setdefault(row.partition.rpartition("-")[0], []).append(row)
    table_page = _select_page(sorted(by_topic, key=lambda topic: (*_rank_topic(by_topic[topic]), topic)), page)
    return TablePage(
        [_make_topic_row(topic, by_topic[topic], lateness) for topic in table_page.rows],
        table_page.total,
        table_page.page,
        table_page.pages,
    )


def make_group_table(
    progress: Mapping[str, Figures], read_again: Mapping[str, GroupReadAgain]
) -> TablePage[GroupTableRow]:
    """Unknown first, then the most."""

    def worst(group: str) -> tuple[bool, int, str]:
        most = read_again[group].most if group in read_again else None
        return most is not None, -(most or 0), group

    table_page = _select_page(sorted(progress, key=worst), 1)
    rows = [
        GroupTableRow(name, format_figures(progress[name]), format_group_read_again(read_again.get(name)))
        for name in table_page.rows
    ]
    return TablePage(rows, table_page.total, table_page.page, table_page.pages)


def make_drift_table(rows: Iterable[DriftRow]) -> TablePage[DriftRow]:
    return _select_page([row for row in rows if row.action is not SyncAction.EQUAL], 1)


def _select_page(ranked: Sequence[T], page: int) -> TablePage[T]:
    pages = max(1, -(-len(ranked) // ROWS_PER_PAGE))
    page = min(max(1, page), pages)
    return TablePage(ranked[(page - 1) * ROWS_PER_PAGE : page * ROWS_PER_PAGE], len(ranked), page, pages)


def _rank_partition(row: PartitionDescription) -> tuple[bool, bool, int, str]:
    copied = row.state is PartitionState.MIRRORING
    return row.state is not PartitionState.FAILED, row.lag is not None or not copied, -(row.lag or 0), row.partition


def _rank_topic(rows: Sequence[PartitionDescription]) -> tuple[int, bool, int]:
    lag = _sum_lag(rows)
    return -sum(row.state is PartitionState.FAILED for row in rows), lag is not None, -(lag or 0)


def _make_topic_row(topic: str, rows: Sequence[PartitionDescription], lateness: CopyLateness) -> TopicTableRow:
    lag = _sum_lag(rows)
    return TopicTableRow(
        topic=topic,
        partitions=len(rows),
        states=format_counts(row.state for row in rows),
        lag=UNKNOWN if lag is None else f"{lag:,}",
        behind=lateness.format_greatest(row.partition for row in rows if row.state is not PartitionState.FAILED),
        verified=_format_verified(rows),
    )


def _sum_lag(rows: Iterable[PartitionDescription]) -> int | None:
    lags = [row.lag for row in rows if row.state is not PartitionState.FAILED]
    return None if not lags or None in lags else sum(lag or 0 for lag in lags)


def _format_verified_end(row: PartitionDescription, *, has_offsets: bool) -> str:
    if not has_offsets:
        return UNKNOWN
    return "none" if row.verified_end is None else f"{row.verified_end:,}"


def _format_verified(rows: Sequence[PartitionDescription]) -> str:
    """Verified offsets below the positions."""
    known = [(row.verified_end or 0, row.position) for row in rows if row.position is not None]
    if len(known) < len(rows):
        return UNKNOWN
    return f"{sum(map(min, known)):,} of {sum(position for _, position in known):,}"
