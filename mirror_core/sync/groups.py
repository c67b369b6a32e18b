"""Syncs consumer group offsets to the destination."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from mirror_core.decide.filters import group_filter
from mirror_core.decide.offsets import START, Commit, clamp, decide
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import BARE, JOINED, TAKEN, GroupBatches, fetch_all
from mirror_core.kafka.groups import OFFSET_KINDS, Committed, Group, Offsets, list_groups
from mirror_core.kafka.offsets import Point, known_offsets, list_points
from mirror_core.model.drift import Action, DriftRow, Part
from mirror_core.model.errors import MissingPermission, Unreachable
from mirror_core.model.groups import GroupsLeft, Uncommitted
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import Link
from mirror_core.state.records import Forget, Record, State
from mirror_core.sync.group_commits import GroupCommits, OwnOffsets, commit_all, refused


@dataclass(frozen=True, slots=True)
class _Log:
    """[start, end)."""

    start: Offset
    end: Offset


def groups_in_scope(link: Link, source: ClusterClient) -> dict[str, Group]:
    chosen = group_filter(link.mirror)
    return {name: group for name, group in list_groups(source).items() if name in chosen}


@dataclass(frozen=True, slots=True)
class GroupsSynced:
    rows: list[DriftRow]
    records: list[Record | Forget]
    """To be written to the state topic."""


def sync_groups(
    link: Link,
    state: State,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Collection[str],
    commits: GroupCommits | None,
    *,
    followed: bool = False,
) -> GroupsSynced:
    """Commit offsets, clamped to the destination's logs; without `commits`, only compare.

    Each group in scope has a row. A fault of one group is its row's reason; an unreachable cluster raises.
    """
    there, groups = list_groups(destination), groups_in_scope(link, source)
    own = OwnOffsets(link.mirror.name, state)
    look = _Look(own)
    others = tuple(f"{g.id} ({g.kind})" for _, g in sorted(groups.items()) if g.kind not in OFFSET_KINDS)
    look.rows += [
        _skip(name, f"{group.kind} groups are not synced yet: set their start on the destination by hand")
        for name, group in groups.items()
        if group.kind not in OFFSET_KINDS
    ]
    fetched = fetch_all(source, [group for group in groups.values() if group.kind in OFFSET_KINDS])
    for name, fault in fetched.faults.items():
        if isinstance(fault, Unreachable):
            raise fault
        look.leave(name, None, str(fault))
    anew = _made_anew(
        link, state, source, {p.topic for o in fetched.offsets.values() for p in o.committed} & set(topics)
    )
    found = {
        name: (
            {p: row for p, row in offsets.committed.items() if p.topic in topics},
            sorted(p for p in offsets.unsettled if p.topic in topics),
        )
        for name, offsets in sorted(fetched.offsets.items())
    }
    logs = _logs(destination, {partition for mine, _ in found.values() for partition in mine})
    before = fetch_all(
        destination,
        [there[n] for n, (mine, open_) in found.items() if (mine or open_) and n in there and _ours(there[n])],
    )
    todo = dict[str, dict[Partition, tuple[Offset, str]]]()
    for name, (mine, unsettled) in found.items():
        error = before.faults.get(name)
        if error is not None and not isinstance(error, MissingPermission):
            raise error
        offsets = before.offsets.get(name, _NOTHING)
        if wanted := look.at_group(name, there.get(name), mine, unsettled, logs, offsets, anew, error):
            todo[name] = wanted
    if commits is not None:
        if followed and (asked := {*todo, *look.ahead}):
            # What moved meanwhile is newer on the destination by now: we would take it back.
            again = GroupBatches(source).fetch_now(dict.fromkeys(asked)).offsets
            moved = {(g, p) for g in asked for p, row in found[g][0].items() if not _same(again.get(g), row, p)}
            look.let_be(moved)
            todo = {g: {p: row for p, row in mine.items() if (g, p) not in moved} for g, mine in todo.items()}
        look.take_in(commit_all(commits, todo, destination), todo)
    left = GroupsLeft(mirror=link.mirror.name, others=others, uncommitted=look.uncommitted)
    records: list[Record | Forget] = [Forget(gone) for gone in own.forget_except(groups.keys() | there.keys())]
    records += own.news()
    if left != state.groups_left.get(link.mirror.name, GroupsLeft(mirror=link.mirror.name)):
        records.append(left)
    return GroupsSynced(sorted(look.rows, key=lambda row: row.subject), records)


def _same(again: Offsets | None, before: Committed, partition: Partition) -> bool:
    return again is not None and again.committed.get(partition) == before


def _made_anew(link: Link, state: State, source: ClusterClient, topics: Collection[str]) -> frozenset[str]:
    """Must be listed after offsets were read, which may be of the new topics."""
    recorded = {s.partition.topic: s.source_topic_id for s in state.partitions.get(link.mirror.name, {}).values()}
    now = source.metadata(topics).topics if topics else {}
    return frozenset(t for t in topics if t in recorded and (t not in now or now[t].id != recorded[t]))


class _Look:
    def __init__(self, own: OwnOffsets) -> None:
        self.rows = list[DriftRow]()
        self.ahead = set[str]()
        """Further on the destination than on the source."""
        self._own = own
        self._left = dict[str, Uncommitted]()

    @property
    def uncommitted(self) -> tuple[Uncommitted, ...]:
        return tuple(sorted(self._left.values(), key=lambda one: (one.group, one.partition)))

    def leave(
        self,
        group: str,
        partition: Partition | None,
        reason: str,
        source: Offset | None = None,
        stands: Offset | None = None,
    ) -> None:
        """Nothing can be committed; a person has to know."""
        name = "" if partition is None else str(partition)
        subject = _subject(group, partition)
        self.rows.append(_row(subject, Action.SKIP, source, stands, reason, stands))
        self._left[subject] = Uncommitted(group=group, partition=name, reason=reason, stands=stands)

    def at_group(
        self,
        name: str,
        there: Group | None,
        mine: Mapping[Partition, Committed],
        unsettled: Collection[Partition],
        logs: Mapping[Partition, _Log],
        before: Offsets,
        anew: Collection[str],
        error: MissingPermission | None,
    ) -> dict[Partition, tuple[Offset, str]]:
        if not mine and not unsettled:
            self.rows.append(_skip(name, "has committed nothing on mirror topics"))
        elif there is not None and there.kind not in OFFSET_KINDS:
            self.leave(name, None, f"is a {there.kind} group on the destination")
        elif there is not None and not there.idle:
            words = f"has members on the destination (it is {there.state} there): their progress is theirs"
            self.rows.append(_skip(name, words))
        elif error is not None:
            self.leave(name, None, str(error))
        else:
            for partition in unsettled:
                self._wait(name, partition, before.committed.get(partition))
            pending = sorted(mine.keys() & before.unsettled)
            words = "somebody on the destination commits it in a transaction that is still open"
            self.rows += [_skip(_subject(name, partition), words, mine[partition].offset) for partition in pending]
            rest = sorted(mine.keys() - before.unsettled)
            todo = {p: self._at(name, p, mine[p], before.committed.get(p), logs.get(p), anew) for p in rest}
            return {p: (offset, mine[p].metadata) for p, offset in todo.items() if offset is not None}
        return {}

    def _wait(self, group: str, partition: Partition, before: Committed | None) -> None:
        reason = "the offset belongs to a transaction that is still open on the source"
        if before is None:
            self.leave(group, partition, reason)
        else:
            self.rows.append(_skip(_subject(group, partition), reason))

    def _at(
        self,
        group: str,
        partition: Partition,
        committed: Committed,
        before: Committed | None,
        log: _Log | None,
        anew: Collection[str],
    ) -> Offset | None:
        there = before.offset if before else None
        if partition.topic in anew:
            reason = "its topic was deleted and created anew on the source: the copy is of the old one"
            self.leave(group, partition, reason, committed.offset, there)
            return None
        if log is None:
            self.leave(group, partition, "the destination does not have this partition yet", committed.offset)
            return None
        own = self._own.of(group, partition)
        decision = decide(source=committed.offset, start=log.start, end=log.end, destination=there, own=own)
        subject = _subject(group, partition)
        if isinstance(decision, Commit):
            reason = _moved(decision, committed, log)
            self.rows.append(_row(subject, Action.COMMIT, committed.offset, there, reason, decision.offset))
            return decision.offset
        if not decision.equal:
            self.ahead.add(group)
            self.leave(group, partition, decision.reason, committed.offset, there)
        elif there is not None and before is not None:
            self._own.note(group, partition, there)
            bare = committed.metadata and not before.metadata
            reason = f"without {_METADATA}" if bare else decision.reason
            self.rows.append(_row(subject, Action.EQUAL, committed.offset, there, reason, there))
        return None

    def let_be(self, moved: Collection[tuple[str, Partition]]) -> None:
        subjects = {_subject(group, partition) for group, partition in moved}
        reason = "the group goes on while it is looked at, and is followed"
        self.rows = [
            replace(row, action=Action.SKIP, reason=reason)
            if row.subject in subjects and (row.action is Action.COMMIT or row.subject in self._left)
            else row
            for row in self.rows
        ]
        self._left = {subject: one for subject, one in self._left.items() if subject not in subjects}

    def take_in(
        self, said: Mapping[str, Mapping[Partition, str]], todo: Mapping[str, Mapping[Partition, tuple[Offset, str]]]
    ) -> None:
        words = {_subject(g, p): (g, p, word) for g, mine in said.items() for p, word in mine.items()}
        for at, row in enumerate(self.rows):
            if row.action is not Action.COMMIT or row.subject not in words:
                continue
            group, partition, word = words[row.subject]
            if word in TAKEN:
                self._own.note(group, partition, todo[group][partition][0])
                bare = f"committed without {_METADATA}"
                reason = row.reason if word != BARE else f"{row.reason}; {bare}" if row.reason else bare
                self.rows[at] = replace(row, done=True, reason=reason)
                continue
            joined = word in JOINED
            reason = f"a member joined on the destination in this moment ({word})" if joined else refused(word)
            stands = Offset(int(row.destination)) if row.destination else None
            self.rows[at] = _row(row.subject, Action.SKIP, Offset(int(row.source)), stands, reason, stands)
            if not joined:
                left = Uncommitted(group=group, partition=str(partition), reason=reason, stands=stands)
                self._left[row.subject] = left


_NOTHING: Final = Offsets({}, frozenset())
_METADATA: Final = "the application's metadata, which is larger than offset.metadata.max.bytes of the destination"


def _subject(group: str, partition: Partition | None) -> str:
    return group if partition is None else f"{group} {partition}"


def _moved(decision: Commit, committed: Committed, log: _Log) -> str:
    """Why it is not the source's offset; empty when it is."""
    if decision.offset < committed.offset:
        again = committed.offset - decision.offset
        return f"{decision.offset}: the destination ends at {log.end}; {again} offsets would be read again"
    return f"{decision.offset}: the destination begins at {log.start}" if decision.clamped else ""


