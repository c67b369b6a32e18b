"""All durable state as records of one topic. A null value deletes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from sys import intern
from types import MappingProxyType
from typing import Any, Final

import msgspec

from mirror_core.model.acl import LedgerEntry, LiftedDenial
from mirror_core.model.audit_log import AuditLine
from mirror_core.model.errors import Indeterminate
from mirror_core.model.mirror import GroupSyncTime, Lease, Mirror, PartitionStatus, TopicDeparture, has_listed_all
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.parity_verdict import MirrorVerification
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.receipt_heads import ReceiptsHead
from mirror_core.model.run import Run, StepRecord
from mirror_core.model.run_checkpoints import Checkpoint
from mirror_core.model.source_observation import SourceObservation
from mirror_core.model.sync_state import OwnGroupOffsets, QuotaEntry, TopicSettings, UnsyncedGroups
from mirror_core.state.record_encoding import (
    PIECE_KIND,
    RecordUnreadable,
    SplitValueHead,
    build_piece_tombstones,
    decode_envelope,
    encode_envelope,
    is_key_number,
    is_well_formed,
    join_pieces,
    parse_mirror_name,
    parse_piece_key,
    split_value,
)

STATE_TOPIC: Final = "__mirrorbook_state"
_DATED_KINDS: Final = frozenset(("checkpoint", "groups", "lease", "pending_fence", "source_observation"))
"""Excludes the many records of partitions and ACLs, whose age nobody needs."""


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A topic may be in a forward and a reverse mirror."""

    mirror: MirrorName
    status: PartitionStatus


@dataclass(frozen=True, slots=True)
class TransactionalIdNumber:
    mirror: MirrorName
    role: str
    number: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    record: StateRecord


StateRecord = (
    Mirror
    | PartitionRecord
    | Lease
    | LedgerEntry
    | LiftedDenial
    | Run
    | StepRecord
    | Checkpoint
    | TopicSettings
    | PendingFence
    | GroupSyncTime
    | UnsyncedGroups
    | OwnGroupOffsets
    | SourceObservation
    | MirrorVerification
    | ReceiptsHead
    | AuditLine
    | TransactionalIdNumber
    | TopicDeparture
    | QuotaEntry
)


_LOG_FIELDS: Final = ("last_append_ms", "log_start_offset", "topic_id")
"""Fields of `State` about the log, not of its records."""


