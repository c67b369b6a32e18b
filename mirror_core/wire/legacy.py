"""Messages of magic 0 and 1 (before KIP-98) from old segments, rewritten as magic 2.

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
    LENGTH_PREFIX,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    OLDER_HEADER,
    OLDER_SIZES,
    BatchHeader,
    MalformedBatch,
)
from mirror_core.wire.encode import batch_of, record, varint
from mirror_core.wire.records import PLAIN_LIMIT, Codec, Plain, Record, decompress, wrapped
from mirror_core.wire.reencode import RUN_BYTES, Run, admitted

_CRC_END: Final = 16
_TIMESTAMP: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")
_NO_HEADERS: Final = varint(0)


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def decode(header: BatchHeader, message: memoryview, limit: int = PLAIN_LIMIT) -> Iterator[Record]:
    """As a consumer sees them.

    Raises MalformedBatch for wrong checksums or structure, and above `limit` decompressed bytes.
    """
    where = f"message at offset {header.base_offset}"
    outer, end = _message(message.tobytes(), 0, where)
    if end != len(message):
        raise MalformedBatch(f"{where}: {len(message) - end} bytes left after it")
    if not outer.attributes & CODEC_MASK:
        yield Record(outer.offset, outer.timestamp_ms, outer.key, outer.value, ())
        return
    data = _plain(outer, limit, where)
    # Relative offsets count from the first message, but the outer offset is the last one's (KIP-31).
    base = outer.offset - _last_offset(data, where) if outer.magic else 0
    if base < 0:
        raise MalformedBatch(f"{where}: its relative offsets reach back before offset 0")
    lowest, at = 0, 0
    while at < len(data):
        inner, at = _message(data, at, f"{where}, inside")
        offset = base + inner.offset
        if inner.magic != outer.magic or inner.attributes & CODEC_MASK:
            raise MalformedBatch(f"{where} holds one of magic {inner.magic}, attributes {inner.attributes}")
        if not lowest <= offset <= outer.offset:
            raise MalformedBatch(
                f"{where} holds one that claims offset {offset}, outside of {lowest} to {outer.offset}"
            )
        stamped = outer.attributes & LOG_APPEND_TIME  # unused in magic 0
        yield Record(offset, outer.timestamp_ms if stamped else inner.timestamp_ms, inner.key, inner.value, ())
        lowest = offset + 1


def dense_runs(header: BatchHeader, message: memoryview, start: int, limit: int = PLAIN_LIMIT) -> list[Run]:
    """As `reencode.split_into_runs`, but verifies checksums itself."""
    codec = header.attributes & CODEC_MASK
    return admitted(len(message), limit, lambda most: _runs(decode(header, message, limit), start, codec, most))


def _runs(decoded: Iterable[Record], start: int, codec: int, most: int) -> Iterator[Run]:
    first, count, base, latest, records = 0, 0, 0, 0, bytearray()
    for found in decoded:
        if found.offset < start:
            continue
        if not count or count == most or len(records) >= RUN_BYTES or found.offset != first + count:
            if count:
                yield Run(first, count, batch_of(records, count, codec, base, latest))
            first, count, records = found.offset, 0, bytearray()
            base = latest = found.timestamp_ms
        content = _field(found.key) + _field(found.value) + _NO_HEADERS
        records += record(wrapped(found.timestamp_ms - base), count, content)
        latest = max(latest, found.timestamp_ms)
        count += 1
    if count:
        yield Run(first, count, batch_of(records, count, codec, base, latest))


def _field(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def _plain(outer: _Message, limit: int, where: str) -> Plain:
    codec, body = outer.attributes & CODEC_MASK, outer.value
    if body is None or codec > Codec.LZ4:
        raise MalformedBatch(f"{where}: nothing that could be decompressed with codec {codec}")
    if codec == Codec.LZ4 and not outer.magic:
        body = _mended(body)
    data = decompress(codec, body, limit)
    if not data:
        raise MalformedBatch(f"{where}: a compressed set of no messages")
    return data


def _mended(frame: bytes) -> bytes:
    """Corrects an lz4 header checksum that writers of magic 0 computed wrongly (KAFKA-3160).

    Safe: the message's CRC-32 covers the frame.
    """
    if len(frame) < 7:
        return frame
    end = 14 if frame[4] & 0x08 else 6  # a content size lies between
    return frame[:end] + bytes([xxhash.xxh32_intdigest(frame[4:end]) >> 8 & 0xFF]) + frame[end + 1 :]


def _last_offset(data: Plain, where: str) -> int:
    at, last = 0, -1
    while at < len(data):
        if at + LENGTH_PREFIX > len(data):
            raise MalformedBatch(f"{where}: the set in it is cut off")
        (last,) = _TIMESTAMP.unpack_from(data, at)
        (size,) = _SIZE.unpack_from(data, at + 8)
        if size <= 0:
            raise MalformedBatch(f"{where}: holds a message of length {size}")
        at += LENGTH_PREFIX + size
    return last


def _message(data: Plain, start: int, where: str) -> tuple[_Message, int]:
    """A verified message, and the position after it."""
    if start + OLDER_HEADER.size > len(data):
        raise MalformedBatch(f"{where}: cut off")
    offset, size, crc, magic, attributes = OLDER_HEADER.unpack_from(data, start)
    end = start + LENGTH_PREFIX + size
    if magic > 1 or size < OLDER_SIZES[magic] - LENGTH_PREFIX or end > len(data):
        raise MalformedBatch(f"{where}: {size} bytes of magic {magic} announced, {len(data) - start} there")
    if zlib.crc32(memoryview(data)[start + _CRC_END : end]) != crc:
        raise MalformedBatch(f"{where}: its CRC-32 does not match")
    at, timestamp = start + OLDER_HEADER.size, NO_TIMESTAMP
    if magic:
        (timestamp,) = _TIMESTAMP.unpack_from(data, at)
        at += _TIMESTAMP.size
    key, at = _bytes(data, at, end, where)
    value, at = _bytes(data, at, end, where)
    if at != end:
        raise MalformedBatch(f"{where}: {end - at} bytes left behind its value")
    return _Message(offset, magic, attributes, timestamp, key, value), end


def _bytes(data: Plain, at: int, end: int, where: str) -> tuple[bytes | None, int]:
    if at + _SIZE.size > end:
        raise MalformedBatch(f"{where}: a length is cut off")
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise MalformedBatch(f"{where}: {size} bytes announced, {end - at} there")
    return data[at : at + size], at + size
