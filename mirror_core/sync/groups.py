"""Consumer groups' offsets, from the source to the destination: every group in scope is accounted for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import UNSET
from msgspec.structs import replace

from mirror_core.decide.filters import group_filter
from mirror_core.decide.offsets import Commit, clamp, decide
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import DONE, JOINED, Fetched, GroupBatches, fetch_all
from mirror_core.kafka.groups import OFFSET_KINDS, Committed, Group, Offsets, list_groups
from mirror_core.kafka.offsets import Point, known_offsets, list_points
from mirror_core.model.drift import Action, DriftRow, Part
from mirror_core.model.errors import MissingPermission, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import Link
from mirror_core.sync.group_commits import GroupCommits, commit_all


@dataclass(frozen=True, slots=True)
class _Log:
    """A destination partition's readable range: [start, end)."""

    start: Offset
    end: Offset


def groups_in_scope(link: Link, source: ClusterClient) -> dict[str, Group]:
    """The source's groups that match the mirror's filter now, of all kinds."""
    chosen = group_filter(link.mirror)
    return {name: group for name, group in list_groups(source).items() if name in chosen}


def sync_groups(
    link: Link,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Collection[str],
    commits: GroupCommits | None,
    *,
    followed: bool = False,
) -> list[DriftRow]:
    """Commit the source's offsets on these mirror topics at the destination, moved into its logs. None: only look.

    Each group in scope has at least one row: what was committed, that it is equal, or why it is left. A fault of one
    group is its row's reason; a silent cluster is raised. `followed`: a data plane commits for groups all the time.
    """
    rows, there = list[DriftRow](), list_groups(destination)
    progress: dict[str, dict[Partition, Committed]] = {}
    groups = groups_in_scope(link, source)
    rows += [
        _skip(name, f"{group.kind} groups are not synced yet: set their start on the destination by hand")
        for name, group in groups.items()
        if group.kind not in OFFSET_KINDS
    ]
    fetched = fetch_all(source, [group for group in groups.values() if group.kind in OFFSET_KINDS])
    for name, fault in fetched.faults.items():
        if isinstance(fault, Unreachable):
            raise fault
        rows.append(_skip(name, str(fault)))
    for name, offsets in sorted(fetched.offsets.items()):
        mine, left = _on_topics(name, offsets, topics)
        rows += left
        if mine:
            progress[name] = mine
    logs = _logs(destination, {partition for mine in progress.values() for partition in mine})
    todo = dict[str, dict[Partition, tuple[Offset, str]]]()
    before = fetch_all(destination, [there[name] for name in progress if name in there and _ours(there[name])])
    for name, mine in progress.items():
        error = before.faults.get(name)
        if error is not None and not isinstance(error, MissingPermission):
            raise error
        found, wanted = ([_skip(name, str(error))], {}) if error else _look(name, there.get(name), mine, logs, before)
        rows += found
        if wanted:
            todo[name] = wanted
    if commits is not None and todo:
        if followed:  # what moved on while we looked is newer there by now: we would take it back
            again = GroupBatches(source).fetch(dict.fromkeys(todo))
            todo = {
                g: {p: row for p, row in mine.items() if _same(again.get(g), progress[g], p)}
                for g, mine in todo.items()
            }
        said = commit_all(commits, todo, destination)
        words = {f"{group} {p}": word for group, mine in said.items() for p, word in mine.items()}
        rows = [_outcome(row, words) for row in rows]
    return sorted(rows, key=lambda row: row.subject)


def _same(again: Offsets | None, before: Mapping[Partition, Committed], partition: Partition) -> bool:
    return again is not None and again.committed.get(partition) == before[partition]


def _on_topics(
    group: str, offsets: Offsets, topics: Collection[str]
) -> tuple[dict[Partition, Committed], list[DriftRow]]:
    mine = {p: row for p, row in offsets.committed.items() if p.topic in topics}
    rows = [
        _skip(f"{group} {partition}", "the offset belongs to a transaction that is still open on the source")
        for partition in sorted(offsets.unsettled)
        if partition.topic in topics
    ]
    if not mine and not rows:
        rows.append(_skip(group, "has committed nothing on mirror topics"))
    return mine, rows


def _logs(destination: ClusterClient, partitions: Collection[Partition]) -> dict[Partition, _Log]:
    """Log ranges of those partitions that the destination has."""
    view = destination.metadata({partition.topic for partition in partitions}).topics
    present = [p for p in partitions if p.topic in view and p.index in view[p.topic].partitions]
    starts, ends = list_points(destination, present, [Point.START, Point.LOG_END]).values()
    return {p: _Log(starts[p], ends[p]) for p in present}


def _ours(there: Group) -> bool:
    """Whether somebody else than its members may commit for it on the destination."""
    return there.kind in OFFSET_KINDS and there.idle


