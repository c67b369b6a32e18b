"""Batches written anew: what a consumer sees of the runs is what it saw of the source's batch, and nothing else."""

from __future__ import annotations

import struct
from itertools import pairwise
from random import Random

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.wire.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    MalformedBatch,
    clear_transaction_bits,
)
from mirror_core.wire.records import Codec, Record
from mirror_core.wire.reencode import can_copy_whole, split_into_runs
from tests.support.record_bytes import BASE_TIME, INT64, contents, numbered, plain, seen, source


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, list[Record], int]:
    """Base offset, records with holes anywhere, last offset."""
    base = draw(st.integers(0, 2**40))
    offset = base + draw(st.integers(0, 3))
    records: list[Record] = []
    for timestamp, key, value, headers in draw(st.lists(contents, min_size=1, max_size=20)):
        records.append(Record(offset, timestamp, key, value, headers))
        offset += draw(st.sampled_from([1, 1, 1, 2, 70]))
    return base, records, offset - 1 + draw(st.integers(0, 3))


@settings(max_examples=150)
@given(logs(), st.sampled_from(Codec), st.sampled_from([0, TRANSACTIONAL, DELETE_HORIZON]), st.integers(-5, 60))
def test_the_runs_hold_exactly_the_kept_records(
    log: tuple[int, list[Record], int], codec: Codec, attributes: int, skip: int
) -> None:
    base, records, last = log
    header, batch = source(records, codec, base=base, last=last, attributes=attributes)
    before = bytes(batch)
    runs = split_into_runs(header, batch, base + skip)
    assert bytes(batch) == before, "the source's bytes are still needed for its digest"
    assert all(earlier.next_offset < later.base_offset for earlier, later in pairwise(runs))
    kept = [record for record in records if record.offset >= base + skip]
    if can_copy_whole(header, base + skip):  # its maximum is the source's word
        assert [bytes(run.batch[HEADER_SIZE:]) for run in runs] == [before[HEADER_SIZE:]]
        struct.pack_into(">q", runs[0].batch, 35, max(record.timestamp_ms for record in kept))
    assert seen(runs) == kept


@settings(max_examples=60)
@given(logs(), st.sampled_from(Codec), INT64)
def test_what_a_broker_stamped_keeps_the_brokers_time(
    log: tuple[int, list[Record], int], codec: Codec, stamp: int
) -> None:
    base, records, last = log
    header, batch = source(records, codec, base=base, last=last, attributes=LOG_APPEND_TIME, max_time=stamp)
    assert seen(split_into_runs(header, batch, base)) == [
        Record(r.offset, stamp, r.key, r.value, r.headers) for r in records
    ]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("bits", [0, TRANSACTIONAL, DELETE_HORIZON, TRANSACTIONAL | DELETE_HORIZON])
def test_a_whole_batch_is_not_even_decompressed(codec: Codec, bits: int) -> None:
    header, batch = source(numbered(3), codec, attributes=bits)
    body = bytearray(batch)
    body[HEADER_SIZE:] = b"\xff" * (len(body) - HEADER_SIZE)
    [run] = split_into_runs(header, memoryview(body), 100)
    assert (run.base_offset, run.records) == (100, 3)
    clear_transaction_bits(memoryview(body))
    assert run.batch == body
    assert struct.unpack_from(">h", body, 21) == (codec,)


@pytest.mark.parametrize("codec", Codec)
def test_another_client_reads_large_batches_too(codec: Codec) -> None:
    """Snappy and lz4 come in blocks, and one that cannot be compressed is stored as it is."""
    values = [Random(n).randbytes(70_000) if n % 2 else b"%d" % n * 40_000 for n in range(6)]
    sent = [Record(n, BASE_TIME + n, b"k", value, ()) for n, value in enumerate(values)]
    header, batch = source(sent, codec, attributes=LOG_APPEND_TIME, max_time=BASE_TIME)
    runs = split_into_runs(header, batch, 0)
    found = [record for run in runs for record in DefaultRecordBatch(bytes(run.batch))]
    assert [(record.timestamp, record.key, record.value) for record in found] == [
        (BASE_TIME, b"k", value) for value in values
    ]


@pytest.mark.parametrize("start", [103, 1000])
def test_nothing_is_left_of_a_batch_before_the_start(start: int) -> None:
    assert split_into_runs(*source(numbered(3)), start) == []


def test_offsets_behind_the_last_record_hold_nothing() -> None:
    assert split_into_runs(*source(numbered(3), last=200), 103) == []


@pytest.mark.parametrize("attributes", [CONTROL, CONTROL | TRANSACTIONAL])
def test_a_control_batch_never_becomes_records(attributes: int) -> None:
    assert split_into_runs(*source(numbered(1), attributes=attributes), 0) == []


