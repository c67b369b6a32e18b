"""Valid inputs for each target, from which a fuzzer finds its way faster than from nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.wire.batch import HEADER, HEADER_SIZE
from mirror_core.wire.batch_encoder import compress, encode_record, encode_varint
from mirror_core.wire.hidden_records import build_hidden_batch
from mirror_core.wire.records import Codec
from tests.support.log_directories import snapshot


def _content(key: bytes | None, value: bytes | None, *headers: tuple[bytes, bytes | None]) -> bytes:
    parts = [encode_varint(-1) if field is None else encode_varint(len(field)) + field for field in (key, value)]
    parts.append(encode_varint(len(headers)))
    for name, content in headers:
        parts += [
            encode_varint(len(name)),
            name,
            encode_varint(-1) if content is None else encode_varint(len(content)) + content,
        ]
    return b"".join(parts)


def _records(step: int) -> bytes:
    return b"".join(
        (
            encode_record(0, 0, _content(b"k", b"v", (b"\xff", None), (b"h", b"x"))),
            encode_record(-5, step, _content(None, b"")),
            encode_record(1 << 40, 2 * step, _content(b"", None)),
        )
    )


def _batch(attributes: int, step: int, *, packed: bool = True) -> bytes:
    plain = _records(step)
    body = compress(attributes & 7, plain) if packed else plain
    return HEADER.pack(100, HEADER_SIZE - 12 + len(body), 0, 2, 0, attributes, 2 * step, 9, 99, 7, 0, 0, 3) + body


def _message(magic: int, offset: int, key: bytes | None, value: bytes | None) -> bytes:
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 5) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, 0) + body


def _fetched(records: bytes) -> bytes:
    row = struct.pack(">ihqqqi", 0, 0, 9, 9, 0, 1) + struct.pack(">qqii", 7, 1, -1, len(records)) + records
    return struct.pack(">ihii", 0, 0, 0, 1) + struct.pack(">h1si", 1, b"t", 1) + row


def _sets(magic: int) -> bytes:
    return _message(magic, 0, b"k", b"v") + _message(magic, 1, None, b"") + _message(magic, 4, b"", None)


_BATCHES = [_batch(bits | codec, step) for codec in Codec for step in (1, 2) for bits in (0, 0x08, 0x50, 0x30)]
_PRODUCED = struct.pack(">ih1si", 1, 1, b"t", 1) + struct.pack(">ihqqqi", 0, 87, -1, -1, 0, 1)
_PRODUCED += struct.pack(">ih2s", 0, 2, b"no") + struct.pack(">h3s", 3, b"why") + struct.pack(">i", 0)
_GROUP_KEY = b"\x0c" + struct.pack(">h", 1) + b"\0\1g\0\1t" + struct.pack(">i", 0)
_SHARE_KEY = b"\x19" + struct.pack(">h", 0) + b"\0\1g" + bytes(16) + struct.pack(">i", 0)
_SHARE_BATCH = struct.pack(">qqbh", 10, 14, 2, 1) + b"\0"

SEEDS: Final[Mapping[str, Callable[[], list[bytes]]]] = MappingProxyType(
    {
        "frames": lambda: [struct.pack(">i", 1000)],
        "fetch_answer": lambda: [_fetched(one) for one in (*_BATCHES, _sets(0) + _sets(1))],
        "produce_answer": lambda: [_PRODUCED],
        "producer_snapshot": lambda: [snapshot({7: 40, 8: 60})],
        "markers_answer": lambda: [b"\0\2" + struct.pack(">q", 7) + b"\2\2t\2" + struct.pack(">ih", 3, 52) + bytes(4)],
        "log": lambda: [*_BATCHES, bytes(build_hidden_batch(3, 9)), _sets(0) + _batch(0, 1) + _sets(1)],
        "batch": lambda: [
            b"\x09" + bytes(build_hidden_batch(3, 9)),
            *(b"\x09" + _batch(b | codec, step, packed=False) for codec in Codec for step in (1, 2) for b in (0, 8)),
        ],
        "compressed": lambda: [bytes([codec]) + compress(codec, b"some bytes " * 9) for codec in Codec],
        "older": lambda: [bytes([kind]) + _sets(kind & 1) for kind in (0, 1, 0x84, 0x85, 0x8C, 0x8D, 0x94, 0x95, 0xC5)],
        "merged": lambda: [2 * (bytes([len(_records(1)), 3, 0, 0]) + struct.pack(">q", 5) + _records(1))],
        "group_offset": lambda: [
            _GROUP_KEY + struct.pack(">hqi", 3, 7, 1) + b"\0\1m" + struct.pack(">q", 9),
            _GROUP_KEY + struct.pack(">hqi", 4, 7, 1) + b"\2m" + struct.pack(">q", 9) + b"\0",
        ],
        "mm2_record": lambda: [
            b"\x07\0\1t" + bytes(4) + struct.pack(">qq", 9, 7),
            b"\x0a\0\1g\0\1t" + bytes(4) + struct.pack(">hqq", 0, 9, 7) + b"\0\1m",
        ],
        "java_properties": lambda: [
            b"# c\r\nclusters = a, \\\n  b\na->b.enabled : true\nx\\ y = \\u00e9\\ud83d\\ude00\n"
        ],
        "share_state": lambda: [
            _SHARE_KEY + struct.pack(">hiiiqqq", 0, 1, 0, 3, 10, 9, 9) + b"\2" + _SHARE_BATCH + b"\1\0\4" + bytes(4),
        ],
    }
)
