"""Where a log can be cut, against a look at every place where it could be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.truncation import CutPoint, find_cut_point
from mirror_core.model.names import Offset
from mirror_core.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader
from tests.support.cut_logs import data, logs, marker


def is_open(log: Sequence[BatchHeader], producer: int) -> bool:
    """Whether this producer's last word in the log is a record and no marker."""
    words = [h for h in log if h.producer_id == producer and h.record_count and h.attributes & TRANSACTIONAL]
    return bool(words) and not words[-1].attributes & CONTROL


@given(logs(), st.integers(0, 60))
def test_it_is_the_highest_place_where_nothing_is_open(log: list[BatchHeader], target: int) -> None:
    start = log[0].base_offset if log else 0
    places = {start: 0} | {header.next_offset: number for number, header in enumerate(log, start=1)}
    allowed = [place for place in places if place <= max(target, start)]
    point = find_cut_point(log, Offset(max(target, start)), Offset(start))
    assert point.boundary == max(allowed)
    assert set(point.open_transactions) == {p for p in range(1, 4) if is_open(log[: places[point.boundary]], p)}
    assert point.offset == max(
        place for place in allowed if not any(is_open(log[: places[place]], p) for p in range(4))
    )


@given(logs(), st.integers(0, 60), st.integers(0, 25))
def test_whoever_knows_what_is_open_may_begin_further_up(log: list[BatchHeader], target: int, skipped: int) -> None:
    whole = find_cut_point(log, Offset(target), Offset(0))
    upper = log[skipped:]
    below = find_cut_point(log[:skipped], Offset(10**9), Offset(0))
    if below.boundary > target:
        return
    point = find_cut_point(upper, Offset(target), below.boundary, below.open_transactions)
    assert (point.boundary, dict(point.open_transactions)) == (whole.boundary, dict(whole.open_transactions))
    if point.offset is None:
        assert whole.offset is not None
        assert whole.offset < below.boundary
    else:
        assert point.offset == whole.offset


@pytest.mark.parametrize(
    ("log", "target", "expected"),
    [
        ([], 5, CutPoint(boundary=Offset(0), offset=Offset(0), open_transactions={})),
        ([data(0, 9)], 5, CutPoint(boundary=Offset(0), offset=Offset(0), open_transactions={})),
        ([data(0, 9), data(10, 19)], 15, CutPoint(boundary=Offset(10), offset=Offset(10), open_transactions={})),
        # What was compacted away between two batches belongs to neither: the log ends where the first one does.
        ([data(0, 9), data(50, 59)], 40, CutPoint(boundary=Offset(10), offset=Offset(10), open_transactions={})),
        # Back to where 1 began is not enough: 2 is open there, although it has ended at the boundary.
        (
            [data(0, 4), data(5, 5, 2), data(6, 6, 1), marker(7, 2), data(8, 9, 3)],
            8,
            CutPoint(boundary=Offset(8), offset=Offset(5), open_transactions={1: Offset(6)}),
        ),
    ],
)
def test_places(log: list[BatchHeader], target: int, expected: CutPoint) -> None:
    assert find_cut_point(log, Offset(target), Offset(0)) == expected


def test_nothing_is_asked_for_behind_the_target() -> None:
    log = iter([data(0, 9), data(10, 19), data(20, 29)])
    find_cut_point(log, Offset(12), Offset(0))
    assert next(log).base_offset == 20
