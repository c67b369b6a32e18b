"""Records of `__consumer_offsets` (OffsetCommitKey v0 and v1, OffsetCommitValue v0 to v4).

Other key versions are about group members.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from mirror_core.model.names import Offset, Partition
from mirror_core.wire.fields import MalformedAnswer, Reader

TOPIC: Final = "__consumer_offsets"
_COMMIT_KEYS: Final = frozenset({0, 1})
_WITH_EXPIRY: Final = 1
_WITH_EPOCH: Final = 3
_FLEXIBLE: Final = 4
_NEWEST: Final = 4

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class GroupOffset:
    group: str
    partition: Partition
    value: OffsetValue | None


@dataclass(frozen=True, slots=True)
class OffsetValue:
    offset: Offset
    leader_epoch: int
    metadata: str
    committed_ms: int


def decode(key: bytes | None, value: bytes | None) -> GroupOffset | None:
    """Raises MalformedResponse, also for unknown versions. None: another record."""
    if key is None:
        raise MalformedAnswer("a record without a key")
    about = Reader(memoryview(key))
    (version,) = about.unpack(_INT16)
    if version not in _COMMIT_KEYS:
        return None
    group, topic = about.string(), about.string()
    (index,) = about.unpack(_INT32)
    _at_end(about)
    return GroupOffset(group, Partition(topic, index), None if value is None else _value(value))


def _value(data: bytes) -> OffsetValue | None:
    """Drops negative offsets: brokers store them, and then report no offset."""
    said = Reader(memoryview(data))
    (version,) = said.unpack(_INT16)
    if not 0 <= version <= _NEWEST:
        raise MalformedAnswer(f"an offset of version {version}; versions up to {_NEWEST} are known")
    (offset,) = said.unpack(_INT64)
    (epoch,) = said.unpack(_INT32) if version >= _WITH_EPOCH else (-1,)
    metadata = said.compact_string() if version >= _FLEXIBLE else said.string()
    (committed_ms,) = said.unpack(_INT64)
    if version == _WITH_EXPIRY:
        said.unpack(_INT64)
    if version >= _FLEXIBLE:
        said.skip_tags()  # the topic id
    _at_end(said)
    return OffsetValue(Offset(offset), epoch, metadata, committed_ms) if offset >= 0 else None


def _at_end(reader: Reader) -> None:
    if reader.position != reader.end:
        raise MalformedAnswer(f"{reader.end - reader.position} bytes left at {reader.position}")
