"""Producer snapshots (`.snapshot` files beside a log).

Version 1: version, CRC-32C of what follows, count; per producer: id, epoch, last sequence, last offset, offset
delta, timestamp, coordinator epoch, first offset of its open transaction (-1: none).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from fastcrc import crc32

SNAPSHOT_VERSION: Final = 1
SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CHECKSUM_START: Final = 6
"""First byte that the checksum covers."""


class MalformedSnapshot(Exception):
    pass


def parse_open_transactions(snapshot: bytes) -> Mapping[int, int]:
    if len(snapshot) < SNAPSHOT_HEAD.size:
        raise MalformedSnapshot("it is shorter than its head")
    version, crc, count = SNAPSHOT_HEAD.unpack_from(snapshot)
    if version != SNAPSHOT_VERSION:
        raise MalformedSnapshot(f"version {version} is not known")
    if crc32.iscsi(snapshot[_CHECKSUM_START:]) != crc:
        raise MalformedSnapshot("its checksum does not match")
    if len(snapshot) != SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size:
        raise MalformedSnapshot(f"{len(snapshot)} bytes do not hold {count} producers")
    rows = SNAPSHOT_ENTRY.iter_unpack(snapshot[SNAPSHOT_HEAD.size :])
    return {row[0]: row[7] for row in rows if row[7] >= 0}
