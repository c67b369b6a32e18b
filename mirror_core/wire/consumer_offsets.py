"""Records of `__consumer_offsets` (OffsetCommitKey v0 and v1, OffsetCommitValue v0 to v4).

Other key versions are about group members.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

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