def test_the_empty_batch_that_the_cleaner_leaves_has_no_runs() -> None:
    header = BatchHeader(50, HEADER_SIZE - 12, 0, 2, 0, Codec.GZIP, 9, 0, 0, 7, 0, 0, 0)
    assert split_into_runs(header, memoryview(bytearray(HEADER.pack(*header))), 50) == []


def test_a_start_inside_leaves_only_what_comes_after_it() -> None:
    runs = split_into_runs(*source(numbered(10), Codec.ZSTD), 104)
    assert [(run.base_offset, run.records) for run in runs] == [(104, 6)]
    assert seen(runs) == numbered(10)[4:]


def test_record_attributes_are_the_only_byte_not_kept() -> None:
    """They are unused in v2; a record's length prefix and deltas are the only other things written anew."""
    records = numbered(4)
    header, batch = source([records[0], records[2], records[3]])
    first, second = split_into_runs(header, batch, 0)
    assert plain(records[0], 100, BASE_TIME) == first.batch[HEADER_SIZE:]
    moved = [Record(r.offset - 102, r.timestamp_ms, r.key, r.value, r.headers) for r in records[2:]]
    assert b"".join(plain(record, 0, BASE_TIME) for record in moved) == second.batch[HEADER_SIZE:]


def test_a_batch_does_not_outgrow_its_source() -> None:
    """What was compressed hard is split rather than sent larger than a topic's max.message.bytes admits."""
    words = [f"{n * 7919 % 1000}-{n * 104729 % 977}-{n}".encode() for n in range(6000)]
    records = [Record(n, BASE_TIME, None, word, ()) for n, word in enumerate(words)]
    hard = bytes(cramjam.zstd.compress(b"".join(plain(r, 0, BASE_TIME) for r in records), 22))
    header = BatchHeader(
        0, HEADER_SIZE - 12 + len(hard), 0, 2, 0, Codec.ZSTD | LOG_APPEND_TIME, len(records) - 1, 0, BASE_TIME,
        1, 0, 0, len(records),
    )  # fmt: skip
    batch = memoryview(bytearray(HEADER.pack(*header) + hard))
    assert len(batch) > 16 << 10, "below it nobody minds"
    runs = split_into_runs(header, batch, 0)
    assert len(runs) > 1
    assert max(len(run.batch) for run in runs) <= len(batch)
    assert seen(runs) == records


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_of_too_many_plain_bytes_is_refused(codec: Codec) -> None:
    header, batch = source(numbered(50, size=100_000), codec, last=1000)
    assert len(split_into_runs(header, batch, 0)) == 1
    with pytest.raises(MalformedBatch, match=r"more than|allowed"):
        split_into_runs(header, batch, 0, limit=100_000)


def damaged(records: list[Record], **changes: int) -> tuple[BatchHeader, memoryview]:
    header, batch = source(records, last=records[-1].offset + 5)
    return header._replace(**changes), batch


@pytest.mark.parametrize(
    ("header", "batch"),
    [
        pytest.param(*damaged(numbered(3), record_count=2), id="fewer records than there are"),
        pytest.param(*damaged(numbered(3), record_count=4), id="more records than there are"),
        pytest.param(*damaged(numbered(3), record_count=-1), id="negative count"),
        pytest.param(*damaged(numbered(3), last_offset_delta=1), id="a record behind the last offset"),
        pytest.param(*damaged(numbered(3), attributes=5), id="unknown codec"),
        pytest.param(*damaged(numbered(3), attributes=4), id="not compressed as it says"),
        pytest.param(*damaged(numbered(3), magic=1), id="another format"),
        pytest.param(*damaged([*numbered(2), numbered(2)[1]]), id="an offset twice"),
        pytest.param(*damaged(numbered(2)[::-1]), id="offsets that fall"),
    ],
)
def test_records_that_contradict_their_header_are_refused(header: BatchHeader, batch: memoryview) -> None:
    with pytest.raises(MalformedBatch):
        split_into_runs(header, batch, 0)


@settings(max_examples=200)
@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(Codec))
def test_a_damaged_byte_gives_runs_or_a_malformed_batch(position: int, byte: int, codec: Codec) -> None:
    header, batch = source(numbered(20), codec, last=200)
    changed = bytearray(batch)
    changed[HEADER_SIZE + position % (len(batch) - HEADER_SIZE)] = byte
    try:
        runs = split_into_runs(header, memoryview(changed), 0)
    except MalformedBatch:
        return
    assert sum(run.records for run in runs) == header.record_count


def test_more_runs_than_memory_is_allowed_for_are_refused() -> None:
    records = [Record(2 * n, BASE_TIME, None, None, ()) for n in range(2000)]
    header, batch = source(records, Codec.ZSTD)
    assert len(split_into_runs(header, batch, 0)) == 2000
    with pytest.raises(MalformedBatch, match="exceed"):
        split_into_runs(header, batch, 0, limit=100_000)
