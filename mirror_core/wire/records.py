"""Decodes records of a batch (magic 2), with every codec that brokers store."""

from __future__ import annotations

import mmap
import struct
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import cramjam

from mirror_core.wire.batch import CODEC_MASK, HEADER_SIZE, LOG_APPEND_TIME, BatchHeader, MalformedBatch

Buffer = bytes | bytearray | memoryview
PlainBytes = bytes | mmap.mmap
"""Both are sliced to bytes."""


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def decode_records(header: BatchHeader, batch: Buffer) -> Iterator[Record]:
    """Deltas count from the base timestamp, even where that is a delete horizon (attribute bit 6)."""
    data = decompress(header.attributes & CODEC_MASK, memoryview(batch)[HEADER_SIZE:])
    append_time_ms = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    location = f"batch at offset {header.base_offset}"
    position = 0
    for _ in range(header.record_count):
        try:
            record, position = _decode_record(header, append_time_ms, data, position)
        except IndexError:
            raise MalformedBatch(f"{location}: a record ends behind the batch") from None
        yield record
    if position != len(data):
        raise MalformedBatch(f"{location}: {len(data) - position} bytes left after its {header.record_count} records")


def decode_placed_records(header: BatchHeader, batch: Buffer) -> Iterator[Record]:
    """As `decode_records`; MalformedBatch for an offset outside of the batch or out of order.

    Brokers accept them uncompressed, and clients hand them out: whoever looks for records by offset would miss them.
    """
    lowest = header.base_offset
    for record in decode_records(header, batch):
        if not lowest <= record.offset <= header.last_offset:
            raise MalformedBatch(_format_misplaced(header, record.offset, lowest))
        yield record
        lowest = record.offset + 1


def _format_misplaced(header: BatchHeader, offset: int, lowest: int) -> str:
    return (
        f"batch at offset {header.base_offset}: a record claims offset {offset}, outside of {lowest} to"
        f" {header.last_offset}"
    )


class RecordSpan(NamedTuple):
    """In the decompressed bytes."""

    start: int
    timestamp_delta: int
    offset_delta: int
    content: int
    """Where its key's length begins. Only earlier bytes may be rewritten."""
    end: int


def find_record_spans(header: BatchHeader, data: PlainBytes) -> Iterator[RecordSpan]:
    """Without decoding.

    Also raises MalformedBatch for offsets out of order or range: a rewrite would move such records.
    """
    position, lowest = 0, 0
    location = f"batch at offset {header.base_offset}"
    for _ in range(header.record_count):
        try:
            span = _parse_span(data, position)
        except IndexError:
            raise MalformedBatch(f"{location}: a record is not as long as it says") from None
        if not lowest <= span.offset_delta <= header.last_offset_delta:
            offset, first = header.base_offset + span.offset_delta, header.base_offset + lowest
            raise MalformedBatch(_format_misplaced(header, offset, first))
        yield span
        lowest = span.offset_delta + 1
        position = span.end
    if position != len(data):
        raise MalformedBatch(f"{location}: {len(data) - position} bytes left after its {header.record_count} records")


def _parse_span(data: PlainBytes, start: int) -> RecordSpan:
    size, position = decode_varint(data, start)
    end = position + size
    if size < 0 or end > len(data):
        raise IndexError
    timestamp_delta, position = decode_varint(data, position + 1)
    offset_delta, content = decode_varint(data, position)
    position = content
    for _ in range(2):
        size, position = decode_varint(data, position)
        position += max(size, 0)
    count, position = decode_varint(data, position)
    for _ in range(count):
        size, position = decode_varint(data, position)
        if size < 0 or position > end:
            raise IndexError
        size, position = decode_varint(data, position + size)
        position += max(size, 0)
    if count < 0 or position != end:
        raise IndexError
    return RecordSpan(start, timestamp_delta, offset_delta, content, end)


def is_abort_marker(header: BatchHeader, batch: Buffer) -> bool:
    """The key is version and type; type 0 is abort."""
    marker = next(decode_records(header, batch), None)
    if marker is None or marker.key is None or len(marker.key) < 4:
        raise MalformedBatch(f"control batch at offset {header.base_offset} without a marker")
    return marker.key[2:4] == b"\0\0"


MAX_HEADERS: Final = 1 << 16
"""Each takes two bytes at least, and some hundred once decoded."""
UNDECODED_HEADERS: Final = b"mirrorbook.undecoded-headers"
"""The only header of a record with more: its value is their count and bytes, as stored."""
MAX_PLAIN_BYTES: Final = 128 << 20
"""Per batch, as many as an uncompressed one may have. Producers batch before compression, so valid batches are far
smaller.
"""
_UNBUDGETED_BYTES: Final = 16 << 20
"""For any batch, outside of the budget."""
_MAX_RATIO: Final = 1_032
"""Per compressed byte above that: gzip's highest. 10 KB of zstd may expand to gigabytes."""


