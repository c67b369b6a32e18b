"""What is fuzzed: decoders of bytes that a broker, or whoever wrote to it, may have made up.

A target takes any bytes. It ends well, or with an error that its decoder names; everything else is a crasher. Where
two of our functions read the same bytes, they must agree.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from fastcrc import crc32

from mirror_core.kafka.connection import MAX_FRAME_BYTES, parse_frame_size
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.names import Partition
from mirror_core.wire import fetch, group_records, message_v0_v1, produce, txn_markers
from mirror_core.wire.batch import (
    CONTROL,
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    MalformedBatch,
    crc_matches,
    readdress,
    split_batches,
)
from mirror_core.wire.batch_encoder import compress
from mirror_core.wire.fields import MalformedResponse
from mirror_core.wire.group_records import decode_share_state
from mirror_core.wire.hidden_records import HIDDEN_DELTA, is_hidden
from mirror_core.wire.records import Codec, Record, decode_records, decompress, is_abort_marker
from mirror_core.wire.reencode import RecordRun, can_copy_whole, is_mergeable, merge_batches, split_into_runs
from mirrorbook_tools.logdir.producer_snapshot import SNAPSHOT_HEAD, MalformedSnapshot, parse_open_transactions
from mirrorbook_tools.mirrormaker.java_properties import parse_properties
from mirrorbook_tools.mirrormaker.mm2_records import decode_checkpoint, decode_offset_sync

LIMIT: Final = 1 << 20
"""Bytes that may come out of one decompression here."""


def frames(data: bytes) -> None:
    """The four bytes before each answer."""
    with suppress(RemoteFault):
        assert 4 <= parse_frame_size(data[:4].ljust(4, b"\0"), "here") <= MAX_FRAME_BYTES


def fetch_answer(data: bytes) -> None:
    """A Fetch answer, down to the records of its batches."""
    with suppress(MalformedResponse):
        for row in fetch.decode_response(memoryview(bytearray(data)), {("t", 0): Partition("t", 0)}):
            assert len(row.records) <= len(data)
            log(bytes(row.records))
    with suppress(MalformedResponse):
        for row in fetch.decode_response_by_id(memoryview(bytearray(data)), {(bytes(16), 0): Partition("t", 0)}):
            assert len(row.records) <= len(data)


def producer_snapshot(data: bytes) -> None:
    """As it is, and with the checksum put right: random bytes would get no further."""
    for one in (data, data[:2] + struct.pack(">I", crc32.iscsi(data[6:])) + data[6:]):
        with suppress(MalformedSnapshot):
            assert len(parse_open_transactions(one)) <= len(one) - SNAPSHOT_HEAD.size


def produce_answer(data: bytes) -> None:
    with suppress(MalformedResponse):
        assert len(list(produce.decode_response(memoryview(data)))) <= len(data)
        assert produce.read_throttle_ms(memoryview(data)) >= 0
    with suppress(MalformedResponse):
        rows, throttle_ms = produce.decode_response_by_id(memoryview(data), {bytes(16): "t"})
        assert len(rows) <= len(data)
        assert throttle_ms >= 0


def markers_answer(data: bytes) -> None:
    with suppress(MalformedResponse):
        assert len(list(txn_markers.decode_response(memoryview(data)))) <= len(data)


def log(data: bytes) -> None:
    """Batches of any format behind each other."""
    end = 0
    with suppress(MalformedBatch):
        for header, view in split_batches(memoryview(bytearray(data))):
            end += len(view)
            assert end <= len(data)
            crc_matches(header, view)
            _batch(header, view, 0)


def batch(data: bytes) -> None:
    """One batch of magic 2 whose checksum was right, from some offset on; its records plain, compressed here."""
    if len(data) < HEADER_SIZE + 1:
        return
    header = BatchHeader._make(HEADER.unpack_from(data, 1))
    codec = header.attributes & 7
    body = data[1 + HEADER_SIZE :]
    if codec in tuple(Codec):
        body = compress(codec, body)
    header = header._replace(magic=2, length=HEADER_SIZE - 12 + len(body))
    _batch(header, memoryview(bytearray(HEADER.pack(*header) + body)), header.base_offset + (data[0] - 8))


def compressed(data: bytes) -> None:
    """What a codec is given that somebody made up."""
    if not data:
        return
    codec = data[0] % 8
    with suppress(MalformedBatch):
        plain = decompress(codec, data[1:], LIMIT)[:]
        assert len(plain) <= max(LIMIT, len(data))
        if codec:
            assert decompress(codec, compress(codec, plain), LIMIT) == plain


def older(data: bytes) -> None:
    """A message of magic 0 or 1 with a right checksum, or a compressed set of such messages."""
    if len(data) < 3:
        return
    kind, data = data[0], data[1:]
    mended = _with_checksums(data)
    if kind & 4:
        magic, codec = kind & 1, 1 + (kind >> 3) % 3
        body = compress(codec, mended)
        fields = struct.pack(">bb", magic, codec | kind >> 4 & 8) + (struct.pack(">q", 77) if magic else b"")
        fields += struct.pack(">ii", -1, len(body)) + body
        mended = struct.pack(">qiI", kind >> 5, len(fields) + 4, zlib.crc32(fields)) + fields
    with suppress(MalformedBatch):
        for header, view in split_batches(memoryview(bytearray(mended))):
            _older(header, view)


def merged(data: bytes) -> None:
    """Neighbours of plain records: each body's length and count are in front of it."""
    parts: list[tuple[BatchHeader, memoryview]] = []
    at = offset = 0
    while at + 12 <= len(data) and len(parts) < 5:
        size, count = data[at], max(1, data[at + 1])
        (base_time,) = struct.unpack_from(">q", data, at + 4)
        body = data[at + 12 : at + 12 + size]
        header = BatchHeader(offset, 49 + len(body), 0, 2, 0, 0, count - 1, base_time, 0, 1, 1, 1, count)
        assert is_mergeable(header)
        parts.append((header, memoryview(HEADER.pack(*header) + body)))
        at += 12 + size
        offset += count
    if not parts:
        return
    try:
        one = merge_batches(parts)
    except MalformedBatch:
        return
    before = _decoded(parts)
    if before is not None:  # merging does not look into keys and headers, decoding does
        assert _seen([RecordRun(0, offset, one)]) == before


