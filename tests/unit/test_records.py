"""Decoding records: against aiokafka's encoder, against our own bytes, and against garbage."""

from __future__ import annotations

import struct
import zlib

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.wire.batch import HEADER, HEADER_SIZE, BatchHeader, MalformedBatch, batches
from mirror_core.wire.records import Codec, Record, decode, decompress, is_abort_marker, varint

GZIP = zlib.compress(b"plain" * 20, wbits=31)
Content = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

CONTENTS = st.lists(
    st.tuples(
        st.integers(0, 2**45),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=2000),
        st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


def zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def raw_record(offset_delta: int, timestamp_delta: int, key: bytes | None, headers: list[tuple[bytes, bytes]]) -> bytes:
    body = b"\0" + zigzag(timestamp_delta) + zigzag(offset_delta)
    body += zigzag(-1) if key is None else zigzag(len(key)) + key
    body += zigzag(-1) + zigzag(len(headers))
    for name, value in headers:
        body += zigzag(len(name)) + name + zigzag(len(value)) + value
    return zigzag(len(body)) + body


def raw_batch(records: bytes, count: int, *, attributes: int = 0, base: int = 100) -> tuple[BatchHeader, bytes]:
    header = BatchHeader(
        base, HEADER_SIZE - 12 + len(records), 0, 2, 0, attributes, count - 1, 1000, 5000, 7, 0, 0, count
    )
    return header, HEADER.pack(*header) + records


@settings(max_examples=60, deadline=None)
@given(contents=CONTENTS, codec=st.sampled_from(Codec))
def test_what_another_encoder_wrote_is_read_back(contents: list[Content], codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec.value,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for offset, (timestamp, key, value, headers) in enumerate(contents):
        assert builder.append(offset, timestamp, key, value, headers) is not None
    ((header, batch),) = batches(memoryview(bytes(builder.build())))
    assert list(decode(header, batch)) == [
        Record(offset, timestamp, key, value, tuple((name.encode(), v) for name, v in headers))
        for offset, (timestamp, key, value, headers) in enumerate(contents)
    ]


def test_header_names_that_are_no_utf8_are_kept() -> None:
    header, batch = raw_batch(raw_record(0, -3, b"\xff", [(b"\xfe\xff", b"\x00")]), 1)
    assert list(decode(header, batch)) == [Record(100, 997, b"\xff", None, ((b"\xfe\xff", b"\x00"),))]


def test_broker_stamped_batches_give_every_record_the_batch_time() -> None:
    records = raw_record(0, 0, b"a", []) + raw_record(1, 17, b"b", [])
    header, batch = raw_batch(records, 2, attributes=0x08)
    assert [record.timestamp_ms for record in decode(header, batch)] == [5000, 5000]


def test_holes_that_compaction_left_keep_their_offsets() -> None:
    header, batch = raw_batch(raw_record(2, 0, b"a", []) + raw_record(9, 0, b"b", []), 2)
    assert [record.offset for record in decode(header, batch)] == [102, 109]


@pytest.mark.parametrize("framed", [False, True])
def test_snappy_in_java_framing_and_bare(framed: bool) -> None:
    plain = raw_record(0, 0, b"key", [])
    if framed:
        halves = [bytes(cramjam.snappy.compress_raw(part)) for part in (plain[:3], plain[3:])]
        body = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(h)) + h for h in halves)
    else:
        body = bytes(cramjam.snappy.compress_raw(plain))
    assert decompress(Codec.SNAPPY, body) == plain


@pytest.mark.parametrize("body", [GZIP[:-1], GZIP[:-9], GZIP + b"x", GZIP * 2, b""])
def test_gzip_that_is_not_one_whole_member_is_refused(body: bytes) -> None:
    assert decompress(Codec.GZIP, GZIP) == b"plain" * 20
    with pytest.raises(MalformedBatch, match="gzip"):
        decompress(Codec.GZIP, body)


def test_bare_snappy_is_bounded_by_what_it_announces() -> None:
    body = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    assert decompress(Codec.SNAPPY, body, 1000) == bytes(1000)
    with pytest.raises(MalformedBatch, match="more than 999"):
        decompress(Codec.SNAPPY, body, 999)


@pytest.mark.parametrize(("kind", "aborted"), [(0, True), (1, False)])
def test_abort_and_commit_markers_are_told_apart(kind: int, aborted: bool) -> None:
    header, batch = raw_batch(raw_record(0, 0, struct.pack(">hh", 0, kind), []), 1, attributes=0x30)
    assert is_abort_marker(header, batch) is aborted


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints_of_all_64_bit_numbers(value: int) -> None:
    encoded = zigzag(value)
    assert varint(encoded + b"\x55", 0) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"\xff" * 9 + b"\x02", b"\xff" * 9 + b"\x7f", b"\xff" * 10 + b"\x01"])
def test_varints_of_more_than_64_bits_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBatch, match="a varint of more"):
        varint(data, 0)


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=300), count=st.integers(-2, 50), codec=st.integers(0, 7))
def test_garbage_gives_records_or_a_malformed_batch(body: bytes, count: int, codec: int) -> None:
    header, batch = raw_batch(body, count, attributes=codec)
    try:
        list(decode(header, batch))
    except MalformedBatch:
        return


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_one_damaged_byte_gives_records_or_a_malformed_batch(position: int, byte: int) -> None:
    records = b"".join(raw_record(n, n, b"key", [(b"h", b"v")]) for n in range(20))
    damaged = bytearray(records)
    damaged[position % len(damaged)] = byte
    header, batch = raw_batch(bytes(damaged), 20)
    try:
        list(decode(header, batch))
    except MalformedBatch:
        return
