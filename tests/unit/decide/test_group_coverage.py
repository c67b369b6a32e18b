"""The table of groups: every partition is synced, clamped, refused, skipped or deleted, with its age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirror_core.decide.group_coverage import date_uncommitted, find_not_brought_over, list_group_coverage
from mirror_core.model.mirror import GroupSyncTime
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.sync_state import GroupCoverage, OwnGroupOffsets, UncommittedGroupOffset, UnsyncedGroups
from tests.support.mirror_views import MIRROR

P, Q, R, GONE = Partition("a", 0), Partition("a", 1), Partition("a", 2), Partition("released", 0)
NOW_MS = 100_000


def own(group: str, offsets: dict[Partition, int], clamped_from: dict[Partition, int]) -> OwnGroupOffsets:
    by_kind = (
        PartitionOffsets.from_mapping({p: Offset(o) for p, o in some.items()}) for some in (offsets, clamped_from)
    )
    return OwnGroupOffsets(mirror=MIRROR.name, group=group, offsets=next(by_kind), clamped_from=next(by_kind))


def left(partition: str, coverage: GroupCoverage, since_ms: int | None = 40_000) -> UncommittedGroupOffset:
    return UncommittedGroupOffset(
        group="g", partition=partition, reason="because", coverage=coverage, since_ms=since_ms
    )


def rows(*uncommitted: UncommittedGroupOffset) -> Sequence[tuple[str, str, int, float | None]]:
    record = own("g", {P: 7, Q: 6, R: 3, GONE: 9}, {Q: 10, R: 1})
    synced = GroupSyncTime(mirror=MIRROR.name, synced_ms=99_000, followed=True)
    groups_left = UnsyncedGroups(mirror=MIRROR.name, uncommitted=uncommitted)
    table = list_group_coverage(MIRROR, {P, Q, R}, [record], groups_left, synced, NOW_MS)
    return [(row.partition, row.coverage.value, row.clamped_by, row.age_s) for row in table]


def test_a_partition_is_synced_or_clamped_by_what_was_committed_last() -> None:
    assert rows() == [("a-0", "synced", 0, 1.0), ("a-1", "clamped", 4, 1.0), ("a-2", "clamped", -2, 1.0)]


def test_what_could_not_be_committed_hides_what_was_committed_before() -> None:
    assert rows(left("a-1", GroupCoverage.REFUSED))[1] == ("a-1", "refused", 0, 60.0)
    assert rows(left("", GroupCoverage.SKIPPED)) == [("", "skipped", 0, 60.0)], "the whole group"
    assert rows(left("a-0", GroupCoverage.DELETED, None))[0] == ("a-0", "deleted", 0, None)


def test_a_reason_that_changes_its_words_keeps_its_age() -> None:
    first = date_uncommitted([left("a-0", GroupCoverage.REFUSED, None)], [], 5_000)
    again = date_uncommitted([left("a-0", GroupCoverage.REFUSED, None)], first, 9_000)
    other = date_uncommitted([left("a-0", GroupCoverage.SKIPPED, None)], first, 9_000)
    assert [row.since_ms for row in (*first, *again, *other)] == [5_000, 5_000, 9_000]


def test_groups_that_were_not_brought_over_are_those_with_members_or_with_refused_offsets() -> None:
    uncommitted = [
        replace(left("", GroupCoverage.SKIPPED), group="joined", reason="has members"),
        replace(left("a-0", GroupCoverage.REFUSED), group="refused", reason="is ahead"),
        replace(left("a-1", GroupCoverage.REFUSED), group="refused", reason="another"),
        replace(left("elsewhere-0", GroupCoverage.SKIPPED), group="uncopied"),
        replace(left("a-0", GroupCoverage.DELETED), group="deleted"),
    ]
    assert find_not_brought_over(uncommitted, {"a"}) == {"joined": "has members", "refused": "is ahead"}
