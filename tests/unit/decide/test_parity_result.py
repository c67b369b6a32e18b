"""The rule of parity: what is proven, what is not, and that nothing passes for want of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.parity_result import (
    MAX_FINDINGS,
    NOTHING_COMPARED,
    NOTHING_HELD,
    NOTHING_REASONS,
    ParityLogBounds,
    ParityRow,
    build_trimmed_row,
    compare_log_bounds,
    fill_missing_rows,
    judge_rows,
    merge_equal_rows,
    plan_rounds,
    share_ranges,
    split_chunks,
)
from mirror_core.decide.verification import VerificationBasis, update_verification
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, ParityRange, ParityResult, ParityVerdict

P, OTHER = Partition("orders", 0), Partition("other", 0)
SIZE = 10


def wanted(start: int, end: int, partition: Partition = P) -> ParityRange:
    return ParityRange(partition=partition, start=Offset(start), end=Offset(end))


def ends(start: int, end: int) -> ParityLogBounds:
    return ParityLogBounds(start=Offset(start), end=Offset(end))


def equal_rows(asked: ParityRange) -> list[ParityRow]:
    rows, both = compare_log_bounds(asked, ends(asked.start, asked.end), ends(asked.start, asked.end))
    return [*rows, *(row(chunk) for chunk in split_chunks(both, SIZE))]


def row(chunk: ParityRange) -> ParityRow:
    size = chunk.end - chunk.start
    return ParityRow(
        partition=chunk.partition,
        chunk=chunk.start // SIZE,
        start=chunk.start,
        end=chunk.end,
        level=2,
        src_count=size,
        dst_count=size,
        src_digest="d",
        dst_digest="d",
    )


def verdict(asked: ParityRange, rows: Sequence[ParityRow], level: int = 3) -> ParityResult:
    return judge_rows([asked], fill_missing_rows([asked], rows, level), level)


def difference(offset: int) -> ParityFinding:
    return ParityFinding(partition=P, offset=Offset(offset), kind="value", detail="")


def test_all_equal_is_passed_up_to_the_end() -> None:
    result = verdict(wanted(3, 47), equal_rows(wanted(3, 47)))
    assert (result.verdict, result.records, result.chunks, result.verified_ends) == (
        ParityVerdict.PASSED,
        44,
        5,
        {P: 47},
    )


@given(start=st.integers(0, 60), size=st.integers(0, 90), data=st.data())
def test_no_lost_row_passes(start: int, size: int, data: st.DataObject) -> None:
    asked = wanted(start, start + size)
    rows = equal_rows(asked)
    lost = data.draw(st.integers(0, len(rows) - 1))
    result = verdict(asked, rows[:lost] + rows[lost + 1 :])
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert result.verified_ends[P] == (asked.start if rows[lost].chunk < 0 else rows[lost].start)


DEFECTS: list[dict[str, object]] = [
    {"dst_count": 9},
    {"src_count": None},
    {"dst_digest": "other"},
    {"error": "cannot be read"},
    {"differing": 1, "findings": (difference(20),)},
    {"differing": 1},
]


@given(defect=st.sampled_from(DEFECTS), at=st.integers(1, 5))
def test_no_defect_passes_and_nothing_is_proven_from_it_on(defect: dict[str, object], at: int) -> None:
    asked = wanted(0, 50)
    rows = equal_rows(asked)
    rows[at] = replace(rows[at], **defect)  # type: ignore[arg-type]  # the table above names the fields
    result = verdict(asked, rows)
    assert result.verdict is (ParityVerdict.FAILED if "differing" in defect else ParityVerdict.INDETERMINATE)
    assert result.verified_ends[P] <= rows[at].start


def test_records_before_the_first_difference_of_a_chunk_are_proven() -> None:
    rows = equal_rows(wanted(0, 50))
    rows[3] = replace(rows[3], level=3, findings=(difference(24), difference(27)), differing=2, dst_digest="other")
    assert verdict(wanted(0, 50), rows).verified_ends == {P: 24}


def test_what_failed_stays_failed_when_something_else_could_not_be_read() -> None:
    rows = equal_rows(wanted(0, 50))
    rows[1] = replace(rows[1], error="cannot be read")
    rows[3] = replace(rows[3], level=3, findings=(difference(24),), differing=1)
    result = verdict(wanted(0, 50), rows)
    assert (result.verdict, result.verified_ends, len(result.reasons)) == (ParityVerdict.FAILED, {P: 0}, 1)


def test_what_is_damaged_was_seen_to_be_no_copy_and_proves_nothing() -> None:
    asked = wanted(0, 50)
    rows = equal_rows(asked)
    rows[2] = replace(rows[2], error="damaged", damaged=(difference(rows[2].start + 3),))
    result = verdict(asked, rows)
    assert (result.verdict, result.findings, result.verified_ends[P]) == (
        ParityVerdict.INDETERMINATE,
        (),
        rows[2].start,
    )
    assert (result.damage_findings, result.undecided_partitions, result.differing_partitions) == (
        rows[2].damaged,
        frozenset({P}),
        frozenset({P}),
    )


def test_nothing_at_all_is_indeterminate() -> None:
    assert judge_rows([], [], 3).verdict is ParityVerdict.INDETERMINATE
    result = verdict(wanted(5, 5), equal_rows(wanted(5, 5)))
    assert (result.verdict, result.records, result.verified_ends) == (ParityVerdict.INDETERMINATE, 0, {P: 5})


@pytest.mark.parametrize(
    ("source", "destination", "reason"),
    [
        (ends(50, 50), ends(50, 50), NOTHING_HELD),
        (ends(50, 50), ends(40, 50), NOTHING_COMPARED),  # its retention is late: what it holds was not compared
        (ends(50, 51), ends(50, 50), NOTHING_COMPARED),
    ],
)
def test_logs_without_a_record_are_indeterminate_and_told_apart(
    source: ParityLogBounds, destination: ParityLogBounds, reason: str
) -> None:
    rows, _ = compare_log_bounds(wanted(0, 50), source, destination)
    result = judge_rows([wanted(0, 50)], fill_missing_rows([wanted(0, 50)], rows, 3), 3)
    assert (result.verdict, result.reasons) == (ParityVerdict.INDETERMINATE, (reason,))


def test_one_empty_log_beside_one_that_was_not_compared_is_not_all_empty() -> None:
    asked = [wanted(0, 50), wanted(0, 9, Partition("orders", 1))]
    rows, _ = compare_log_bounds(asked[0], ends(50, 50), ends(50, 50))
    other, _ = compare_log_bounds(asked[1], ends(9, 9), ends(3, 9))
    assert judge_rows(asked, [*rows, *other], 3).reasons == (NOTHING_COMPARED,)


def test_a_range_that_nobody_looked_at_is_indeterminate() -> None:
    other = wanted(0, 10, Partition("orders", 1))
    rows = equal_rows(wanted(0, 50))
    asked = [wanted(0, 50), other]
    result = judge_rows(asked, fill_missing_rows(asked, rows, 3), 3)
    assert (result.verdict, result.verified_ends) == (ParityVerdict.INDETERMINATE, {P: 50, other.partition: 0})


def test_digests_that_differ_at_level_2_are_no_verdict() -> None:
    rows = equal_rows(wanted(0, 50))
    rows[2] = replace(rows[2], dst_digest="other")
    result = verdict(wanted(0, 50), rows, level=2)
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert "level 3 would tell" in result.reasons[0]


@pytest.mark.parametrize(
    ("source", "destination", "kinds", "both"),
    [
        (ends(0, 50), ends(0, 50), [], (0, 50)),
        (ends(0, 90), ends(0, 50), [], (0, 50)),  # the source went on
        (ends(20, 50), ends(0, 50), [], (20, 50)),  # retention has been at the source, and not followed yet
        (ends(0, 50), ends(20, 50), [("log start", 0)], (20, 50)),
        (ends(0, 50), ends(0, 40), [("log end", 40)], (0, 40)),
        (ends(0, 50), ends(0, 60), [("log end", 50)], (0, 50)),
        (ends(0, 40), ends(0, 40), [("log end", 40)] * 2, (0, 40)),  # the source lost what was to be compared
        (ends(0, 50), ends(0, 0), [("log end", 0)], (0, 0)),
        (ends(50, 50), ends(50, 50), [], (50, 50)),  # all deleted on both
        (ends(70, 90), ends(0, 50), [], (50, 50)),  # the mirror is behind what the source still has
    ],
)
def test_ends(
    source: ParityLogBounds, destination: ParityLogBounds, kinds: list[tuple[str, int]], both: tuple[int, int]
) -> None:
    rows, shared = compare_log_bounds(wanted(0, 50), source, destination)
    assert [(f.kind, f.offset) for row in rows for f in row.findings] == kinds
    assert (shared.start, shared.end) == both
    chunk_rows = [row(chunk) for chunk in split_chunks(shared, SIZE)]
    result = verdict(wanted(0, 50), [*rows, *chunk_rows])
    assert (result.verdict is ParityVerdict.FAILED) == bool(kinds)
    assert result.verified_ends[P] <= min([50, *(offset for _, offset in kinds)])


def test_what_a_stopped_mirror_writes_behind_its_lmo_is_no_difference() -> None:
    rows, shared = compare_log_bounds(replace(wanted(0, 50), stopped_at=Offset(50)), ends(0, 50), ends(0, 500))
    assert not rows[0].differing
    assert shared.stopped_at == 50, "whoever compares records has to know it, too"


def test_what_retention_removed_while_comparing_leaves_the_rest_proven() -> None:
    asked = wanted(0, 50)
    rows, both = compare_log_bounds(asked, ends(0, 50), ends(0, 50))
    later = replace(both, start=Offset(25))
    result = verdict(
        asked, [*rows, build_trimmed_row(asked, Offset(25)), *(row(chunk) for chunk in split_chunks(later, SIZE))]
    )
    assert (result.verdict, result.records, result.verified_ends) == (ParityVerdict.PASSED, 25, {P: 50})


RANGES = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 300)), max_size=8)


@given(spans=RANGES, tasks=st.integers(1, 7), size=st.integers(1, 40))
def test_shares_cover_every_offset_once_in_at_most_so_many_tasks(
    spans: list[tuple[int, int]], tasks: int, size: int
) -> None:
    ranges = [wanted(start, start + length, Partition("t", n)) for n, (start, length) in enumerate(spans)]
    shares = share_ranges(ranges, tasks, size)
    assert len(shares) <= tasks
    offsets = [(p.partition, at) for mine in shares for p in mine for at in range(p.start, p.end)]
    assert sorted(offsets) == [(r.partition, at) for r in ranges for at in range(r.start, r.end)]
    cuts = {(p.partition, p.start) for mine in shares for p in mine} - {(r.partition, r.start) for r in ranges}
    assert all(start % size == 0 for _, start in cuts)


@given(spans=RANGES, tasks=st.integers(1, 7), size=st.integers(1, 40), compacted=st.integers(0, 8))
def test_rounds_cover_every_offset_once_a_chunk_a_task_and_each_partition_from_its_beginning(
    spans: list[tuple[int, int]], tasks: int, size: int, compacted: int
) -> None:
    ranges = [
        replace(wanted(start, start + length, Partition("t", n)), compacted=n == compacted)
        for n, (start, length) in enumerate(spans)
    ]
    done = list(plan_rounds(ranges, tasks, size))
    assert all(0 < len(shares) <= tasks for shares in done)
    offsets = [(p.partition, at) for shares in done for mine in shares for p in mine for at in range(p.start, p.end)]
    assert sorted(offsets) == [(r.partition, at) for r in ranges for at in range(r.start, r.end)]
    reached = {r.partition: r.start for r in ranges}
    for shares in done:
        for mine in shares:
            plain = [piece for piece in mine if not piece.compacted]
            assert sum(piece.end - piece.start for piece in plain) <= size
        for piece in sorted((p for mine in shares for p in mine), key=lambda p: p.start):
            assert reached[piece.partition] == piece.start, "a round shows a beginning, or what comes behind one"
            reached[piece.partition] = piece.end


def test_many_differences_in_one_partition_hide_no_other_one() -> None:
    ranges = [wanted(0, 40), replace(wanted(0, 10), partition=OTHER)]
    rows = [one for asked in ranges for one in equal_rows(asked)]
    many = tuple(difference(n % 40) for n in range(MAX_FINDINGS + 7))
    [bad] = [n for n, one in enumerate(rows) if one.partition == P and one.chunk == 0]
    rows[bad] = replace(rows[bad], level=3, findings=many, differing=len(many))
    late = tuple(ParityFinding(partition=OTHER, offset=Offset(n), kind="value", detail="") for n in (4, 7))
    rows[-1] = replace(rows[-1], level=3, findings=late, differing=2)
    result = judge_rows(ranges, fill_missing_rows(ranges, rows, 3), 3)
    assert len(result.findings) == MAX_FINDINGS + 1
    proof = update_verification(
        MirrorName("m"), VerificationBasis({}, {P: 1, OTHER: 1}, {P.topic: "1", OTHER.topic: "2"}), ranges, result, 5
    )
    assert [(one.partition, one.offset) for one in proof.differences] == [(P, 0), (OTHER, 4)]
    assert judge_rows(ranges, merge_equal_rows(rows), 3).findings == result.findings


def test_one_cause_of_many_ranges_is_one_reason_with_their_number() -> None:
    asked = [wanted(0, SIZE, Partition("orders", n)) for n in range(30)]
    rows = [replace(row(one), error="cluster east: no answer") for one in asked]
    rows[1] = replace(rows[1], error="cluster east: not authorized")
    reasons = [reason for reason in judge_rows(asked, rows, 2).reasons if reason not in NOTHING_REASONS]
    assert reasons == [
        "orders-0 [0, 10), orders-2 [0, 10), orders-3 [0, 10) and 26 more: cluster east: no answer",
        "orders-1 [0, 10): cluster east: not authorized",
    ]
