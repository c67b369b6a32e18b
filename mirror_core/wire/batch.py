"""Record batches (magic 2) by their 61 header bytes.

Positions: base offset 0, length 8 (of what follows), leader epoch 12, magic 16, CRC-32C 17 (over 21 to the end),
attributes 21, last offset delta 23, base timestamp 27, max timestamp 35, producer id 43, producer epoch 51, base
sequence 53, record count 57, records 61.

Digests of content are equal as sent and as read back, include offsets, and add up modulo 2**128. XXH3 detects
accidents, not an attacker: log comparisons use `parity.keyed_digest` (ADR 0014).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash
from fastcrc import crc32

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size
LENGTH_PREFIX: Final = 12
"""Base offset and length, which does not count them."""
LEGACY_HEADER: Final = struct.Struct(">qiIBB")
MIN_LEGACY_SIZES: Final = (26, 34)
CURRENT_MAGIC: Final = 2
_MAGIC_POSITION: Final = 16
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
NO_TIMESTAMP: Final = -1
"""Brokers always accept it. Messages of magic 0 have none."""
SEQUENCE_MASK: Final = 0x7FFFFFFF
_ATTRIBUTES: Final = struct.Struct(">h")
_CRC: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhi")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_ZERO_OFFSET: Final = bytes(8)


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Stays when compaction removes the last record."""
        return self.base_offset + self.last_offset_delta + 1


class MalformedBatch(Exception):
    pass


def split_batches(records: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """A batch cut off at the end is left out.

    Messages of magic 0 and 1 come one by one with record count -1; the offsets are the message's own (of a compressed
    set: its last record's).
    """
    start, size = 0, len(records)
    unpack = HEADER.unpack_from
    while start + _MAGIC_POSITION < size:
        is_legacy = records[start + _MAGIC_POSITION] < CURRENT_MAGIC
        if start + (LEGACY_HEADER.size if is_legacy else HEADER_SIZE) > size:
            return
        if is_legacy:
            header = _parse_legacy_header(records, start)
        else:
            header = BatchHeader._make(unpack(records, start))
            if header.length < HEADER_SIZE - LENGTH_PREFIX:
                raise MalformedBatch(f"batch length {header.length} is shorter than a header")
        end = start + LENGTH_PREFIX + header.length
        if end > size:
            return
        yield header, records[start:end]
        start = end


def has_whole_batch(records: memoryview) -> bool:
    try:
        return next(split_batches(records), None) is not None
    except MalformedBatch:
        return False


def _parse_legacy_header(records: memoryview, start: int) -> BatchHeader:
    offset, length, crc, magic, attributes = LEGACY_HEADER.unpack_from(records, start)
    if length < MIN_LEGACY_SIZES[magic] - LENGTH_PREFIX:
        raise MalformedBatch(f"message length {length} is shorter than a message of format v{magic}")
    return BatchHeader(offset, length, -1, magic, crc, attributes, 0, -1, -1, -1, -1, -1, -1)


def crc_matches(header: BatchHeader, batch: memoryview) -> bool:
    return bool(crc32.iscsi(batch[21:]) == header.crc)


def is_dense(header: BatchHeader) -> bool:
    """By the header. Brokers append nothing else."""
    return header.record_count == header.last_offset_delta + 1 > 0


def clear_transaction_bits(batch: memoryview) -> None:
    """Removes transactional bit and delete horizon (KIP-534), in place.

    The CRC is wrong until `readdress`. Times count from the base timestamp, even where that is the horizon.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, 21)
    _ATTRIBUTES.pack_into(batch, 21, attributes & ~(TRANSACTIONAL | DELETE_HORIZON))


def read_base_sequence(batch: memoryview) -> int:
    sequence: int = _PRODUCER.unpack_from(batch, 43)[2]
    return sequence


def read_max_timestamp(batch: memoryview) -> int:
    timestamp: int = _MAX_TIMESTAMP.unpack_from(batch, 35)[0]
    return timestamp


def readdress(batch: memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """To another producer, in place; verify the batch before.

    Brokers demand base offset 0 and ignore the leader epoch.
    """
    batch[:8] = _ZERO_OFFSET
    _PRODUCER.pack_into(batch, 43, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, 17, crc32.iscsi(batch[21:]))


_DIGEST_HEAD: Final = struct.Struct(">qB")
_ATTRIBUTES_LOW_BYTE: Final = 22
_DIGESTED_BITS: Final = 0x0F
"""Codec and timestamp type: all others differ between logs."""
DIGEST_MODULUS: Final = 1 << 128


def compute_batch_digest(base_offset: int, batch: memoryview) -> int:
    """Covers offset, codec, timestamp type, times, record count and records (magic 2)."""
    digest = xxhash.xxh3_128(_DIGEST_HEAD.pack(base_offset, batch[_ATTRIBUTES_LOW_BYTE] & _DIGESTED_BITS))
    digest.update(batch[27:43])
    digest.update(batch[57:])
    return digest.intdigest()