def _logs(destination: ClusterClient, partitions: Collection[Partition]) -> dict[Partition, _Log]:
    view = destination.metadata({partition.topic for partition in partitions}).topics
    present = [p for p in partitions if p.topic in view and p.index in view[p.topic].partitions]
    starts, ends = list_points(destination, present, [Point.START, Point.LOG_END]).values()
    return {p: _Log(starts[p], ends[p]) for p in present}


def _ours(there: Group) -> bool:
    """Whether others than the group's members may commit for it."""
    return there.kind in OFFSET_KINDS and there.idle


def _row(
    subject: str,
    action: Action,
    source: Offset | None = None,
    destination: Offset | None = None,
    reason: str = "",
    stands: Offset | None = None,
) -> DriftRow:
    return DriftRow(
        part=Part.GROUPS,
        subject=subject,
        source="" if source is None else str(source),
        destination="" if destination is None else str(destination),
        action=action,
        reason=reason,
        offset=UNSET if stands is None else stands,
    )


def _skip(subject: str, reason: str, source: Offset | None = None) -> DriftRow:
    return _row(subject, Action.SKIP, source, reason=reason)


def clamp_groups(
    link: Link, topics: Collection[str], most: Mapping[Partition, Offset | None] = MappingProxyType({})
) -> list[DriftRow]:
    """Move offsets into the destination's logs, which may have lost ends with a broker.

    For an unplanned failover. `safe_ends`: what lies beyond may still be lost; None where unknown.
    """
    with ClusterClient(link.destination) as destination:
        chosen = group_filter(link.mirror)
        groups = {n: g for n, g in list_groups(destination).items() if n in chosen and g.kind in OFFSET_KINDS}
        fetched = fetch_all(destination, groups.values())
        rows = [_skip(name, str(error)) for name, error in sorted(fetched.faults.items())]
        found = {
            name: {p: c for p, c in offsets.committed.items() if p.topic in topics}
            for name, offsets in sorted(fetched.offsets.items())
        }
        partitions = {p for mine in found.values() for p in mine}
        starts = known_offsets(destination, partitions, Point.START)
        ends = known_offsets(destination, partitions, Point.LOG_END)
        ends |= {p: min(ends[p], end) for p, end in most.items() if end is not None and p in ends}
        logs = {p: _Log(starts[p], ends[p]) for p in starts.keys() & ends.keys()}
        outside = {name: _outside(mine, logs) for name, mine in found.items()}
        todo = {name: mine for name, mine in outside.items() if mine and groups[name].idle}
        with GroupCommits(destination, still_ours=None) as commits:
            said = commit_all(commits, todo, destination)
    for name, mine in found.items():
        if groups[name].idle:
            rows += _clamped(name, mine, logs, said.get(name, {}))
        elif outside[name]:
            rows.append(_skip(name, f"has members on the destination (it is {groups[name].state} there)"))
    return rows


