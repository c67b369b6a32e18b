from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import cramjam
import xxhash

from mirror_core.wire.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX, MalformedBatch
from mirror_core.wire.records import XERIAL, Buffer, Codec

_NOBODY: Final = -1
_SNAPPY_BLOCK: Final = 32 << 10
_LZ4_BLOCK: Final = 64 << 10
_LZ4_STORED: Final = 1 << 31
"""Bit of a block's length: stored without compression."""
_LZ4_DESCRIPTOR: Final = b"\x60\x40"
"""Version 1, independent blocks (brokers reject linked ones), no checksums."""
_UINT32_LE: Final = struct.Struct("<I")
_INT32: Final = struct.Struct(">i")
NOTHING: Final = b"\x01\x01\0"


def batch_of(
    records: Buffer, count: int, codec: int, base_timestamp: int, max_timestamp: int, bits: int = 0
) -> bytearray:
    """Dense, with create times; finish with `readdress`.

    `bits`: attributes besides the codec.
    """
    body = compress(codec, records)
    length = HEADER_SIZE - LENGTH_PREFIX + len(body)
    made = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        made, 0, 0, length, _NOBODY, 2, 0, codec | bits, count - 1, base_timestamp, max_timestamp,
        _NOBODY, _NOBODY, _NOBODY, count,
    )  # fmt: skip
    made += body
    return made


def batches_of(
    rows: Iterable[tuple[str, bytes | None]], most: int, codec: int, timestamp: int, bits: int = 0
) -> Iterator[tuple[bytearray, int]]:
    plain, count = bytearray(), 0
    for key, value in rows:
        name = key.encode()
        held = varint(-1) if value is None else varint(len(value)) + value
        plain += record(0, count, b"".join((varint(len(name)), name, held, varint(0))))
        count += 1
        if len(plain) >= most:
            yield batch_of(plain, count, codec, timestamp, timestamp, bits), count
            plain, count = bytearray(), 0
    if count:
        yield batch_of(plain, count, codec, timestamp, timestamp, bits), count


def record(timestamp_delta: int, offset_delta: int, content: bytes) -> bytes:
    """`content`: key, value and headers with their lengths."""
    head = b"\0" + varint(timestamp_delta) + varint(offset_delta)
    return b"".join((varint(len(head) + len(content)), head, content))


def compress(codec: int, plain: Buffer) -> bytes:
    """Fast levels, to keep pace with the producers."""
    try:
        return _COMPRESS[codec](bytes(plain))
    except KeyError:
        raise MalformedBatch(f"compression codec {codec} does not exist") from None


def varint(value: int) -> bytes:
    """Zigzag, up to 64 bits."""
    value = (value << 1) ^ (value >> 63)
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT: Final = tuple(bytes([value]) for value in range(0x80))


def _snappy(plain: bytes) -> bytes:
    """Xerial framing, as Java's producers write it."""
    parts = [XERIAL, _INT32.pack(1), _INT32.pack(1)]
    for at in range(0, len(plain), _SNAPPY_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(plain[at : at + _SNAPPY_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _lz4(plain: bytes) -> bytes:
    """Like Kafka's clients. Cramjam's frames have linked blocks or checksums."""
    checksum = xxhash.xxh32_intdigest(_LZ4_DESCRIPTOR) >> 8 & 0xFF
    parts = [b"\x04\x22\x4d\x18", _LZ4_DESCRIPTOR, bytes([checksum])]
    for at in range(0, len(plain), _LZ4_BLOCK):
        raw = plain[at : at + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
        if len(block) < len(raw):
            parts += (_UINT32_LE.pack(len(block)), block)
        else:
            parts += (_UINT32_LE.pack(len(raw) | _LZ4_STORED), raw)
    parts.append(_UINT32_LE.pack(0))
    return b"".join(parts)


_COMPRESS: Final[Mapping[int, Callable[[bytes], bytes]]] = MappingProxyType(
    {
        Codec.NONE: lambda plain: plain,
        Codec.GZIP: lambda plain: zlib.compress(plain, 1, 31),
        Codec.SNAPPY: _snappy,
        Codec.LZ4: _lz4,
        Codec.ZSTD: lambda plain: bytes(cramjam.zstd.compress(plain, 1)),
    }
)
