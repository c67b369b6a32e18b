"""Records of MirrorMaker 2's own topics: OffsetSync, and Checkpoint of version 0."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from mirror_core.model.names import Offset, Partition
from mirror_core.wire.fields import MalformedResponse, ResponseReader

_VERSION: Final = struct.Struct(">h")
_INDEX: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")
_CHECKPOINT_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """One record: where it is on the source, and in MirrorMaker's copy."""

    partition: Partition
    """The source's."""
    source_offset: Offset
    copy_offset: int


@dataclass(frozen=True, slots=True)
class GroupCheckpoint:
    """A group of the source's, as MirrorMaker has last translated it."""

    group: str
    partition: Partition
    """The copy's."""
    source_offset: Offset
    """Committed on the source. Next offset to be read, as the other."""
    copy_offset: int


def decode_offset_sync(key: bytes | None, value: bytes | None) -> OffsetSync | None:
    """Raises MalformedResponse. None: a tombstone."""
    partition = _decode_partition(reader := _open(key))
    _check_at_end(reader)
    if value is None:
        return None
    value_reader = _open(value)
    source_offset, copy_offset = value_reader.unpack(_OFFSETS)
    _check_at_end(value_reader)
    return OffsetSync(partition, Offset(source_offset), copy_offset)


def decode_checkpoint(key: bytes | None, value: bytes | None) -> GroupCheckpoint | None:
    """Raises MalformedResponse, also for unknown versions. None: a tombstone."""
    reader = _open(key)
    group = reader.read_string()
    partition = _decode_partition(reader)
    _check_at_end(reader)
    if value is None:
        return None
    value_reader = _open(value)
    (version,) = value_reader.unpack(_VERSION)
    if version != _CHECKPOINT_VERSION:
        raise MalformedResponse(f"a checkpoint of version {version}; version {_CHECKPOINT_VERSION} is known")
    source_offset, copy_offset = value_reader.unpack(_OFFSETS)
    value_reader.read_string()  # the application's metadata
    _check_at_end(value_reader)
    return GroupCheckpoint(group, partition, Offset(source_offset), copy_offset)


def _open(data: bytes | None) -> ResponseReader:
    if data is None:
        raise MalformedResponse("a record without a key")
    return ResponseReader(memoryview(data))


def _decode_partition(reader: ResponseReader) -> Partition:
    topic = reader.read_string()
    (index,) = reader.unpack(_INDEX)
    return Partition(topic, index)


def _check_at_end(reader: ResponseReader) -> None:
    if reader.position != reader.end:
        raise MalformedResponse(f"{reader.end - reader.position} bytes left at {reader.position}")
