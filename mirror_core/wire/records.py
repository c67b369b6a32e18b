"""Decodes records of a batch (magic 2), with every codec that brokers store.

Names of headers stay bytes: some are not UTF-8 and must be compared and saved. Damaged bytes raise MalformedBatch
only.
"""

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
Plain = bytes | mmap.mmap
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


def decode(header: BatchHeader, batch: Buffer) -> Iterator[Record]:
    """Deltas count from the base timestamp, even where that is a delete horizon (attribute bit 6)."""
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


class Span(NamedTuple):
    """Position of a record in the decompressed bytes."""

    start: int
    timestamp_delta: int
    offset_delta: int
    content: int
    """Where its key's length begins. Only earlier bytes may be rewritten."""
    end: int


def spans(header: BatchHeader, data: Plain) -> Iterator[Span]:
    """Finds records without decoding them.

    Also raises MalformedBatch for offsets out of order or range: a rewrite would move such records.
    """
    at, lowest = 0, 0
    where = f"batch at offset {header.base_offset}"
    for _ in range(header.record_count):
        try:
            span = _span(data, at)
        except IndexError:
            raise MalformedBatch(f"{where}: a record is not as long as it says") from None
        if not lowest <= span.offset_delta <= header.last_offset_delta:
            raise MalformedBatch(
                f"{where}: a record claims offset {header.base_offset + span.offset_delta}, outside of "
                f"{header.base_offset + lowest} to {header.last_offset}"
            )
        yield span
        lowest = span.offset_delta + 1
        at = span.end
    if at != len(data):
        raise MalformedBatch(f"{where}: {len(data) - at} bytes left after its {header.record_count} records")


def _span(data: Plain, start: int) -> Span:
    size, at = varint(data, start)
    end = at + size
    if size < 0 or end > len(data):
        raise IndexError
    timestamp_delta, at = varint(data, at + 1)
    offset_delta, content = varint(data, at)
    at = content
    for _ in range(2):
        size, at = varint(data, at)
        at += max(size, 0)
    count, at = varint(data, at)
    for _ in range(count):
        size, at = varint(data, at)
        if size < 0 or at > end:
            raise IndexError
        size, at = varint(data, at + size)
        at += max(size, 0)
    if count < 0 or at != end:
        raise IndexError
    return Span(start, timestamp_delta, offset_delta, content, end)


def is_abort_marker(header: BatchHeader, batch: Buffer) -> bool:
    """The key is version and type; type 0 is abort."""
    marker = next(decode(header, batch), None)
    if marker is None or marker.key is None or len(marker.key) < 4:
        raise MalformedBatch(f"control batch at offset {header.base_offset} without a marker")
    return marker.key[2:4] == b"\0\0"


PLAIN_LIMIT: Final = 128 << 20
"""Per batch, as many as an uncompressed one may have. Producers batch before compression, so valid
batches are far smaller."""
_SMALL: Final = 16 << 20
"""For any batch, outside of the budget."""
_MAX_RATIO: Final = 1_032
"""Per compressed byte above that, the most that gzip reaches. 10 KB of zstd may expand to gigabytes."""


class PlainMemory:
    """Limits this process's large decompressed batches.

    A thread waits for memory unless it holds some itself (both sides of a comparison), or a timeout passes.
    """

    def __init__(self, budget: int, patience_s: float = 10.0) -> None:
        self._budget = self._free = budget
        self._patience_s = patience_s
        self._holders = Counter[int]()
        self._changed = threading.Condition(threading.RLock())  # garbage collection may release memory inside it

    @property
    def held(self) -> int:
        return self._budget - self._free

    def fill(self, most: int, write: Callable[[mmap.mmap], int]) -> mmap.mmap:
        """`write` returns how many bytes it wrote. Counted until garbage collection; untouched pages take no
        memory."""
        holder = threading.get_ident()
        with self._changed:
            self._changed.wait_for(
                lambda: self._free >= min(most, self._budget) or self._holders[holder], self._patience_s
            )
            self._free -= most
            self._holders[holder] += 1
        try:
            room = mmap.mmap(-1, most)
            try:
                size = write(room)
                room.resize(max(1, size))
            except BaseException:
                room.close()
                raise
        except BaseException:
            self._release(holder, most)
            raise
        self._release(holder, most - size, last=False)
        weakref.finalize(room, self._release, holder, size)
        return room

    def _release(self, holder: int, size: int, *, last: bool = True) -> None:
        with self._changed:
            self._free += size
            if last:
                self._holders[holder] -= 1
                self._holders += Counter()  # drops zeroes
            self._changed.notify_all()


PLAIN_MEMORY: Final = PlainMemory(2 * PLAIN_LIMIT)


def decompress(codec: int, body: Buffer, limit: int = PLAIN_LIMIT) -> Plain:
    """Raises MalformedBatch above `limit`, or above what a batch of this size may hold."""
    try:
        undo = _DECOMPRESS[codec]
    except KeyError:
        raise MalformedBatch(f"compression codec {codec} does not exist") from None
    allowed = min(limit, max(_SMALL, _MAX_RATIO * len(body)))
    compressed = bytes(body)
    try:
        try:
            return undo(compressed, min(allowed, _SMALL))
        except _UNDONE:
            if allowed <= _SMALL:
                raise
        return PLAIN_MEMORY.fill(allowed, lambda room: _DECOMPRESS_INTO[codec](compressed, room))
    except _UNDONE as error:
        raise MalformedBatch(f"{Codec(codec).name.lower()} data cannot be decompressed: {error}") from None


