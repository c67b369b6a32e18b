"""Spans of a comparison: cut by bytes, nothing left out, and packed evenly."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.parity_result import CHUNK_OFFSETS
from mirror_core.decide.parity_spans import SPAN_BYTES, cut_spans, pack_spans
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange


def wanted(number: int, start: int, end: int, **more: bool) -> ParityRange:
    return ParityRange(partition=Partition("orders", number), start=Offset(start), end=Offset(end), **more)  # type: ignore[arg-type]


def test_half_of_all_bytes_in_one_partition_and_large_records_in_another_give_even_spans() -> None:
    sizes = {0: 64 * 10_000_000, **dict.fromkeys(range(1, 64), 10_000_000)}
    ranges = [wanted(number, 7, 7 + offsets) for number, offsets in sizes.items()]
    means = {one.partition: 1_000.0 for one in ranges}
    ranges[1] = wanted(1, 0, 100_000)
    means[ranges[1].partition] = 100_000.0
    spans = cut_spans(ranges, means, CHUNK_OFFSETS)
    assert max(span.size_bytes for span in spans) <= 1.5 * median(span.size_bytes for span in spans)
    assert max(span.size_bytes for span in spans) <= 1.2 * SPAN_BYTES


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 3_000)), max_size=6),
    st.floats(0.5, 5_000),
    st.integers(1, 700),
    st.integers(1, 100_000),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_every_offset_is_in_one_span_and_every_span_in_one_task(
    logs: list[tuple[int, int]], mean: float, chunk: int, target: int, tasks: int | None
) -> None:
    ranges = [wanted(number, start, start + length) for number, (start, length) in enumerate(logs)]
    spans = cut_spans(ranges, {one.partition: mean for one in ranges}, chunk, target)
    for one in ranges:
        reached = one.start
        for span in (span for span in spans if span.range.partition == one.partition):
            assert span.range.start == reached < span.range.end
            reached = span.range.end
        assert reached == one.end
    assert len({span.id for span in spans}) == len(spans)
    packed = pack_spans(spans, tasks)
    assert sorted(span.id for task in packed for span in task) == sorted(span.id for span in spans)
    assert all(packed)
    assert tasks is None or len(packed) <= tasks


def test_the_same_ranges_have_the_same_spans() -> None:
    ranges = [wanted(0, 10, 100_010)]
    first, *_ = spans = cut_spans(ranges, {}, 50_000, 10_000_000)
    assert cut_spans(ranges, {}, 50_000, 10_000_000) == spans
    assert first.id == "orders-0@10"


def test_a_compacted_partition_stays_whole() -> None:
    log = wanted(0, 0, 10_000_000, compacted=True)
    assert [span.range for span in cut_spans([log], {}, 50_000, 1_000_000)] == [log]
    assert len(cut_spans([replace(log, compacted=False)], {}, 50_000, 1_000_000)) > 100


def test_many_small_logs_share_a_task() -> None:
    spans = cut_spans([wanted(number, 0, 10) for number in range(10_000)], {}, 50_000)
    assert len(pack_spans(spans)) == pytest.approx(10, abs=3)
    assert pack_spans(()) == []
