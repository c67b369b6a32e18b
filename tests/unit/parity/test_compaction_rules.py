"""Records of a compacted topic that one side has alone: what explains them, and what does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mirror_core.decide.parity_result import LEVEL_RECORDS, ParityRow
from mirror_core.model.names import Offset, Partition
from mirror_core.parity.record_differences import add_unexplained, compare_records
from mirror_core.wire.records import Record

P = Partition("prices", 0)


class Log:
    """What a `LogReader` is asked here."""

    def __init__(self, records: Sequence[Record], end: int) -> None:
        self._records, self._end = records, end

    def log_start(self, partition: Partition) -> Offset:
        return Offset(0)

    def stable_end(self, partition: Partition) -> Offset:
        return Offset(self._end)

    def records(self, partition: Partition, start: int, end: int) -> Iterator[tuple[None, Record]]:
        assert end <= self._end
        return ((None, record) for record in self._records if start <= record.offset < end)


def kept(*offsets: int, value: bytes | None = b"v") -> list[Record]:
    """All of one key."""
    return [Record(offset, 0, b"k", value, ()) for offset in offsets]


def findings(
    source: list[Record],
    destination: list[Record],
    *,
    ends: tuple[int, int],
    upto: int,
    stopped_at: int | None = None,
) -> list[Any]:
    """Of [0, upto), which is all in one chunk. `stopped_at`: the LMO."""
    sides = [[record for record in log if record.offset < upto] for log in (source, destination)]
    one, two = map(iter, sides)
    lone = compare_records(P, one, two, compacted=True).lone
    row = ParityRow(partition=P, chunk=0, start=Offset(0), end=Offset(upto), level=LEVEL_RECORDS)
    there: Any = Log(source, ends[0])
    here: Any = Log(destination, ends[1])
    lmo = None if stopped_at is None else Offset(stopped_at)
    return [(f.kind, f.offset) for row in add_unexplained(there, here, [row], {0: lone}, lmo) for f in row.findings]


def test_what_is_not_copied_yet_has_taken_nothing_from_the_destination() -> None:
    """Its cleaner goes by what it holds. Whoever fails over now has nothing of this key."""
    assert findings(kept(10, 50), [], ends=(60, 40), upto=40) == [("missing", 10)]


@pytest.mark.parametrize("upto", [40, 60])
def test_what_is_copied_and_gone_there_is_told_where_it_lies(upto: int) -> None:
    found = findings(kept(10, 50), [], ends=(60, 60), upto=upto)
    assert found == ([("missing", 50)] if upto == 60 else []), "the newest of a key decides, in its own chunk"
    assert findings(kept(10), kept(50), ends=(60, 60), upto=40) == []


def test_what_only_a_lost_source_has_took_nothing_from_a_destination_that_went_on_without_it() -> None:
    """An unplanned failover ended mirroring at 40: what has been at 50 since is another record on either side."""
    assert findings(kept(10, 50), [], ends=(60, 60), upto=40, stopped_at=40) == [("missing", 10)]
    assert findings(kept(10), kept(50), ends=(60, 60), upto=40, stopped_at=40) == [], "applications wrote it anew"
    assert findings(kept(50), kept(10), ends=(60, 60), upto=40, stopped_at=40) == [], "the source cleaned by its own"


def test_what_is_copied_behind_the_compared_range_may_have_taken_it_and_be_gone_itself() -> None:
    """The destination was cleaned by a tombstone, and then of it. Mirroring ended at 60, or has come there."""
    source = [*kept(10), *kept(50, value=None)]
    assert findings(source, [], ends=(60, 60), upto=40, stopped_at=60) == []


def test_the_source_may_have_cleaned_by_what_is_not_copied_yet() -> None:
    assert findings(kept(50), kept(10), ends=(60, 40), upto=40) == []


def test_a_tombstone_that_is_not_copied_yet_explains_nothing_either() -> None:
    assert findings([*kept(10), *kept(50, value=None)], [], ends=(60, 40), upto=40) == [("missing", 10)]