def _record(header: BatchHeader, stamped: int | None, data: Plain, at: int) -> tuple[Record, int]:
    size, at = varint(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise IndexError
    timestamp_delta, at = varint(data, at + 1)  # skips the unused attributes
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
    timestamp = wrapped(header.base_timestamp + timestamp_delta) if stamped is None else stamped
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), end


def _bytes(data: Plain, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = varint(data, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise IndexError
    return data[at : at + size], at + size


def wrapped(timestamp: int) -> int:
    """64-bit overflow, as Java's consumers see it."""
    if -1 << 63 <= timestamp < 1 << 63:
        return timestamp
    return (timestamp + (1 << 63)) % (1 << 64) - (1 << 63)


def varint(data: Plain, at: int) -> tuple[int, int]:
    """A zigzag varint, and the position after it."""
    byte = data[at]
    at += 1
    if byte < 0x80:  # nearly always
        return (byte >> 1) ^ -(byte & 1), at
    raw = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> 64:
                raise MalformedBatch("a varint of more than 64 bits")
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
        if shift > 63:
            raise MalformedBatch("a varint of more than 10 bytes")


_UNDONE: Final = (cramjam.DecompressionError, zlib.error, struct.error, ValueError)
_GUESS: Final = 8
_PIECE: Final = 1 << 20
XERIAL: Final = b"\x82SNAPPY\0"


def _bounded(undo: Callable[[bytes, bytearray | mmap.mmap], int], body: bytes, limit: int) -> bytes:
    """Tries a small buffer first: the codecs only respect the buffer's size."""
    small = bytearray(min(limit, _GUESS * len(body)))
    with suppress(cramjam.DecompressionError):
        size = undo(body, small)
        return bytes(memoryview(small)[:size])
    with mmap.mmap(-1, limit) as large:
        return large[: _into(undo, body, large)]


def _into(undo: Callable[[bytes, mmap.mmap], int], body: bytes, room: mmap.mmap) -> int:
    try:
        return undo(body, room)
    except cramjam.DecompressionError as error:
        raise ValueError(f"{error} (up to {len(room)} bytes are allowed)") from None


def _gzip_into(body: bytes, room: mmap.mmap) -> int:
    member, at = zlib.decompressobj(31), 0
    while not member.eof and (piece := member.decompress(body, _PIECE)):
        if at + len(piece) > len(room):
            raise ValueError(f"more than {len(room)} bytes")
        room[at : at + len(piece)] = piece
        at += len(piece)
        body = member.unconsumed_tail
    if not member.eof or member.unused_data:
        raise ValueError("not one whole gzip member")
    return at


def _snappy_into(body: bytes, room: mmap.mmap) -> int:
    at = 0
    for block in _snappy_blocks(body):
        plain = _snappy_block(block, len(room) - at)
        room[at : at + len(plain)] = plain
        at += len(plain)
    return at


def _gzip(body: bytes, limit: int) -> bytes:
    member = zlib.decompressobj(31)
    plain = member.decompress(body, limit + 1)
    if len(plain) > limit:
        raise ValueError(f"more than {limit} bytes")
    if not member.eof or member.unused_data:
        raise ValueError("not one whole gzip member")
    return plain


def _snappy(body: bytes, limit: int) -> bytes:
    """Java uses xerial framing (16 bytes of header, then blocks with lengths); others write raw snappy."""
    if body[:8] != XERIAL:
        return _snappy_block(body, limit)
    plain = []
    for block in _snappy_blocks(body):
        plain.append(_snappy_block(block, limit))
        limit -= len(plain[-1])
    return b"".join(plain)


def _snappy_blocks(body: bytes) -> Iterator[bytes]:
    if body[:8] != XERIAL:
        yield body
        return
    at = 16
    while at < len(body):
        (size,) = struct.unpack_from(">I", body, at)
        at += 4
        if at + size > len(body):
            raise ValueError("a snappy block ends behind the batch")
        yield body[at : at + size]
        at += size


def _snappy_block(block: bytes, limit: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > limit:
        raise ValueError(f"more than {limit} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _none(body: bytes, limit: int) -> bytes:
    return body


_DECOMPRESS: Final[Mapping[int, Callable[[bytes, int], bytes]]] = MappingProxyType(
    {
        Codec.NONE: _none,
        Codec.GZIP: _gzip,
        Codec.SNAPPY: _snappy,
        Codec.LZ4: lambda body, limit: _bounded(cramjam.lz4.decompress_into, body, limit),
        Codec.ZSTD: lambda body, limit: _bounded(cramjam.zstd.decompress_into, body, limit),
    }
)
_DECOMPRESS_INTO: Final[Mapping[int, Callable[[bytes, mmap.mmap], int]]] = MappingProxyType(
    {
        Codec.GZIP: _gzip_into,
        Codec.SNAPPY: _snappy_into,
        Codec.LZ4: lambda body, room: _into(cramjam.lz4.decompress_into, body, room),
        Codec.ZSTD: lambda body, room: _into(cramjam.zstd.decompress_into, body, room),
    }
)
