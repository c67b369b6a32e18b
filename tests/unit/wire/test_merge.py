"""Tiny neighbours merged into one batch: a consumer cannot tell."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.wire.batch import LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader, MalformedBatch
from mirror_core.wire.records import Codec, Record, decode_records
from mirror_core.wire.reencode import RecordRun, is_mergeable, merge_batches
from tests.support.record_bytes import BASE_TIME, INT64, contents, numbered, seen, source

batches_of = st.lists(
    st.tuples(st.one_of(st.just(BASE_TIME), INT64), st.lists(contents, min_size=1, max_size=4)), min_size=1, max_size=8
)


@settings(max_examples=80)
@given(batches_of, st.integers(0, 2**40), st.sampled_from([0, TRANSACTIONAL]))
def test_the_merged_batch_holds_the_same_records(
    groups: list[tuple[int, list[tuple[int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]]]],
    base: int,
    attributes: int,
) -> None:
    parts, expected = [], []
    offset = base
    for base_time, group in groups:
        records = [Record(offset + n, *content) for n, content in enumerate(group)]
        latest = max(record.timestamp_ms for record in records)
        parts.append(source(records, base_time=base_time, max_time=latest, attributes=attributes))
        expected += records
        offset += len(records)
    assert [record for header, batch in parts for record in decode_records(header, batch)] == expected
    assert all(is_mergeable(header) for header, _ in parts)
    assert seen([RecordRun(base, len(expected), merge_batches(parts))]) == expected


@pytest.mark.parametrize(
    ("header", "batch"),
    [
        pytest.param(*source(numbered(3), Codec.LZ4), id="compressed"),
        pytest.param(*source(numbered(3), last=105), id="with holes"),
        pytest.param(*source(numbered(3), attributes=LOG_APPEND_TIME), id="stamped by the broker"),
        pytest.param(*source(numbered(1), attributes=0x30), id="control"),
    ],
)
def test_other_batches_are_not_merged(header: BatchHeader, batch: memoryview) -> None:
    assert not is_mergeable(header)
    with pytest.raises(ValueError, match="offset 100"):
        merge_batches([(header, batch)])


def test_batches_that_do_not_follow_each_other_are_not_merged() -> None:
    one, other = source(numbered(3)), source(numbered(3))
    with pytest.raises(ValueError, match="offset 100"):
        merge_batches([one, other])


@pytest.mark.parametrize("damage", ["delta", "length", "count", "cut"])
def test_records_that_contradict_their_header_are_not_moved(damage: str) -> None:
    header, batch = source(numbered(3, size=30))
    changed = bytearray(batch)
    if damage == "delta":
        changed[64 + 39] ^= 4  # the second record's offset delta
    elif damage == "length":
        struct.pack_into(">B", changed, 61, 0x7F)
    elif damage == "count":
        header = header._replace(record_count=2, last_offset_delta=1)
    else:
        del changed[-1:]
    with pytest.raises(MalformedBatch):
        merge_batches([(header, memoryview(changed))])