def _look(
    name: str,
    there: Group | None,
    mine: Mapping[Partition, Committed],
    logs: Mapping[Partition, _Log],
    fetched: Fetched,
) -> tuple[list[DriftRow], dict[Partition, tuple[Offset, str]]]:
    """A group's rows, and what is to be committed for it."""
    if there is not None and there.kind not in OFFSET_KINDS:
        return [_skip(name, f"is a {there.kind} group on the destination")], {}
    if there is not None and not there.idle:
        words = f"has members on the destination (it is {there.state} there): their progress is theirs"
        return [_skip(name, words)], {}
    before = fetched.offsets[name].committed if name in fetched.offsets else {}
    rows, todo = list[DriftRow](), dict[Partition, tuple[Offset, str]]()
    for partition, committed in sorted(mine.items(), key=lambda item: item[0]):
        row, offset = _judge(f"{name} {partition}", committed, before.get(partition), logs.get(partition))
        rows.append(row)
        if offset is not None:
            todo[partition] = (offset, committed.metadata)
    return rows, todo


def _judge(
    subject: str, committed: Committed, before: Committed | None, log: _Log | None
) -> tuple[DriftRow, Offset | None]:
    """The row of one partition, and the offset (next to be read) to commit, if any."""
    if log is None:
        return _skip(subject, "the destination does not have this partition yet", committed.offset), None
    decision = decide(
        source=committed.offset,
        start=log.start,
        end=log.end,
        destination=before.offset if before else None,
        destination_epoch=before.leader_epoch if before else -1,
    )
    if isinstance(decision, Commit):
        reason = f"{decision.offset}: " if decision.clamped else ""
        if decision.offset < committed.offset:
            reason += (
                f"the destination ends at {log.end}; {committed.offset - decision.offset} offsets would be read again"
            )
        elif decision.clamped:
            reason += f"the destination begins at {log.start}"
        action, offset = Action.COMMIT, decision.offset
    else:
        action, reason, offset = Action.EQUAL if decision.equal else Action.SKIP, decision.reason, None
    there = before.offset if before else None
    return _row(subject, action, committed.offset, there, reason, there if offset is None else offset), offset


def _row(
    subject: str,
    action: Action,
    source: Offset | None = None,
    destination: Offset | None = None,
    reason: str = "",
    stands: Offset | None = None,
) -> DriftRow:
    """`stands`: what is committed on the destination when that is done; None: nothing."""
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


def _outcome(row: DriftRow, words: Mapping[str, str]) -> DriftRow:
    if row.action is not Action.COMMIT:
        return row
    word = words.get(row.subject)
    if word is None:
        return replace(row, action=Action.SKIP, reason="the group goes on while it is looked at, and is followed")
    if word == DONE:
        return replace(row, done=True)
    why = "a member joined on the destination in this moment" if word in JOINED else "refused by the destination"
    return replace(row, action=Action.SKIP, reason=f"{why} ({word})")


def clamp_groups(
    link: Link, topics: Collection[str], most: Mapping[Partition, Offset | None] = MappingProxyType({})
) -> list[DriftRow]:
    """Bring what groups have committed on the destination into its logs: the source cannot be asked any more.

    A sync commits nothing beyond a log's end; a log may have lost its end since, with a broker. `most`: where a log
    counts as ended that may still lose what it has beyond; None: nobody knows where.
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
    """What lies outside of its log, moved to where that begins or ends."""
    return {
        p: (clamp(c.offset, logs[p].start, logs[p].end), c.metadata)
        for p, c in mine.items()
        if p in logs and not logs[p].start <= c.offset <= logs[p].end
    }


def _clamped(
    name: str, mine: Mapping[Partition, Committed], logs: Mapping[Partition, _Log], said: Mapping[Partition, str]
) -> list[DriftRow]:
    """`said`: the broker's word for each partition that was committed for."""
    return [
        replace(
            _row(f"{name} {p}", Action.COMMIT, None, mine[p].offset, f"the log is [{logs[p].start}, {logs[p].end}]"),
            done=said[p] == DONE,
            offset=clamp(mine[p].offset, logs[p].start, logs[p].end),
        )
        if p in said
        else _row(f"{name} {p}", Action.EQUAL, None, mine[p].offset, stands=mine[p].offset)
        for p in sorted(mine)
    ]


def resumes(rows: Iterable[DriftRow]) -> dict[str, dict[Partition, Offset]]:
    """By group, where it goes on on the destination, by the rows of one round: of those that we could commit for."""
    found = dict[str, dict[Partition, Offset]]()
    for row in rows:
        if row.part is Part.GROUPS and isinstance(row.offset, int) and (row.done or row.action is Action.EQUAL):
            group, _, partition = row.subject.rpartition(" ")
            topic, _, index = partition.rpartition("-")
            found.setdefault(group, {})[Partition(topic, int(index))] = Offset(row.offset)
    return found
