"""All durable state as records of one compacted topic: encode, decode, fold. Pure.

A key names what the record is about, a value is JSON with a schema version, a null value forgets the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import msgspec

from mirror_core.model.acl import LedgerEntry
from mirror_core.model.drift import TopicSettings
from mirror_core.model.errors import Indeterminate
from mirror_core.model.mirror import Lease, Mirror, PartitionStatus
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.run import Run, StepRecord

TOPIC: Final = "__mirrorbook_state"
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition's status with the mirror it belongs to: the same topic may be in a forward and a reverse mirror."""

    mirror: MirrorName
    status: PartitionStatus


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete what this record is about (a tombstone)."""

    record: Record


Record = Mirror | PartitionRecord | Lease | LedgerEntry | Run | StepRecord | TopicSettings


@dataclass(slots=True)
class State:
    """Everything the state topic says now."""

    mirrors: dict[MirrorName, Mirror] = field(default_factory=dict)
    partitions: dict[MirrorName, dict[Partition, PartitionStatus]] = field(default_factory=dict)
    leases: dict[MirrorName, Lease] = field(default_factory=dict)
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    steps: dict[tuple[str, str], StepRecord] = field(default_factory=dict)
    settings: dict[tuple[MirrorName, str], TopicSettings] = field(default_factory=dict)

    def ledger_of(self, mirror: MirrorName) -> tuple[LedgerEntry, ...]:
        return tuple(entry for entry in self.ledger.values() if entry.mirror == mirror)

    def active_run(self, mirror: MirrorName) -> Run | None:
        """The run that holds this mirror now: at most one, since one is never begun beside another."""
        return next((r for r in self.runs.values() if r.plan.mirror == mirror and r.ended_ms is None), None)

    def apply(self, key: str, value: bytes | None) -> None:
        """Take in one record of the topic."""
        kind, _, rest = key.partition("/")
        if value is None:
            self._forget(kind, rest)
            return
        record = decode(key, value)
        match record:
            case Mirror():
                self.mirrors[record.name] = record
            case PartitionRecord():
                self.partitions.setdefault(record.mirror, {})[record.status.partition] = record.status
            case Lease():
                self.leases[record.mirror] = record
            case LedgerEntry():
                self.ledger[rest] = record
            case Run():
                self.runs[record.id] = record
            case StepRecord():
                self.steps[record.run, record.step] = record
            case TopicSettings():
                self.settings[record.mirror, record.topic] = record

    def _forget(self, kind: str, rest: str) -> None:
        match kind:
            case "mirror":
                self.mirrors.pop(MirrorName(rest), None)
            case "partition":
                mirror, topic, index = rest.split("/")
                self.partitions.get(MirrorName(mirror), {}).pop(Partition(topic, int(index)), None)
            case "lease":
                self.leases.pop(MirrorName(rest), None)
            case "ledger":
                self.ledger.pop(rest, None)
            case "run":
                self.runs.pop(rest, None)
            case "step":
                run, step = rest.split("/")
                self.steps.pop((run, step), None)
            case "settings":
                mirror, topic = rest.split("/")
                self.settings.pop((MirrorName(mirror), topic), None)


def fold(records: Iterable[tuple[str, bytes | None]]) -> State:
    """The state after these records, oldest first."""
    state = State()
    for key, value in records:
        state.apply(key, value)
    return state


_TYPES: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "mirror": Mirror,
        "partition": PartitionRecord,
        "lease": Lease,
        "ledger": LedgerEntry,
        "run": Run,
        "step": StepRecord,
        "settings": TopicSettings,
    }
)


# Made once, by the thread that imports this: msgspec reads a dataclass when it meets it for the first time, and crashes
# the process when two threads do that for the same one (0.22). States of several clusters are read at the same time.
_DECODERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = MappingProxyType(
    {name: msgspec.json.Decoder(kind) for name, kind in _TYPES.items()}
)


class _Envelope(msgspec.Struct):
    """A record with the version of its schema."""

    v: int
    data: msgspec.Raw


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def key_of(record: Record) -> str:
    """The key under which a record replaces its predecessor."""
    match record:
        case Mirror():
            return f"mirror/{record.name}"
        case PartitionRecord():
            return f"partition/{record.mirror}/{record.status.partition.topic}/{record.status.partition.index}"
        case Lease():
            return f"lease/{record.mirror}"
        case LedgerEntry():
            # The purpose is not in the key: an entry that is promoted replaces the staged one.
            content = f"{record.cluster}|{record.acl}"
            return f"ledger/{record.mirror}/{hashlib.sha256(content.encode()).hexdigest()[:24]}"
        case Run():
            return f"run/{record.id}"
        case StepRecord():
            return f"step/{record.run}/{record.step}"
        case TopicSettings():
            return f"settings/{record.mirror}/{record.topic}"


def encode(record: Record | Forget) -> tuple[str, bytes | None]:
    """Key and value of a record; a null value for what is to be forgotten."""
    if isinstance(record, Forget):
        return key_of(record.record), None
    return key_of(record), msgspec.json.encode({"v": SCHEMA_VERSION, "data": record})


def decode(key: str, value: bytes) -> Record:
    """The record of a key, or Indeterminate when a newer Mirrorbook wrote it or it is damaged."""
    decoder = _DECODERS.get(key.partition("/")[0])
    try:
        envelope = _ENVELOPE.decode(value)
        if decoder is None or envelope.v != SCHEMA_VERSION:
            raise Indeterminate(
                f"state topic {TOPIC}, key {key}: schema version {envelope.v} is not known to this Mirrorbook "
                f"(it writes {SCHEMA_VERSION}): use the version that wrote it, or a newer one"
            )
        record: Record = decoder.decode(envelope.data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Indeterminate(
            f"state topic {TOPIC}, key {key}: the record is not readable; somebody else wrote it?"
        ) from None
    return record