class DecompressionBudget:
    """Limits this process's large decompressed batches.

    A thread waits for memory unless it holds some itself (both sides of a comparison), or a timeout passes.
    """

    def __init__(self, budget: int, wait_timeout_s: float = 10.0) -> None:
        self._budget = self._free = budget
        self._wait_timeout_s = wait_timeout_s
        self._holders = Counter[int]()
        self._changed = threading.Condition(threading.RLock())  # garbage collection may release memory inside it

    @property
    def used_bytes(self) -> int:
        return self._budget - self._free

    def allocate(self, max_bytes: int, write: Callable[[mmap.mmap], int]) -> mmap.mmap:
        """`write` returns how many bytes it wrote. Counted until garbage collection; untouched pages take no memory."""
        holder = threading.get_ident()
        with self._changed:
            self._changed.wait_for(
                lambda: self._free >= min(max_bytes, self._budget) or self._holders[holder], self._wait_timeout_s
            )
            self._free -= max_bytes
            self._holders[holder] += 1
        try:
            buffer = mmap.mmap(-1, max_bytes)
            try:
                size = write(buffer)
                buffer.resize(max(1, size))
            except BaseException:
                buffer.close()
                raise
        except BaseException:
            self._release(holder, max_bytes)
            raise
        self._release(holder, max_bytes - size, is_last=False)
        weakref.finalize(buffer, self._release, holder, size)
        return buffer

    def _release(self, holder: int, size: int, *, is_last: bool = True) -> None:
        with self._changed:
            self._free += size
            if is_last:
                self._holders[holder] -= 1
                self._holders += Counter()  # drops zeroes
            self._changed.notify_all()


DECOMPRESSION_BUDGET: Final = DecompressionBudget(2 * MAX_PLAIN_BYTES)


def decompress(codec: int, body: Buffer, limit: int = MAX_PLAIN_BYTES) -> PlainBytes:
    """MalformedBatch above `limit`, or above what a batch of this size may hold."""
    try:
        decompressor = _DECOMPRESS[codec]
    except KeyError:
        raise MalformedBatch(f"compression codec {codec} does not exist") from None
    allowed = min(limit, max(_UNBUDGETED_BYTES, _MAX_RATIO * len(body)))
    compressed = bytes(body)
    try:
        try:
            return decompressor(compressed, min(allowed, _UNBUDGETED_BYTES))
        except _DECOMPRESSION_ERRORS:
            if allowed <= _UNBUDGETED_BYTES:
                raise
        return DECOMPRESSION_BUDGET.allocate(allowed, lambda buffer: _DECOMPRESS_INTO[codec](compressed, buffer))
    except _DECOMPRESSION_ERRORS as error:
        raise MalformedBatch(f"{Codec(codec).name.lower()} data cannot be decompressed: {error}") from None


def _decode_record(
    header: BatchHeader, append_time_ms: int | None, data: PlainBytes, position: int
) -> tuple[Record, int]:
    size, position = decode_varint(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise IndexError
    timestamp_delta, position = decode_varint(data, position + 1)  # skips the unused attributes
    offset_delta, position = decode_varint(data, position)
    key, position = _decode_bytes(data, position, end)
    value, position = _decode_bytes(data, position, end)
    headers_start = position
    count, position = decode_varint(data, position)
    headers = list[tuple[bytes, bytes | None]]()
    if count > MAX_HEADERS:
        if 2 * count > end - position:
            raise MalformedBatch(f"batch at offset {header.base_offset}: a record is not as long as it says")
        headers.append((UNDECODED_HEADERS, data[headers_start:end]))
        count, position = 0, end
    for _ in range(count):
        name, position = _decode_bytes(data, position, end)
        content, position = _decode_bytes(data, position, end)
        if name is None:
            raise MalformedBatch(f"batch at offset {header.base_offset}: a header without a name")
        headers.append((name, content))
    if count < 0 or position != end:
        raise MalformedBatch(f"batch at offset {header.base_offset}: a record is not as long as it says")
    timestamp = wrap_int64(header.base_timestamp + timestamp_delta) if append_time_ms is None else append_time_ms
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), end