@dataclass(slots=True)
class State:
    mirrors: dict[MirrorName, Mirror] = field(default_factory=dict)
    partitions: dict[MirrorName, dict[Partition, PartitionStatus]] = field(default_factory=dict)
    leases: dict[MirrorName, Lease] = field(default_factory=dict)
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    lifted_entries: dict[str, LiftedDenial] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    steps: dict[tuple[str, str], StepRecord] = field(default_factory=dict)
    checkpoints: dict[tuple[str, str, str], Checkpoint] = field(default_factory=dict)
    """By run, step and kind."""
    topic_settings: dict[tuple[MirrorName, str], TopicSettings] = field(default_factory=dict)
    pending_fences: dict[MirrorName, PendingFence] = field(default_factory=dict)
    groups: dict[MirrorName, GroupSyncTime] = field(default_factory=dict)
    uncommitted_groups: dict[MirrorName, UnsyncedGroups] = field(default_factory=dict)
    group_offsets: dict[MirrorName, dict[str, OwnGroupOffsets]] = field(default_factory=dict)
    """By mirror and digest of the group's name."""
    source_observations: dict[MirrorName, SourceObservation] = field(default_factory=dict)
    verifications: dict[MirrorName, MirrorVerification] = field(default_factory=dict)
    receipts: dict[MirrorName, dict[str, ReceiptsHead]] = field(default_factory=dict)
    """By mirror and part."""
    audit_entries: dict[str, dict[int, AuditLine]] = field(default_factory=dict)
    """By run and number."""
    id_numbers: dict[MirrorName, dict[str, TransactionalIdNumber]] = field(default_factory=dict)
    """By mirror and role; missing: the id without a number."""
    departures: dict[MirrorName, dict[str, TopicDeparture]] = field(default_factory=dict)
    """By mirror and topic."""
    quotas: dict[MirrorName, dict[str, QuotaEntry]] = field(default_factory=dict)
    """By mirror and digest of the quota."""
    append_times: dict[str, int] = field(default_factory=dict)
    """In ms by the brokers' clock, by key, of records whose age counts.

    Not of those that this process wrote, or where the topic stores writers' times.
    """
    last_append_ms: int | None = field(default=None, compare=False)
    """As `append_times`, of the last record read: by the clock of the broker that leads the topic now."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """By key, with the reason."""
    log_start_offset: int = field(default=0, compare=False)
    """Above 0: records were deleted, since compaction never moves it, and which ones is unknown."""
    topic_id: str = field(default="", compare=False)
    """Empty: unknown."""
    _pieces: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """For incomplete values."""
    _heads: dict[str, SplitValueHead] = field(default_factory=dict)

    def copy(self) -> State:
        fields: dict[str, Any] = {n: dict(getattr(self, n)) for n in self.__slots__ if n not in _LOG_FIELDS}
        fields["partitions"] = {mirror: dict(statuses) for mirror, statuses in self.partitions.items()}
        fields["group_offsets"] = {mirror: dict(groups) for mirror, groups in self.group_offsets.items()}
        fields["receipts"] = {mirror: dict(heads) for mirror, heads in self.receipts.items()}
        fields["id_numbers"] = {mirror: dict(numbers) for mirror, numbers in self.id_numbers.items()}
        fields["departures"] = {mirror: dict(topics) for mirror, topics in self.departures.items()}
        fields["quotas"] = {mirror: dict(entries) for mirror, entries in self.quotas.items()}
        fields["audit_entries"] = {run: dict(lines) for run, lines in self.audit_entries.items()}
        fields["_pieces"] = {key: dict(pieces) for key, pieces in self._pieces.items()}
        return State(**fields, **{name: getattr(self, name) for name in _LOG_FIELDS})

    def ledger_entries(self, mirror: MirrorName) -> tuple[LedgerEntry, ...]:
        return tuple(entry for entry in self.ledger.values() if entry.mirror == mirror)

    def audit_lines(self, run: str) -> tuple[str, ...]:
        """Up to the first missing line."""
        lines = self.audit_entries.get(run, {})
        return tuple(
            lines[number].line
            for number in range(next(number for number in range(len(lines) + 1) if number not in lines))
        )

    def find_group_sync(self, name: MirrorName) -> GroupSyncTime | None:
        """None where groups were added after it."""
        mirror, last_sync = self.mirrors.get(name), self.groups.get(name)
        has_all = mirror is None or last_sync is None or has_listed_all(mirror.group_filters, last_sync.listed_by)
        return last_sync if has_all else None

    def list_refused_settings(self, mirror: MirrorName) -> tuple[TopicSettings, ...]:
        return tuple(s for (name, _), s in self.topic_settings.items() if name == mirror and s.refused)

    def active_run(self, mirror: MirrorName) -> Run | None:
        return next((run for run in self.runs.values() if run.plan.mirror == mirror and run.ended_ms is None), None)

    def next_run_number(self) -> int:
        """Higher than any run's of this topic: for the transaction that records a run's beginning. A mirror's runs
        never share one, as its state has a single writer.
        """
        return 1 + max((run.number for run in self.runs.values()), default=0)

    def steps_of(self, run: Run) -> tuple[StepRecord, ...]:
        return tuple(self.steps[run.id, step.name] for step in run.plan.steps if (run.id, step.name) in self.steps)

    def require_readable(self, mirror: MirrorName) -> None:
        """Indeterminate if not: an unreadable record might forbid what is intended."""
        reasons = [
            f"key {key}: {reason}"
            for key, reason in sorted(self.unreadable.items())
            if parse_mirror_name(key) == mirror
        ]
        if reasons:
            suffix = f" (and {len(reasons) - 1} more such records)" if len(reasons) > 1 else ""
            raise Indeterminate(
                f"mirror {mirror}: state topic {STATE_TOPIC}, {reasons[0]}{suffix}. If it is not one of Mirrorbook's,"
                " find who may WRITE to that topic, and write a record without a value under that key"
            )

    def find_observation(self, mirror: MirrorName) -> SourceObservation | None:
        observation = self.source_observations.get(mirror)
        return observation and observation.without_other_topics(self.partitions.get(mirror, {}))

    def find_append_time_ms(self, record: StateRecord | None) -> int | None:
        return None if record is None else self.append_times.get(format_key(record))

    def list_leader_times_ms(self, mirror: MirrorName) -> list[int]:
        """Append times by which ages of this mirror go, and the last one. Others may be of an earlier leader."""
        records = (self.leases.get(mirror), self.source_observations.get(mirror))
        times = (self.last_append_ms, *map(self.find_append_time_ms, records))
        return [time_ms for time_ms in times if time_ms is not None]

    def apply(self, key: str, value: bytes | None, appended_ms: int | None = None) -> None:
        """An unreadable record is noted, and the previous value dropped."""
        kind, _, segments = key.partition("/")
        self._drop(key)
        if value is None and kind != PIECE_KIND:
            return
        try:
            if kind == PIECE_KIND:
                self._store_piece(*parse_piece_key(segments), value)
            elif value is not None:
                self._apply_value(key, value)
                if appended_ms is not None and kind in _DATED_KINDS:
                    self.append_times[key] = appended_ms
        except RecordUnreadable as error:
            if value is not None:
                self.unreadable[key] = str(error)

    def put(self, record: StateRecord | Tombstone) -> None:
        if isinstance(record, Tombstone):
            self._drop(format_key(record.record))
        else:
            key = format_key(record)
            self.unreadable.pop(key, None)
            self.append_times.pop(key, None)
            self._store(record)

    def to_rows(self, record: StateRecord | Tombstone) -> Iterator[tuple[str, bytes | None]]:
        """To write; replaces the current record."""
        subject = record.record if isinstance(record, Tombstone) else record
        key = format_key(subject)
        head = self._heads.get(key)
        old_piece_count = head.pieces if head else 0
        if isinstance(record, Tombstone):
            yield from build_piece_tombstones(key, 0, old_piece_count)
            yield key, None
            return
        rows = list(split_value(key, encode_envelope(record), old_piece_count))
        pieces = sum(k != key and v is not None for k, v in rows)
        if pieces:
            self._heads[key] = SplitValueHead(pieces=max(pieces, old_piece_count), sha256="")
        yield from rows

    # -- inside --------------------------------------------------------------------------------------------------

    def _store_piece(self, key: str, number: int, value: bytes | None) -> None:
        pieces = self._pieces.setdefault(key, {})
        if value is None:
            pieces.pop(number, None)
        else:
            pieces[number] = value
        if not pieces:
            del self._pieces[key]

    def _apply_value(self, key: str, value: bytes) -> None:
        decoder = _DECODERS.get(key.partition("/")[0])
        if decoder is None:
            raise RecordUnreadable("there are no records of this name: a newer Mirrorbook's, or somebody else's")
        if not is_well_formed(key):
            raise RecordUnreadable("its key is not one that Mirrorbook writes: somebody else wrote it?")
        pieces = self._pieces.pop(key, {})  # pieces precede their head
        decoded = decode_envelope(value, decoder)
        if isinstance(decoded, SplitValueHead):
            self._heads[key] = decoded
            joined_value = join_pieces(decoded, pieces)
            if joined_value is None:
                raise RecordUnreadable("its pieces are missing")
            decoded = decode_envelope(joined_value, decoder)
        if isinstance(decoded, SplitValueHead) or format_key(decoded) != key:
            raise RecordUnreadable("what it says is about something else: somebody else wrote it?")
        self._store(decoded)

    def _store(self, record: StateRecord) -> None:
        match record:
            case Mirror():
                self.mirrors[record.name] = record
            case PartitionRecord():
                status = _intern_strings(record.status)
                self.partitions.setdefault(record.mirror, {})[status.partition] = status
            case LedgerEntry():
                self.ledger[_format_ledger_key(record)] = record
            case LiftedDenial():
                self.lifted_entries[_format_ledger_key(record.entry)] = record
            case Run():
                self.runs[record.id] = record
            case StepRecord():
                self.steps[record.run, record.step] = record
            case Checkpoint():
                self.checkpoints[record.run, record.step, record.kind] = record
            case AuditLine():
                self.audit_entries.setdefault(record.run, {})[record.number] = record
            case TopicSettings():
                self.topic_settings[record.mirror, record.topic] = record
            case ReceiptsHead() | TransactionalIdNumber() | OwnGroupOffsets() | TopicDeparture() | QuotaEntry():
                kind, part = _KEYED_KINDS[type(record)]
                self._keyed_records(kind).setdefault(record.mirror, {})[getattr(record, part)] = record
            case (
                Lease()
                | PendingFence()
                | GroupSyncTime()
                | UnsyncedGroups()
                | SourceObservation()
                | MirrorVerification()
            ):
                self._single_records(_SINGLE_KINDS[type(record)])[record.mirror] = record

    def _single_records(self, kind: str) -> dict[MirrorName, Any]:
        by_kind: dict[str, dict[MirrorName, Any]] = {
            "lease": self.leases,
            "pending_fence": self.pending_fences,
            "groups": self.groups,
            "uncommitted": self.uncommitted_groups,
            "source_observation": self.source_observations,
            "verification": self.verifications,
        }
        return by_kind[kind]

    def _keyed_records(self, kind: str) -> dict[MirrorName, dict[str, Any]]:
        by_kind: dict[str, dict[MirrorName, dict[str, Any]]] = {
            "receipts": self.receipts,
            "writer": self.id_numbers,
            "committed": self.group_offsets,
            "departure": self.departures,
            "quota": self.quotas,
        }
        return by_kind[kind]

    def _drop(self, key: str) -> None:
        self.unreadable.pop(key, None)
        self.append_times.pop(key, None)
        self._heads.pop(key, None)
        kind, _, segments = key.partition("/")
        match kind, segments.split("/"):
            case "mirror", [mirror]:
                self.mirrors.pop(MirrorName(mirror), None)
            case "partition", [mirror, topic, index] if is_key_number(index):
                self.partitions.get(MirrorName(mirror), {}).pop(Partition(topic, int(index)), None)
            case "ledger", _:
                self.ledger.pop(segments, None)
            case "lifted", _:
                self.lifted_entries.pop(segments, None)
            case "run", [run]:
                self.runs.pop(run, None)
            case "step", [run, step]:
                self.steps.pop((run, step), None)
            case "checkpoint", [run, step, kind]:
                self.checkpoints.pop((run, step, kind), None)
            case "audit", [run, number] if is_key_number(number):
                self.audit_entries.get(run, {}).pop(int(number), None)
            case "settings", [mirror, topic]:
                self.topic_settings.pop((MirrorName(mirror), topic), None)
            case (("receipts" | "writer" | "committed" | "departure" | "quota"), [mirror, part]):
                self._keyed_records(kind).get(MirrorName(mirror), {}).pop(part, None)
            case (
                ("lease" | "pending_fence" | "groups" | "uncommitted" | "source_observation" | "verification"),
                [mirror],
            ):
                self._single_records(kind).pop(MirrorName(mirror), None)


_SINGLE_KINDS: Final[Mapping[type, str]] = MappingProxyType(
    {
        Lease: "lease",
        PendingFence: "pending_fence",
        GroupSyncTime: "groups",
        UnsyncedGroups: "uncommitted",
        SourceObservation: "source_observation",
        MirrorVerification: "verification",
    }
)

_KEYED_KINDS: Final[Mapping[type, tuple[str, str]]] = MappingProxyType(
    {
        ReceiptsHead: ("receipts", "part"),
        TransactionalIdNumber: ("writer", "role"),
        OwnGroupOffsets: ("committed", "digest"),
        TopicDeparture: ("departure", "topic"),
        QuotaEntry: ("quota", "digest"),
    }
)
"""Kind in the key, and the distinguishing field."""


# Created at import: msgspec (0.22) crashes when two threads meet a dataclass
# for the first time, and several states are read at once.
_DECODERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = MappingProxyType(
    {
        name: msgspec.json.Decoder(kind)
        for name, kind in (
            ("mirror", Mirror),
            ("partition", PartitionRecord),
            ("lease", Lease),
            ("ledger", LedgerEntry),
            ("lifted", LiftedDenial),
            ("run", Run),
            ("step", StepRecord),
            ("checkpoint", Checkpoint),
            ("audit", AuditLine),
            ("settings", TopicSettings),
            ("pending_fence", PendingFence),
            ("groups", GroupSyncTime),
            ("uncommitted", UnsyncedGroups),
            ("committed", OwnGroupOffsets),
            ("source_observation", SourceObservation),
            ("verification", MirrorVerification),
            ("receipts", ReceiptsHead),
            ("writer", TransactionalIdNumber),
            ("departure", TopicDeparture),
            ("quota", QuotaEntry),
        )
    }
)


def format_key(record: StateRecord) -> str:
    match record:
        case Mirror():
            return f"mirror/{record.name}"
        case PartitionRecord():
            return f"partition/{record.mirror}/{record.status.partition.topic}/{record.status.partition.index}"
        case LedgerEntry():
            return f"ledger/{_format_ledger_key(record)}"
        case LiftedDenial():
            return f"lifted/{_format_ledger_key(record.entry)}"
        case Run():
            return f"run/{record.id}"
        case StepRecord():
            return f"step/{record.run}/{record.step}"
        case Checkpoint():
            return f"checkpoint/{record.run}/{record.step}/{record.kind}"
        case AuditLine():
            return f"audit/{record.run}/{record.number}"
        case TopicSettings():
            return f"settings/{record.mirror}/{record.topic}"
        case ReceiptsHead() | TransactionalIdNumber() | OwnGroupOffsets() | TopicDeparture() | QuotaEntry():
            kind, part = _KEYED_KINDS[type(record)]
            return f"{kind}/{record.mirror}/{getattr(record, part)}"
        case Lease() | PendingFence() | GroupSyncTime() | UnsyncedGroups() | SourceObservation() | MirrorVerification():
            return f"{_SINGLE_KINDS[type(record)]}/{record.mirror}"


def _intern_strings(status: PartitionStatus) -> PartitionStatus:
    return replace(
        status,
        partition=Partition(intern(status.partition.topic), status.partition.index),
        source_topic_id=intern(status.source_topic_id),
        destination_topic_id=intern(status.destination_topic_id),
    )


def _format_ledger_key(entry: LedgerEntry) -> str:
    # No purpose in the key: promotion replaces the staged entry.
    content = f"{entry.cluster}|{entry.acl}"
    return f"{entry.mirror}/{hashlib.sha256(content.encode()).hexdigest()[:24]}"