def _outside(
    mine: Mapping[Partition, Committed], logs: Mapping[Partition, _Log]
) -> dict[Partition, tuple[Offset, str]]:
    return {
        p: (clamp(c.offset, logs[p].start, logs[p].end), c.metadata)
        for p, c in mine.items()
        if p in logs and not logs[p].start <= c.offset <= logs[p].end
    }


def _clamped(
    name: str, mine: Mapping[Partition, Committed], logs: Mapping[Partition, _Log], said: Mapping[Partition, str]
) -> list[DriftRow]:
    rows = list[DriftRow]()
    for partition in sorted(mine):
        subject, offset, word = _subject(name, partition), mine[partition].offset, said.get(partition)
        if word is None:
            rows.append(_row(subject, Action.EQUAL, None, offset, stands=offset))
            continue
        log = logs[partition]
        where = f"the log is [{log.start}, {log.end}]"
        if word in TAKEN:
            moved = clamp(offset, log.start, log.end)
            rows.append(replace(_row(subject, Action.COMMIT, None, offset, where, moved), done=True))
        else:  # outside its log: counts as none
            rows.append(_row(subject, Action.SKIP, None, offset, f"{where}; starts {START}: {refused(word)}"))
    return rows


def resumes(rows: Iterable[DriftRow]) -> dict[str, dict[Partition, Offset]]:
    """For groups that we could commit for."""
    found = dict[str, dict[Partition, Offset]]()
    for row in rows:
        if row.part is Part.GROUPS and isinstance(row.offset, int) and (row.done or row.action is Action.EQUAL):
            group, _, partition = row.subject.rpartition(" ")
            topic, _, index = partition.rpartition("-")
            found.setdefault(group, {})[Partition(topic, int(index))] = Offset(row.offset)
    return found
