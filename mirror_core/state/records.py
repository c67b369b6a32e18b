"""All durable state as records of one compacted topic. Pure.

A null value deletes. An unreadable record affects only its mirror.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from sys import intern
from types import MappingProxyType
from typing import Any, Final

import msgspec

from mirror_core.model.acl import LedgerEntry, Lifted
from mirror_core.model.checkpoint import Checkpoint
from mirror_core.model.chronicle import Told
from mirror_core.model.drift import TopicSettings
from mirror_core.model.errors import Indeterminate
from mirror_core.model.groups import GroupOffsets, GroupsLeft
from mirror_core.model.mirror import GroupsSeen, Lease, Mirror, PartitionStatus
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.proof import Proof
from mirror_core.model.receipts import ReceiptsHead
from mirror_core.model.run import Run, StepRecord
from mirror_core.model.sighting import Sighting
from mirror_core.model.standing import Debt
from mirror_core.state.encoding import (
    PIECE,
    Head,
    Unreadable,
    cut,
    enveloped,
    is_number,
    joined,
    opened,
    piece_of,
    uncut,
)
from mirror_core.state.keys import is_well_formed, mirror_of

TOPIC: Final = "__mirrorbook_state"


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A topic may be in a forward and a reverse mirror."""

    mirror: MirrorName
    status: PartitionStatus


@dataclass(frozen=True, slots=True)
class TransactionalIdNumber:
    """See `writer.StateWriter`."""

    mirror: MirrorName
    role: str
    number: int


@dataclass(frozen=True, slots=True)
class Forget:
    record: Record


Record = (
    Mirror
    | PartitionRecord
    | Lease
    | LedgerEntry
    | Lifted
    | Run
    | StepRecord
    | Checkpoint
    | TopicSettings
    | Debt
    | GroupsSeen
    | GroupsLeft
    | GroupOffsets
    | Sighting
    | Proof
    | ReceiptsHead
    | Told
    | TransactionalIdNumber
)


