"""Records of `__share_group_state` (KIP-932): what share groups have acknowledged, partition by partition."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mirror_core.model.names import Offset
from mirror_core.wire.fields import MalformedResponse, ResponseReader

SHARE_STATE_TOPIC: Final = "__share_group_state"
_SNAPSHOT_KEY: Final = 0
_UPDATE_KEY: Final = 1
_ACKNOWLEDGED_STATES: Final = frozenset({2, 4})
"""Acknowledged and archived: never delivered again."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UUID: Final = struct.Struct(">QQ")
_SNAPSHOT_HEAD: Final = struct.Struct(">iiiqqq")
"""Snapshot, state and leader epoch, start offset, times of creation and writing."""
_UPDATE_HEAD: Final = struct.Struct(">iiq")
"""Snapshot and leader epoch, start offset (-1: unchanged)."""
_BATCH: Final = struct.Struct(">qqbh")
"""First and last offset, delivery state, delivery count."""


@dataclass(frozen=True, slots=True)
class SharePartition:
    group: str
    topic_id: UUID
    index: int


@dataclass(frozen=True, slots=True)
class ShareStateRecord:
    share_partition: SharePartition
    is_snapshot: bool
    """Replaces everything before."""
    acknowledged: tuple[tuple[Offset, Offset], ...]
    """[first, next) each."""


def decode_share_state(key: bytes | None, value: bytes | None) -> ShareStateRecord | None:
    """Raises MalformedResponse, also for unknown versions. None: another record. A deleted state is an empty one."""
    if key is None:
        raise MalformedResponse("a record without a key")
    key_reader = ResponseReader(memoryview(key))
    (kind,) = key_reader.unpack(_INT16)
    if kind not in (_SNAPSHOT_KEY, _UPDATE_KEY):
        return None
    group = key_reader.read_string()
    high, low = key_reader.unpack(_UUID)
    (index,) = key_reader.unpack(_INT32)
    share_partition = SharePartition(group, UUID(int=high << 64 | low), index)
    if value is None:
        return ShareStateRecord(share_partition, is_snapshot=True, acknowledged=())
    value_reader = ResponseReader(memoryview(value))
    (version,) = value_reader.unpack(_INT16)
    if version != 0:
        raise MalformedResponse(f"a share state of version {version}; version 0 is known")
    is_snapshot = kind == _SNAPSHOT_KEY
    value_reader.unpack(_SNAPSHOT_HEAD if is_snapshot else _UPDATE_HEAD)
    acknowledged = list[tuple[Offset, Offset]]()
    for _ in range(value_reader.read_compact_count(_BATCH.size)):
        first, last, delivery_state, _count = value_reader.unpack(_BATCH)
        value_reader.skip_tags()
        if delivery_state in _ACKNOWLEDGED_STATES:
            acknowledged.append((Offset(first), Offset(last + 1)))
    value_reader.skip_tags()  # how many are acknowledged
    if value_reader.position != value_reader.end:
        raise MalformedResponse(f"{value_reader.end - value_reader.position} bytes left at {value_reader.position}")
    return ShareStateRecord(share_partition, is_snapshot, tuple(acknowledged))


def find_state_partition(share_partition: SharePartition, partition_count: int) -> int:
    """As the share coordinator spreads them: Java's hash of its key."""
    topic_id = base64.urlsafe_b64encode(share_partition.topic_id.bytes).rstrip(b"=").decode()
    text = f"{share_partition.group}:{topic_id}:{share_partition.index}"
    hash_code = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        hash_code = (31 * hash_code + unit) & 0xFFFFFFFF
    signed = hash_code - (1 << 32) if hash_code & 0x80000000 else hash_code
    return (0 if signed == -(1 << 31) else abs(signed)) % partition_count