def group_offset(data: bytes) -> None:
    """A record of `__consumer_offsets`: the key's length, the key, the value."""
    if data:
        with suppress(MalformedResponse):
            said = group_records.decode_offset_commit(data[1 : 1 + data[0]], data[1 + data[0] :])
            assert said is None or said.value is None or 0 <= said.value.offset < 1 << 63


def share_state(data: bytes) -> None:
    """A record of `__share_group_state`: the key's length, the key, the value."""
    if data:
        with suppress(MalformedResponse):
            decode_share_state(data[1 : 1 + data[0]], data[1 + data[0] :])


def mm2_record(data: bytes) -> None:
    """A record of MirrorMaker's: the key's length, the key, the value."""
    for decode in (decode_offset_sync, decode_checkpoint) if data else ():
        with suppress(MalformedResponse):
            decode(data[1 : 1 + data[0]], data[1 + data[0] :])


def java_properties(data: bytes) -> None:
    with suppress(BadRequest):
        for one in parse_properties(data.decode("latin-1"), "here"):
            assert 1 <= one.line <= len(data) + 1


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = MappingProxyType(
    {
        target.__name__: target
        for target in (
            frames,
            fetch_answer,
            produce_answer,
            producer_snapshot,
            markers_answer,
            log,
            batch,
            compressed,
            older,
            merged,
            group_offset,
            share_state,
            mm2_record,
            java_properties,
        )
    }
)


def _batch(header: BatchHeader, view: memoryview, start: int) -> None:
    if header.magic < 2:
        _older(header, view)
        return
    before = _decoded([(header, view)])
    if is_hidden(header, view):
        assert before is not None
        assert {record.offset for record in before} == {header.base_offset + HIDDEN_DELTA}
    with suppress(MalformedBatch):
        is_abort_marker(header, view)
    try:
        runs = split_into_runs(header, view, start, LIMIT)
    except MalformedBatch:
        return
    if header.attributes & CONTROL or not header.record_count or header.last_offset < start:
        assert not runs
    elif not can_copy_whole(header, start):
        assert before is not None, "written anew though it cannot be read"
        assert _seen(runs) == [record for record in before if record.offset >= start]


def _older(header: BatchHeader, view: memoryview) -> None:
    try:
        before = list(message_v0_v1.decode_message(header, view, LIMIT))
    except MalformedBatch:
        before = None
    try:
        runs = message_v0_v1.split_message_into_runs(header, view, 0, LIMIT)
    except MalformedBatch:
        return
    assert before is not None, "written anew though it cannot be read"
    assert _seen(runs) == [record for record in before if record.offset >= 0]


def _decoded(parts: list[tuple[BatchHeader, memoryview]]) -> list[Record] | None:
    with suppress(MalformedBatch):
        return [record for header, view in parts for record in decode_records(header, view)]
    return None


def _seen(runs: list[RecordRun]) -> list[Record]:
    found: list[Record] = []
    for run in runs:
        readdress(memoryview(run.batch), 1, 0, 0)
        ((header, view),) = split_batches(memoryview(run.batch))
        assert crc_matches(header, view)
        records = list(decode_records(header, view))
        assert [record.offset for record in records] == list(range(run.records))
        found += [Record(run.base_offset + r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records]
    return found


def _with_checksums(data: bytes) -> bytes:
    """Messages with their CRC-32 put right, for as long as their lengths make sense."""
    mended = bytearray(data)
    at = 0
    while at + 16 < len(mended):
        (size,) = struct.unpack_from(">i", mended, at + 8)
        end = at + 12 + size
        if size < 5 or end > len(mended):
            break
        struct.pack_into(">I", mended, at + 12, zlib.crc32(mended[at + 16 : end]))
        at = end
    return bytes(mended)
