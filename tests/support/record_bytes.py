"""Batches and messages of all three formats, laid out by hand: what may lie in a log, also what no client writes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import xxhash
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import strategies as st

from mirror_core.wire.batch import HEADER, HEADER_SIZE, BatchHeader, crc_matches, readdress, split_batches
from mirror_core.wire.batch_encoder import compress, encode_varint
from mirror_core.wire.records import Codec, Record, decode_records
from mirror_core.wire.reencode import RecordRun

BASE_TIME = 1_700_000_000_123
INT64 = st.integers(-(2**63), 2**63 - 1)
contents = st.tuples(
    st.one_of(st.integers(0, 2**45), INT64, st.just(-1)),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=2000),
    st.lists(st.tuples(st.binary(max_size=8), st.none() | st.binary(max_size=20)), max_size=3).map(tuple),
)


def plain(record: Record, base: int, base_time: int) -> bytes:
    """One record's bytes, written by the layout in Kafka's documentation."""
    body = b"\0" + encode_varint(wrap(record.timestamp_ms - base_time)) + encode_varint(record.offset - base)
    for field in (record.key, record.value):
        body += encode_varint(-1) if field is None else encode_varint(len(field)) + field
    body += encode_varint(len(record.headers))
    for name, value in record.headers:
        body += (
            encode_varint(len(name))
            + name
            + (encode_varint(-1) if value is None else encode_varint(len(value)) + value)
        )
    return encode_varint(len(body)) + body


def wrap(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def source(
    records: Sequence[Record],
    codec: Codec = Codec.NONE,
    *,
    base: int | None = None,
    last: int | None = None,
    attributes: int = 0,
    max_time: int = 0,
    base_time: int = BASE_TIME,
) -> tuple[BatchHeader, memoryview]:
    """A batch as it may lie in a source's log: offsets with holes, also before the first record and behind the last."""
    first = records[0].offset if base is None else base
    end = records[-1].offset if last is None else last
    body = compress(codec, b"".join(plain(record, first, base_time) for record in records))
    header = BatchHeader(
        first, HEADER_SIZE - 12 + len(body), 3, 2, 0, codec | attributes, end - first, base_time,
        max_time, 7, 1, 5, len(records),
    )  # fmt: skip
    batch = bytearray(HEADER.pack(*header) + body)
    readdress(memoryview(batch), 7, 1, 5)
    struct.pack_into(">q", batch, 0, first)
    return next(split_batches(memoryview(batch)))


def numbered(count: int, *, size: int = 10) -> list[Record]:
    return [Record(100 + n, BASE_TIME + n, b"k%d" % n, bytes([n % 256]) * size, ()) for n in range(count)]


Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key, value."""


def message(row: Row, magic: int, attributes: int = 0) -> bytes:
    """One message by the layout in Kafka's protocol guide."""
    offset, timestamp, *fields = row
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in fields:
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(
    rows: Sequence[Row], magic: int, codec: Codec, *, base: int | None = None, attributes: int = 0, stamp: int = 99
) -> bytes:
    """A compressed set; in magic 1 its messages count their offsets from `base` on, by default from the first one."""
    start = (rows[0][0] if base is None else base) if magic else 0
    body = compress(codec, b"".join(message((row[0] - start, *row[1:]), magic) for row in rows))
    if codec is Codec.LZ4 and not magic:
        body = body[:6] + bytes([xxhash.xxh32_intdigest(body[:6]) >> 8 & 0xFF]) + body[7:]
    return message((rows[-1][0], stamp, None, body), magic, codec | attributes)


def seen(runs: Sequence[RecordRun]) -> list[Record]:
    """The records of finished runs at the offsets that the destination's log will give them."""
    found: list[Record] = []
    for run in runs:
        readdress(memoryview(run.batch), 1 << 62, 0, 9)
        assert DefaultRecordBatch(bytes(run.batch)).validate_crc(), "another client's check"
        [(header, batch)] = split_batches(memoryview(run.batch))
        assert crc_matches(header, batch)
        assert (header.base_offset, header.record_count) == (0, run.records)
        assert header.last_offset_delta == run.records - 1, "brokers append dense batches only"
        assert header.attributes & ~7 == 0
        records = list(decode_records(header, batch))
        assert [record.offset for record in records] == list(range(run.records))
        if records:
            assert header.max_timestamp == max(record.timestamp_ms for record in records)
        found += [Record(run.base_offset + r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records]
    return found
