"""Records inside a batch of format v2: every codec that brokers store, and nothing thrown away.

Other decoders refuse a header whose name is not UTF-8. Here names stay bytes: such records exist, and must be compared
and saved like all others. Damaged bytes give MalformedBatch and nothing else.
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
"""Both have bytes as slices."""


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Record(NamedTuple):
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


class Span(NamedTuple):
    """Where a record lies among the plain bytes."""

    start: int
    """Of its length."""
    timestamp_delta: int
    offset_delta: int
    content: int
    """Where its key's length begins; all before it can be written anew, all from it on stays."""
    end: int


def spans(header: BatchHeader, data: Plain) -> Iterator[Span]:
    """The records of a batch among its plain bytes, walked through to their ends but not taken apart.

    MalformedBatch also when offsets do not rise or leave the range that the header gives: nobody who writes such a
    batch anew could know where its records belong.
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
    """Whether a control batch ends a transaction by aborting it: its key is version and type, and type 0 is abort."""
    marker = next(decode(header, batch), None)
    if marker is None or marker.key is None or len(marker.key) < 4:
        raise MalformedBatch(f"control batch at offset {header.base_offset} without a marker")
    return marker.key[2:4] == b"\0\0"


PLAIN_LIMIT: Final = 128 << 20
"""Bytes that one batch may hold decompressed: as many as one that is not compressed may have. A producer holds its
batches plain before it compresses them (by default 16 KiB, and max.request.size of 1 MiB bounds a record), so that
honest ones stay far below."""
_SMALL: Final = 16 << 20
"""Plain bytes that any batch may hold, however well they compress, and that count in no budget."""
_MAX_RATIO: Final = 1_032
"""Plain bytes for each compressed one, beyond that: as many as gzip can stand for. A zstd batch of 10 KB can stand for
gigabytes."""


class PlainMemory:
    """One budget for this process's large decompressed batches. A thread that needs more than is left waits for others,
    unless it holds some already (both sides of a comparison), or nothing is given back for long."""

    def __init__(self, budget: int, patience_s: float = 10.0) -> None:
        self._budget = self._free = budget
        self._patience_s = patience_s
        self._holders = Counter[int]()
        self._changed = threading.Condition(threading.RLock())  # a collector may release under it

    @property
    def held(self) -> int:
        """Bytes."""
        return self._budget - self._free

    def fill(self, most: int, write: Callable[[mmap.mmap], int]) -> mmap.mmap:
        """At most so many bytes, as `write` has written them; it returns how many. They count until they are collected.

        Pages that are not written to take no memory."""
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
"""This process's."""


def decompress(codec: int, body: Buffer, limit: int = PLAIN_LIMIT) -> Plain:
    """The plain bytes of records: at most `limit`, and no more than a producer's batch of this size may stand for; or
    MalformedBatch."""
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
    """The sum of a base and a delta as Java's consumers see it: 64 bits, whatever a producer made of them."""
    if -1 << 63 <= timestamp < 1 << 63:
        return timestamp
    return (timestamp + (1 << 63)) % (1 << 64) - (1 << 63)


def varint(data: Plain, at: int) -> tuple[int, int]:
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
            if raw >> 64:
                raise MalformedBatch("a varint of more than 64 bits")
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
        if shift > 63:
            raise MalformedBatch("a varint of more than 10 bytes")


_UNDONE: Final = (cramjam.DecompressionError, zlib.error, struct.error, ValueError)
_GUESS: Final = 8
"""Times a compressed batch: the room that is tried first."""
_PIECE: Final = 1 << 20
XERIAL: Final = b"\x82SNAPPY\0"


def _bounded(undo: Callable[[bytes, bytearray | mmap.mmap], int], body: bytes, limit: int) -> bytes:
    """Decompress into room of a guessed size, else into all that is allowed: codecs know no limit but their room."""
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
    """Java writes snappy in xerial's framing: 16 bytes of header, then blocks with lengths; others write it bare."""
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
    """Not bounded by the limit: the bytes are there already."""
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