@dataclass(slots=True)
class State:
    mirrors: dict[MirrorName, Mirror] = field(default_factory=dict)
    partitions: dict[MirrorName, dict[Partition, PartitionStatus]] = field(default_factory=dict)
    leases: dict[MirrorName, Lease] = field(default_factory=dict)
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    lifted: dict[str, Lifted] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    steps: dict[tuple[str, str], StepRecord] = field(default_factory=dict)
    checkpoints: dict[tuple[str, str, str], Checkpoint] = field(default_factory=dict)
    """By run, step and kind."""
    settings: dict[tuple[MirrorName, str], TopicSettings] = field(default_factory=dict)
    debts: dict[MirrorName, Debt] = field(default_factory=dict)
    groups: dict[MirrorName, GroupsSeen] = field(default_factory=dict)
    groups_left: dict[MirrorName, GroupsLeft] = field(default_factory=dict)
    group_offsets: dict[MirrorName, dict[str, GroupOffsets]] = field(default_factory=dict)
    """By mirror and digest of the group's name."""
    sightings: dict[MirrorName, Sighting] = field(default_factory=dict)
    proofs: dict[MirrorName, Proof] = field(default_factory=dict)
    receipts: dict[MirrorName, dict[str, ReceiptsHead]] = field(default_factory=dict)
    """By mirror and part."""
    told: dict[str, dict[int, Told]] = field(default_factory=dict)
    """By run and number."""
    id_numbers: dict[MirrorName, dict[str, TransactionalIdNumber]] = field(default_factory=dict)
    """By mirror and role; missing: the id without a number."""
    appended_ms: dict[MirrorName, int] = field(default_factory=dict)
    """Of a mirror's lease, by the broker's clock.

    Not for leases that this process wrote, or where the topic stores writers' times.
    """
    unreadable: dict[str, str] = field(default_factory=dict)
    """By key, with the reason."""
    _pieces: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Of incomplete values."""
    _heads: dict[str, Head] = field(default_factory=dict)
    """Heads of split values."""

    def copy(self) -> State:
        same = {name: dict(getattr(self, name)) for name in self.__slots__}
        same["partitions"] = {mirror: dict(statuses) for mirror, statuses in self.partitions.items()}
        same["group_offsets"] = {mirror: dict(groups) for mirror, groups in self.group_offsets.items()}
        same["receipts"] = {mirror: dict(heads) for mirror, heads in self.receipts.items()}
        same["id_numbers"] = {mirror: dict(numbers) for mirror, numbers in self.id_numbers.items()}
        same["told"] = {run: dict(lines) for run, lines in self.told.items()}
        same["_pieces"] = {key: dict(pieces) for key, pieces in self._pieces.items()}
        return State(**same)

    def ledger_of(self, mirror: MirrorName) -> tuple[LedgerEntry, ...]:
        return tuple(entry for entry in self.ledger.values() if entry.mirror == mirror)

    def chronicle(self, run: str) -> tuple[str, ...]:
        """Up to the first missing line."""
        lines = self.told.get(run, {})
        return tuple(lines[n].line for n in range(next(n for n in range(len(lines) + 1) if n not in lines)))

    def active_run(self, mirror: MirrorName) -> Run | None:
        return next((r for r in self.runs.values() if r.plan.mirror == mirror and r.ended_ms is None), None)

    def steps_of(self, run: Run) -> tuple[StepRecord, ...]:
        return tuple(self.steps[run.id, s.name] for s in run.plan.steps if (run.id, s.name) in self.steps)

    def require(self, mirror: MirrorName) -> None:
        """Indeterminate if a record is unreadable: it might forbid what is intended."""
        mine = [f"key {key}: {why}" for key, why in sorted(self.unreadable.items()) if mirror_of(key) == mirror]
        if mine:
            more = f" (and {len(mine) - 1} more such records)" if len(mine) > 1 else ""
            raise Indeterminate(
                f"mirror {mirror}: state topic {TOPIC}, {mine[0]}{more}. If it is not one of Mirrorbook's, find who "
                "may WRITE to that topic, and write a record without a value under that key"
            )

    def apply(self, key: str, value: bytes | None) -> None:
        """An unreadable record is noted, and the previous value dropped."""
        kind, _, rest = key.partition("/")
        self._drop(key)
        if value is None and kind != PIECE:
            return
        try:
            if kind == PIECE:
                self._take_piece(*piece_of(rest), value)
            elif value is not None:
                self._take(key, value)
        except Unreadable as error:
            if value is not None:
                self.unreadable[key] = str(error)

    def put(self, record: Record | Forget) -> None:
        if isinstance(record, Forget):
            self._drop(key_of(record.record))
        else:
            self.unreadable.pop(key_of(record), None)
            self._keep(record)
            if isinstance(record, Lease):
                self.appended_ms.pop(record.mirror, None)

    def rows(self, record: Record | Forget) -> Iterator[tuple[str, bytes | None]]:
        """To write; replaces the current record."""
        about = record.record if isinstance(record, Forget) else record
        key = key_of(about)
        head = self._heads.get(key)
        before = head.pieces if head else 0
        if isinstance(record, Forget):
            yield from uncut(key, 0, before)
            yield key, None
            return
        rows = list(cut(key, enveloped(record), before))
        pieces = sum(k != key and v is not None for k, v in rows)
        if pieces:
            self._heads[key] = Head(pieces=max(pieces, before), sha256="")
        yield from rows

    # -- inside --------------------------------------------------------------------------------------------------

    def _take_piece(self, key: str, number: int, value: bytes | None) -> None:
        pieces = self._pieces.setdefault(key, {})
        if value is None:
            pieces.pop(number, None)
        else:
            pieces[number] = value
        if not pieces:
            del self._pieces[key]

    def _take(self, key: str, value: bytes) -> None:
        decoder = _DECODERS.get(key.partition("/")[0])
        if decoder is None:
            raise Unreadable("there are no records of this name: a newer Mirrorbook's, or somebody else's")
        if not is_well_formed(key):
            raise Unreadable("its key is not one that Mirrorbook writes: somebody else wrote it?")
        pieces = self._pieces.pop(key, {})  # pieces precede their head
        found = opened(value, decoder)
        if isinstance(found, Head):
            self._heads[key] = found
            whole = joined(found, pieces)
            if whole is None:
                raise Unreadable("its pieces are missing")
            found = opened(whole, decoder)
        if isinstance(found, Head) or key_of(found) != key:
            raise Unreadable("what it says is about something else: somebody else wrote it?")
        self._keep(found)

    def _keep(self, record: Record) -> None:
        match record:
            case Mirror():
                self.mirrors[record.name] = record
            case PartitionRecord():
                status = _sharing(record.status)
                self.partitions.setdefault(record.mirror, {})[status.partition] = status
            case LedgerEntry():
                self.ledger[_ledger_key(record)] = record
            case Lifted():
                self.lifted[_ledger_key(record.entry)] = record
            case Run():
                self.runs[record.id] = record
            case StepRecord():
                self.steps[record.run, record.step] = record
            case Checkpoint():
                self.checkpoints[record.run, record.step, record.kind] = record
            case Told():
                self.told.setdefault(record.run, {})[record.number] = record
            case TopicSettings():
                self.settings[record.mirror, record.topic] = record
            case ReceiptsHead() | TransactionalIdNumber() | GroupOffsets():
                kind, part = _SEVERAL_EACH[type(record)]
                self._several_each(kind).setdefault(record.mirror, {})[getattr(record, part)] = record
            case Lease() | Debt() | GroupsSeen() | GroupsLeft() | Sighting() | Proof():
                self._one_each(_ONE_EACH[type(record)])[record.mirror] = record

    def _one_each(self, kind: str) -> dict[MirrorName, Any]:
        found: dict[str, dict[MirrorName, Any]] = {
            "lease": self.leases,
            "debt": self.debts,
            "groups": self.groups,
            "uncommitted": self.groups_left,
            "sighting": self.sightings,
            "proof": self.proofs,
        }
        return found[kind]

    def _several_each(self, kind: str) -> dict[MirrorName, dict[str, Any]]:
        found: dict[str, dict[MirrorName, dict[str, Any]]] = {
            "receipts": self.receipts,
            "writer": self.id_numbers,
            "committed": self.group_offsets,
        }
        return found[kind]

    def _drop(self, key: str) -> None:
        self.unreadable.pop(key, None)
        self._heads.pop(key, None)
        kind, _, rest = key.partition("/")
        match kind, rest.split("/"):
            case "mirror", [mirror]:
                self.mirrors.pop(MirrorName(mirror), None)
            case "partition", [mirror, topic, index] if is_number(index):
                self.partitions.get(MirrorName(mirror), {}).pop(Partition(topic, int(index)), None)
            case "ledger", _:
                self.ledger.pop(rest, None)
            case "lifted", _:
                self.lifted.pop(rest, None)
            case "run", [run]:
                self.runs.pop(run, None)
            case "step", [run, step]:
                self.steps.pop((run, step), None)
            case "checkpoint", [run, step, kind]:
                self.checkpoints.pop((run, step, kind), None)
            case "told", [run, number] if is_number(number):
                self.told.get(run, {}).pop(int(number), None)
            case "settings", [mirror, topic]:
                self.settings.pop((MirrorName(mirror), topic), None)
            case (("receipts" | "writer" | "committed"), [mirror, part]):
                self._several_each(kind).get(MirrorName(mirror), {}).pop(part, None)
            case (("lease" | "debt" | "groups" | "uncommitted" | "sighting" | "proof"), [mirror]):
                self._one_each(kind).pop(MirrorName(mirror), None)


_ONE_EACH: Final[Mapping[type, str]] = MappingProxyType(
    {
        Lease: "lease",
        Debt: "debt",
        GroupsSeen: "groups",
        GroupsLeft: "uncommitted",
        Sighting: "sighting",
        Proof: "proof",
    }
)

_SEVERAL_EACH: Final[Mapping[type, tuple[str, str]]] = MappingProxyType(
    {
        ReceiptsHead: ("receipts", "part"),
        TransactionalIdNumber: ("writer", "role"),
        GroupOffsets: ("committed", "digest"),
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
            ("lifted", Lifted),
            ("run", Run),
            ("step", StepRecord),
            ("checkpoint", Checkpoint),
            ("told", Told),
            ("settings", TopicSettings),
            ("debt", Debt),
            ("groups", GroupsSeen),
            ("uncommitted", GroupsLeft),
            ("committed", GroupOffsets),
            ("sighting", Sighting),
            ("proof", Proof),
            ("receipts", ReceiptsHead),
            ("writer", TransactionalIdNumber),
        )
    }
)


def key_of(record: Record) -> str:
    match record:
        case Mirror():
            return f"mirror/{record.name}"
        case PartitionRecord():
            return f"partition/{record.mirror}/{record.status.partition.topic}/{record.status.partition.index}"
        case LedgerEntry():
            return f"ledger/{_ledger_key(record)}"
        case Lifted():
            return f"lifted/{_ledger_key(record.entry)}"
        case Run():
            return f"run/{record.id}"
        case StepRecord():
            return f"step/{record.run}/{record.step}"
        case Checkpoint():
            return f"checkpoint/{record.run}/{record.step}/{record.kind}"
        case Told():
            return f"told/{record.run}/{record.number}"
        case TopicSettings():
            return f"settings/{record.mirror}/{record.topic}"
        case ReceiptsHead() | TransactionalIdNumber() | GroupOffsets():
            kind, part = _SEVERAL_EACH[type(record)]
            return f"{kind}/{record.mirror}/{getattr(record, part)}"
        case Lease() | Debt() | GroupsSeen() | GroupsLeft() | Sighting() | Proof():
            return f"{_ONE_EACH[type(record)]}/{record.mirror}"


def _sharing(status: PartitionStatus) -> PartitionStatus:
    """Among a topic's many partitions."""
    return replace(
        status,
        partition=Partition(intern(status.partition.topic), status.partition.index),
        source_topic_id=intern(status.source_topic_id),
        destination_topic_id=intern(status.destination_topic_id),
    )


def _ledger_key(entry: LedgerEntry) -> str:
    # No purpose in the key: promotion replaces the staged entry.
    content = f"{entry.cluster}|{entry.acl}"
    return f"{entry.mirror}/{hashlib.sha256(content.encode()).hexdigest()[:24]}"
