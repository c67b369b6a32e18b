"""Producer snapshots (`.snapshot` files beside a log).

Version 1: version, CRC-32C of what follows, count; per producer: id, epoch, last sequence, last offset, offset
delta, timestamp, coordinator epoch, first offset of its open transaction (-1: none).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from fastcrc import crc32

VERSION: Final = 1
HEAD: Final = struct.Struct(">hIi")
ENTRY: Final = struct.Struct(">qhiqiqiq")
_CHECKED: Final = 6
"""First byte that the checksum covers."""


class MalformedSnapshot(Exception):
    pass


def open_transactions(snapshot: bytes) -> Mapping[int, int]:
    if len(snapshot) < HEAD.size:
        raise MalformedSnapshot("it is shorter than its head")
    version, crc, count = HEAD.unpack_from(snapshot)
    if version != VERSION:
        raise MalformedSnapshot(f"version {version} is not known")
    if crc32.iscsi(snapshot[_CHECKED:]) != crc:
        raise MalformedSnapshot("its checksum does not match")
    if len(snapshot) != HEAD.size + count * ENTRY.size:
        raise MalformedSnapshot(f"{len(snapshot)} bytes do not hold {count} producers")
    rows = ENTRY.iter_unpack(snapshot[HEAD.size :])
    return {row[0]: row[7] for row in rows if row[7] >= 0}
