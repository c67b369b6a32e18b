"""Decodes records of `__consumer_offsets` and `__share_group_state` (KIP-932).

Keys other than OffsetCommitKey v0 and v1 are about group members.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mirror_core.model.names import Offset, Partition
from mirror_core.wire.fields import MalformedResponse, ResponseReader

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
_COMMIT_KEYS: Final = frozenset({0, 1})
_VERSION_WITH_EXPIRY: Final = 1
_MIN_VERSION_WITH_EPOCH: Final = 3
_MIN_FLEXIBLE_VERSION: Final = 4
_NEWEST_VERSION: Final = 4

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class OffsetCommitRecord:
    group: str
    partition: Partition
    value: OffsetCommitValue | None


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    offset: Offset
    leader_epoch: int
    metadata: str
    committed_ms: int


def decode_offset_commit(key: bytes | None, value: bytes | None) -> OffsetCommitRecord | None:
    """Raises MalformedResponse, also for unknown versions. None: another record."""
    if key is None:
        raise MalformedResponse("a record without a key")
    key_reader = ResponseReader(memoryview(key))
    (version,) = key_reader.unpack(_INT16)
    if version not in _COMMIT_KEYS:
        return None
    group, topic = key_reader.read_string(), key_reader.read_string()
    (index,) = key_reader.unpack(_INT32)
    _check_at_end(key_reader)
    return OffsetCommitRecord(group, Partition(topic, index), None if value is None else _decode_value(value))


def _decode_value(data: bytes) -> OffsetCommitValue | None:
    """Drops negative offsets: brokers store them, and then report no offset."""
    value_reader = ResponseReader(memoryview(data))
    (version,) = value_reader.unpack(_INT16)
    if not 0 <= version <= _NEWEST_VERSION:
        raise MalformedResponse(f"an offset of version {version}; versions up to {_NEWEST_VERSION} are known")
    (offset,) = value_reader.unpack(_INT64)
    (epoch,) = value_reader.unpack(_INT32) if version >= _MIN_VERSION_WITH_EPOCH else (-1,)
    metadata = value_reader.read_compact_string() if version >= _MIN_FLEXIBLE_VERSION else value_reader.read_string()
    (committed_ms,) = value_reader.unpack(_INT64)
    if version == _VERSION_WITH_EXPIRY:
        value_reader.unpack(_INT64)
    if version >= _MIN_FLEXIBLE_VERSION:
        value_reader.skip_tags()  # the topic id
    _check_at_end(value_reader)
    return OffsetCommitValue(Offset(offset), epoch, metadata, committed_ms) if offset >= 0 else None


def _check_at_end(reader: ResponseReader) -> None:
    if reader.position != reader.end:
        raise MalformedResponse(f"{reader.end - reader.position} bytes left at {reader.position}")


SHARE_STATE_TOPIC: Final = "__share_group_state"
_SNAPSHOT_KEY: Final = 0
_UPDATE_KEY: Final = 1
_ACKNOWLEDGED_STATES: Final = frozenset({2, 4})
"""Acknowledged, and archived: brokers do not deliver them again."""

_UUID: Final = struct.Struct(">QQ")
_SNAPSHOT_HEAD: Final = struct.Struct(">iiiqqq")
"""Snapshot epoch, state epoch, leader epoch, start offset, creation time, write time."""
_UPDATE_HEAD: Final = struct.Struct(">iiq")
"""Snapshot epoch, leader epoch, start offset (-1: unchanged)."""
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
    """It replaces all earlier records of the share partition."""
    acknowledged: tuple[tuple[Offset, Offset], ...]
    """[first, next)."""


def decode_share_state(key: bytes | None, value: bytes | None) -> ShareStateRecord | None:
    """Returns None for another record. A tombstone gives an empty snapshot.

    Raises MalformedResponse, also for unknown versions.
    """
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
    """In `__share_group_state`, as the share coordinator chooses it: Java's hash code of its key."""
    topic_id = base64.urlsafe_b64encode(share_partition.topic_id.bytes).rstrip(b"=").decode()
    text = f"{share_partition.group}:{topic_id}:{share_partition.index}"
    hash_code = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        hash_code = (31 * hash_code + unit) & 0xFFFFFFFF
    signed = hash_code - (1 << 32) if hash_code & 0x80000000 else hash_code
    return (0 if signed == -(1 << 31) else abs(signed)) % partition_count
