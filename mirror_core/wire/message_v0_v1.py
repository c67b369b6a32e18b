"""Messages of magic 0 and 1 (before KIP-98), rewritten as magic 2.

Offset, length, CRC-32 (of what follows), magic, attributes, in magic 1 a timestamp, key, value. A compressed one's
value is a set of messages, its offset that of the last; inner offsets are absolute in magic 0, relative in magic 1
(KIP-31). Brokers 4.x read but no longer append them (KIP-724).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import xxhash

from mirror_core.wire.batch import (
    CODEC_MASK,
    LEGACY_HEADER,
    LENGTH_PREFIX,
    LOG_APPEND_TIME,
    MIN_LEGACY_SIZES,
    NO_TIMESTAMP,
    BatchHeader,
    MalformedBatch,
)
from mirror_core.wire.batch_encoder import build_batch, encode_record, encode_varint
from mirror_core.wire.records import MAX_PLAIN_BYTES, Codec, PlainBytes, Record, decompress, wrap_int64
from mirror_core.wire.reencode import MAX_RUN_BYTES, RecordRun, limit_run_sizes

_CRC_END: Final = 16
_TIMESTAMP: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")
_NO_HEADERS: Final = encode_varint(0)


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def decode_message(header: BatchHeader, message: memoryview, limit: int = MAX_PLAIN_BYTES) -> Iterator[Record]:
    """As a consumer sees them.

    MalformedBatch for wrong checksums or structure, and above `limit` decompressed bytes.
    """
    location = f"message at offset {header.base_offset}"
    outer, end = _parse_message(message.tobytes(), 0, location)
    if end != len(message):
        raise MalformedBatch(f"{location}: {len(message) - end} bytes left after it")
    if not outer.attributes & CODEC_MASK:
        yield Record(outer.offset, outer.timestamp_ms, outer.key, outer.value, ())
        return
    data = _decompress_set(outer, limit, location)
    # Relative offsets count from the first message, but the outer offset is the last one's (KIP-31).
    base = outer.offset - _find_last_offset(data, location) if outer.magic else 0
    if base < 0:
        raise MalformedBatch(f"{location}: its relative offsets reach back before offset 0")
    lowest, position = 0, 0
    while position < len(data):
        inner, position = _parse_message(data, position, f"{location}, inside")
        offset = base + inner.offset
        if inner.magic != outer.magic or inner.attributes & CODEC_MASK:
            raise MalformedBatch(f"{location} holds one of magic {inner.magic}, attributes {inner.attributes}")
        if not lowest <= offset <= outer.offset:
            raise MalformedBatch(
                f"{location} holds one that claims offset {offset}, outside of {lowest} to {outer.offset}"
            )
        has_append_time = outer.attributes & LOG_APPEND_TIME  # unused in magic 0
        yield Record(offset, outer.timestamp_ms if has_append_time else inner.timestamp_ms, inner.key, inner.value, ())
        lowest = offset + 1


def split_message_into_runs(
    header: BatchHeader, message: memoryview, start: int, limit: int = MAX_PLAIN_BYTES
) -> list[RecordRun]:
    """As `reencode.split_into_runs`, but verifies checksums itself."""
    codec = header.attributes & CODEC_MASK
    return limit_run_sizes(
        len(message),
        limit,
        lambda max_records: _build_runs(decode_message(header, message, limit), start, codec, max_records),
    )


def _build_runs(decoded: Iterable[Record], start: int, codec: int, max_records: int) -> Iterator[RecordRun]:
    first, count, base, latest, records = 0, 0, 0, 0, bytearray()
    for decoded_record in decoded:
        if decoded_record.offset < start:
            continue
        if not count or count == max_records or len(records) >= MAX_RUN_BYTES or decoded_record.offset != first + count:
            if count:
                yield RecordRun(first, count, build_batch(records, count, codec, base, latest))
            first, count, records = decoded_record.offset, 0, bytearray()
            base = latest = decoded_record.timestamp_ms
        content = _encode_field(decoded_record.key) + _encode_field(decoded_record.value) + _NO_HEADERS
        records += encode_record(wrap_int64(decoded_record.timestamp_ms - base), count, content)
        latest = max(latest, decoded_record.timestamp_ms)
        count += 1
    if count:
        yield RecordRun(first, count, build_batch(records, count, codec, base, latest))


def _encode_field(content: bytes | None) -> bytes:
    return encode_varint(-1) if content is None else encode_varint(len(content)) + content


def _decompress_set(outer: _Message, limit: int, location: str) -> PlainBytes:
    codec, body = outer.attributes & CODEC_MASK, outer.value
    if body is None or codec > Codec.LZ4:
        raise MalformedBatch(f"{location}: nothing that could be decompressed with codec {codec}")
    if codec == Codec.LZ4 and not outer.magic:
        body = _fix_lz4_checksum(body)
    data = decompress(codec, body, limit)
    if not data:
        raise MalformedBatch(f"{location}: a compressed set of no messages")
    return data


def _fix_lz4_checksum(frame: bytes) -> bytes:
    """Writers of magic 0 computed it wrongly (KAFKA-3160). Safe: the message's CRC-32 covers the frame."""
    if len(frame) < 7:
        return frame
    end = 14 if frame[4] & 0x08 else 6  # a content size lies between
    return frame[:end] + bytes([xxhash.xxh32_intdigest(frame[4:end]) >> 8 & 0xFF]) + frame[end + 1 :]


def _find_last_offset(data: PlainBytes, location: str) -> int:
    position, last = 0, -1
    while position < len(data):
        if position + LENGTH_PREFIX > len(data):
            raise MalformedBatch(f"{location}: the set in it is cut off")
        (last,) = _TIMESTAMP.unpack_from(data, position)
        (size,) = _SIZE.unpack_from(data, position + 8)
        if size <= 0:
            raise MalformedBatch(f"{location}: holds a message of length {size}")
        position += LENGTH_PREFIX + size
    return last


def _parse_message(data: PlainBytes, start: int, location: str) -> tuple[_Message, int]:
    if start + LEGACY_HEADER.size > len(data):
        raise MalformedBatch(f"{location}: cut off")
    offset, size, crc, magic, attributes = LEGACY_HEADER.unpack_from(data, start)
    end = start + LENGTH_PREFIX + size
    if magic > 1 or size < MIN_LEGACY_SIZES[magic] - LENGTH_PREFIX or end > len(data):
        raise MalformedBatch(f"{location}: {size} bytes of magic {magic} announced, {len(data) - start} there")
    if zlib.crc32(memoryview(data)[start + _CRC_END : end]) != crc:
        raise MalformedBatch(f"{location}: its CRC-32 does not match")
    position, timestamp = start + LEGACY_HEADER.size, NO_TIMESTAMP
    if magic:
        (timestamp,) = _TIMESTAMP.unpack_from(data, position)
        position += _TIMESTAMP.size
    key, position = _read_bytes(data, position, end, location)
    value, position = _read_bytes(data, position, end, location)
    if position != end:
        raise MalformedBatch(f"{location}: {end - position} bytes left behind its value")
    return _Message(offset, magic, attributes, timestamp, key, value), end


def _read_bytes(data: PlainBytes, position: int, end: int, location: str) -> tuple[bytes | None, int]:
    if position + _SIZE.size > end:
        raise MalformedBatch(f"{location}: a length is cut off")
    (size,) = _SIZE.unpack_from(data, position)
    position += _SIZE.size
    if size == -1:
        return None, position
    if size < 0 or position + size > end:
        raise MalformedBatch(f"{location}: {size} bytes announced, {end - position} there")
    return data[position : position + size], position + size
