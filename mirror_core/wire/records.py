"""Records inside a batch of format v2: every codec that brokers store, and nothing thrown away.

Other decoders refuse a header whose name is not UTF-8. Here names stay bytes: such records exist, and must be compared
and saved like all others. Damaged bytes give MalformedBatch and nothing else.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

import cramjam

from mirror_core.wire.batch import CODEC_MASK, HEADER_SIZE, LOG_APPEND_TIME, BatchHeader, MalformedBatch

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as a consumer sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def decode(header: BatchHeader, batch: Buffer) -> Iterator[Record]:
    """The records of a data batch, in order. `batch` are all its bytes, header included, compressed as they come.

    With a delete horizon set (attribute bit 6) the base timestamp is that horizon; deltas count from it all the same.
    """
    data = decompress(header.attributes & CODEC_MASK, memoryview(batch)[HEADER_SIZE:])
    stamped = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    where = f"batch at offset {header.base_offset}"
    at = 0
    for _ in range(header.record_count):
        try:
            record, at = _record(header, stamped, data, at)
        except IndexError:
            raise MalformedBatch(f"{where}: a record ends behind the batch") from None
        yield record
    if at != len(data):
        raise MalformedBatch(f"{where}: {len(data) - at} bytes left after its {header.record_count} records")


def is_abort_marker(header: BatchHeader, batch: Buffer) -> bool:
    """Whether a control batch ends a transaction by aborting it: its key is version and type, and type 0 is abort."""
    marker = next(decode(header, batch), None)
    if marker is None or marker.key is None or len(marker.key) < 4:
        raise MalformedBatch(f"control batch at offset {header.base_offset} without a marker")
    return marker.key[2:4] == b"\0\0"


def decompress(codec: int, body: Buffer) -> bytes:
    """The plain bytes of records."""
    try:
        undo = _DECOMPRESS[codec]
    except KeyError:
        raise MalformedBatch(f"compression codec {codec} does not exist") from None
    try:
        return undo(bytes(body))
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError) as error:
        raise MalformedBatch(f"{Codec(codec).name.lower()} data cannot be decompressed: {error}") from None


def _record(header: BatchHeader, stamped: int | None, data: bytes, at: int) -> tuple[Record, int]:
    size, at = varint(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise IndexError
    timestamp_delta, at = varint(data, at + 1)  # the byte passed over are the record's attributes: unused in v2
    offset_delta, at = varint(data, at)
    key, at = _bytes(data, at, end)
    value, at = _bytes(data, at, end)
    count, at = varint(data, at)
    headers = []
    for _ in range(count):
        name, at = _bytes(data, at, end)
        content, at = _bytes(data, at, end)
        if name is None:
            raise MalformedBatch(f"batch at offset {header.base_offset}: a header without a name")
        headers.append((name, content))
    if count < 0 or at != end:
        raise MalformedBatch(f"batch at offset {header.base_offset}: a record is not as long as it says")
    timestamp = header.base_timestamp + timestamp_delta if stamped is None else stamped
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), end


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = varint(data, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise IndexError
    return data[at : at + size], at + size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    byte = data[at]
    at += 1
    if byte < 0x80:  # nearly always: lengths below 64, deltas of small batches
        return (byte >> 1) ^ -(byte & 1), at
    raw = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
        if shift > 63:
            raise MalformedBatch("a varint of more than 10 bytes")


_XERIAL: Final = b"\x82SNAPPY\0"


def _snappy(body: bytes) -> bytes:
    """Java writes snappy in xerial's framing: 16 bytes of header, then blocks with lengths; others write it bare."""
    if body[:8] != _XERIAL:
        return bytes(cramjam.snappy.decompress_raw(body))
    plain = []
    at = 16
    while at < len(body):
        (size,) = struct.unpack_from(">I", body, at)
        at += 4
        if at + size > len(body):
            raise ValueError("a snappy block ends behind the batch")
        plain.append(bytes(cramjam.snappy.decompress_raw(body[at : at + size])))
        at += size
    return b"".join(plain)


_DECOMPRESS: Final[Mapping[int, Callable[[bytes], bytes]]] = MappingProxyType(
    {
        Codec.NONE: lambda body: body,
        Codec.GZIP: lambda body: zlib.decompress(body, 31),
        Codec.SNAPPY: _snappy,
        Codec.LZ4: lambda body: bytes(cramjam.lz4.decompress(body)),
        Codec.ZSTD: lambda body: bytes(cramjam.zstd.decompress(body)),
    }
)
