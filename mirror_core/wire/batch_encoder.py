from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import cramjam
import xxhash

from mirror_core.wire.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX, MalformedBatch
from mirror_core.wire.records import XERIAL_MAGIC, Buffer, Codec

_NO_PRODUCER: Final = -1
_SNAPPY_BLOCK: Final = 32 << 10
_LZ4_BLOCK: Final = 64 << 10
_LZ4_STORED: Final = 1 << 31
"""In a block's length: stored without compression."""
_LZ4_DESCRIPTOR: Final = b"\x60\x40"
"""Version 1, independent blocks (brokers reject linked ones), no checksums."""
_UINT32_LE: Final = struct.Struct("<I")
_INT32: Final = struct.Struct(">i")
EMPTY_CONTENT: Final = b"\x01\x01\0"


def build_batch(
    records: Buffer, count: int, codec: int, base_timestamp: int, max_timestamp: int, bits: int = 0
) -> bytearray:
    """Dense, with create times; finish with `readdress`.

    `bits`: attributes besides the codec.
    """
    body = compress(codec, records)
    length = HEADER_SIZE - LENGTH_PREFIX + len(body)
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch, 0, 0, length, _NO_PRODUCER, 2, 0, codec | bits, count - 1, base_timestamp, max_timestamp,
        _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, count,
    )  # fmt: skip
    batch += body
    return batch


def build_batches(
    rows: Iterable[tuple[str, bytes | None]], max_plain_bytes: int, codec: int, timestamp: int, bits: int = 0
) -> Iterator[tuple[bytearray, int]]:
    plain, count = bytearray(), 0
    for key, value in rows:
        key_bytes = key.encode()
        value_field = encode_varint(-1) if value is None else encode_varint(len(value)) + value
        plain += encode_record(
            0, count, b"".join((encode_varint(len(key_bytes)), key_bytes, value_field, encode_varint(0)))
        )
        count += 1
        if len(plain) >= max_plain_bytes:
            yield build_batch(plain, count, codec, timestamp, timestamp, bits), count
            plain, count = bytearray(), 0
    if count:
        yield build_batch(plain, count, codec, timestamp, timestamp, bits), count


def encode_record(timestamp_delta: int, offset_delta: int, content: bytes) -> bytes:
    """`content`: key, value and headers with their lengths."""
    head = b"\0" + encode_varint(timestamp_delta) + encode_varint(offset_delta)
    return b"".join((encode_varint(len(head) + len(content)), head, content))


def compress(codec: int, plain: Buffer) -> bytes:
    """Fast levels, to keep pace with the producers."""
    try:
        return _COMPRESS[codec](bytes(plain))
    except KeyError:
        raise MalformedBatch(f"compression codec {codec} does not exist") from None


def encode_varint(value: int) -> bytes:
    """Zigzag, up to 64 bits."""
    value = (value << 1) ^ (value >> 63)
    if value < 0x80:
        return _ONE_BYTE_VARINTS[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE_VARINTS: Final = tuple(bytes([value]) for value in range(0x80))


def _compress_snappy(plain: bytes) -> bytes:
    """Xerial framing, as Java's producers write it."""
    parts = [XERIAL_MAGIC, _INT32.pack(1), _INT32.pack(1)]
    for position in range(0, len(plain), _SNAPPY_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(plain[position : position + _SNAPPY_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(plain: bytes) -> bytes:
    """Like Kafka's clients. Cramjam's frames have linked blocks or checksums."""
    checksum = xxhash.xxh32_intdigest(_LZ4_DESCRIPTOR) >> 8 & 0xFF
    parts = [b"\x04\x22\x4d\x18", _LZ4_DESCRIPTOR, bytes([checksum])]
    for position in range(0, len(plain), _LZ4_BLOCK):
        raw = plain[position : position + _LZ4_BLOCK]
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
        Codec.SNAPPY: _compress_snappy,
        Codec.LZ4: _compress_lz4,
        Codec.ZSTD: lambda plain: bytes(cramjam.zstd.compress(plain, 1)),
    }
)