def _decode_bytes(data: PlainBytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = decode_varint(data, position)
    if size < 0:
        return None, position
    if position + size > end:
        raise IndexError
    return data[position : position + size], position + size


def wrap_int64(timestamp: int) -> int:
    """64-bit overflow, as Java's consumers see it."""
    if -1 << 63 <= timestamp < 1 << 63:
        return timestamp
    return (timestamp + (1 << 63)) % (1 << 64) - (1 << 63)


def decode_varint(data: PlainBytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and the position after it."""
    byte = data[position]
    position += 1
    if byte < 0x80:  # nearly always
        return (byte >> 1) ^ -(byte & 1), position
    raw = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> 64:
                raise MalformedBatch("a varint of more than 64 bits")
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift > 63:
            raise MalformedBatch("a varint of more than 10 bytes")


_DECOMPRESSION_ERRORS: Final = (cramjam.DecompressionError, zlib.error, struct.error, ValueError)
_GUESSED_RATIO: Final = 8
_GZIP_CHUNK_BYTES: Final = 1 << 20
XERIAL_MAGIC: Final = b"\x82SNAPPY\0"


def _decompress_bounded(decompressor: Callable[[bytes, bytearray | mmap.mmap], int], body: bytes, limit: int) -> bytes:
    """A small buffer first: the codecs only respect the buffer's size."""
    small = bytearray(min(limit, _GUESSED_RATIO * len(body)))
    with suppress(cramjam.DecompressionError):
        size = decompressor(body, small)
        return bytes(memoryview(small)[:size])
    with mmap.mmap(-1, limit) as large:
        return large[: _decompress_into(decompressor, body, large)]


def _decompress_into(decompressor: Callable[[bytes, mmap.mmap], int], body: bytes, buffer: mmap.mmap) -> int:
    try:
        return decompressor(body, buffer)
    except cramjam.DecompressionError as error:
        raise ValueError(f"{error} (up to {len(buffer)} bytes are allowed)") from None


def _gunzip_into(body: bytes, buffer: mmap.mmap) -> int:
    member, position = zlib.decompressobj(31), 0
    while not member.eof and (piece := member.decompress(body, _GZIP_CHUNK_BYTES)):
        if position + len(piece) > len(buffer):
            raise ValueError(f"more than {len(buffer)} bytes")
        buffer[position : position + len(piece)] = piece
        position += len(piece)
        body = member.unconsumed_tail
    if not member.eof or member.unused_data:
        raise ValueError("not one whole gzip member")
    return position


def _unsnappy_into(body: bytes, buffer: mmap.mmap) -> int:
    position = 0
    for block in _split_snappy_blocks(body):
        plain = _unsnappy_block(block, len(buffer) - position)
        buffer[position : position + len(plain)] = plain
        position += len(plain)
    return position


def _gunzip(body: bytes, limit: int) -> bytes:
    member = zlib.decompressobj(31)
    plain = member.decompress(body, limit + 1)
    if len(plain) > limit:
        raise ValueError(f"more than {limit} bytes")
    if not member.eof or member.unused_data:
        raise ValueError("not one whole gzip member")
    return plain


def _unsnappy(body: bytes, limit: int) -> bytes:
    """Java uses xerial framing (16 bytes of header, then blocks with lengths); others write raw snappy."""
    if body[:8] != XERIAL_MAGIC:
        return _unsnappy_block(body, limit)
    plain = []
    for block in _split_snappy_blocks(body):
        plain.append(_unsnappy_block(block, limit))
        limit -= len(plain[-1])
    return b"".join(plain)


def _split_snappy_blocks(body: bytes) -> Iterator[bytes]:
    if body[:8] != XERIAL_MAGIC:
        yield body
        return
    position = 16
    while position < len(body):
        (size,) = struct.unpack_from(">I", body, position)
        position += 4
        if position + size > len(body):
            raise ValueError("a snappy block ends behind the batch")
        yield body[position : position + size]
        position += size


def _unsnappy_block(block: bytes, limit: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > limit:
        raise ValueError(f"more than {limit} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _return_plain(body: bytes, limit: int) -> bytes:
    return body


_DECOMPRESS: Final[Mapping[int, Callable[[bytes, int], bytes]]] = MappingProxyType(
    {
        Codec.NONE: _return_plain,
        Codec.GZIP: _gunzip,
        Codec.SNAPPY: _unsnappy,
        Codec.LZ4: lambda body, limit: _decompress_bounded(cramjam.lz4.decompress_into, body, limit),
        Codec.ZSTD: lambda body, limit: _decompress_bounded(cramjam.zstd.decompress_into, body, limit),
    }
)
_DECOMPRESS_INTO: Final[Mapping[int, Callable[[bytes, mmap.mmap], int]]] = MappingProxyType(
    {
        Codec.GZIP: _gunzip_into,
        Codec.SNAPPY: _unsnappy_into,
        Codec.LZ4: lambda body, room: _decompress_into(cramjam.lz4.decompress_into, body, room),
        Codec.ZSTD: lambda body, room: _decompress_into(cramjam.zstd.decompress_into, body, room),
    }
)
