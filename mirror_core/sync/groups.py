"""Consumer groups' offsets, from the source to the destination: every group in scope is accounted for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from mirror_core.decide.filters import group_filter
from mirror_core.decide.offsets import Commit, clamp, decide
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import DONE, JOINED, GroupBatches
from mirror_core.kafka.groups import (
    OFFSET_KINDS,
    Committed,
    Group,
    Offsets,
    commit_offsets,
    fetch_offsets,
    list_groups,
)
from mirror_core.kafka.offsets import Point, known_offsets, list_offsets
from mirror_core.model.drift import Deed, DriftRow, Part
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
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
    for name, group in sorted(groups_in_scope(link, source).items()):
        if group.kind not in OFFSET_KINDS:
            rows.append(
                _skip(name, f"{group.kind} groups are not synced yet: set their start on the destination by hand")
            )
            continue
        try:
            offsets = fetch_offsets(source, name, group.coordinator)
        except Unreachable:
            raise
        except RemoteFault as error:
            rows.append(_skip(name, str(error)))
            continue
        mine, left = _on_topics(name, offsets, topics)
        rows += left
        if mine:
            progress[name] = mine
    logs = _logs(destination, {partition for mine in progress.values() for partition in mine})
    todo = dict[str, dict[Partition, tuple[Offset, str]]]()
    for name, mine in progress.items():
        try:
            found, wanted = _look(destination, name, there.get(name), mine, logs)
        except MissingPermission as error:
            found, wanted = [_skip(name, str(error))], {}
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
    starts = list_offsets(destination, present, Point.START)
    ends = list_offsets(destination, present, Point.LOG_END)
    return {p: _Log(starts[p], ends[p]) for p in present}


def _look(
    destination: ClusterClient,
    name: str,
    there: Group | None,
    mine: Mapping[Partition, Committed],
    logs: Mapping[Partition, _Log],
) -> tuple[list[DriftRow], dict[Partition, tuple[Offset, str]]]:
    """A group's rows, and what is to be committed for it."""
    if there is not None and there.kind not in OFFSET_KINDS:
        return [_skip(name, f"is a {there.kind} group on the destination")], {}
    if there is not None and not there.idle:
        words = f"has members on the destination (it is {there.state} there): their progress is theirs"
        return [_skip(name, words)], {}
    before = fetch_offsets(destination, name, there.coordinator).committed if there else {}
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
        deed, offset = Deed.COMMIT, decision.offset
    else:
        deed, reason, offset = Deed.EQUAL if decision.equal else Deed.SKIP, decision.reason, None
    return _row(subject, deed, committed.offset, before.offset if before else None, reason), offset


def _row(
    subject: str, deed: Deed, source: Offset | None = None, destination: Offset | None = None, reason: str = ""
) -> DriftRow:
    return DriftRow(
        part=Part.GROUPS,
        subject=subject,
        source="" if source is None else str(source),
        destination="" if destination is None else str(destination),
        deed=deed,
        reason=reason,
    )


def _skip(subject: str, reason: str, source: Offset | None = None) -> DriftRow:
    return _row(subject, Deed.SKIP, source, reason=reason)


def _outcome(row: DriftRow, words: Mapping[str, str]) -> DriftRow:
    if row.deed is not Deed.COMMIT:
        return row
    word = words.get(row.subject)
    if word is None:
        return replace(row, deed=Deed.SKIP, reason="the group goes on while it is looked at, and is followed")
    if word == DONE:
        return replace(row, done=True)
    why = "a member joined on the destination in this moment" if word in JOINED else "refused by the destination"
    return replace(row, deed=Deed.SKIP, reason=f"{why} ({word})")


def clamp_groups(link: Link, topics: Collection[str]) -> list[DriftRow]:
    """Bring what groups have committed on the destination into its logs: the source cannot be asked any more.

    A sync commits nothing beyond a log's end; a log may have lost its end since, with a broker.
    """
    with ClusterClient(link.destination) as destination:
        chosen = group_filter(link.mirror)
        rows, found = list[DriftRow](), dict[str, tuple[Group, dict[Partition, Committed]]]()
        for name, group in sorted(list_groups(destination).items()):
            if name not in chosen or group.kind not in OFFSET_KINDS:
                continue
            try:
                offsets = fetch_offsets(destination, name, group.coordinator).committed
            except RemoteFault as error:
                rows.append(_skip(name, str(error)))
                continue
            found[name] = group, {p: c for p, c in offsets.items() if p.topic in topics}
        partitions = {p for _, mine in found.values() for p in mine}
        starts = known_offsets(destination, partitions, Point.START)
        ends = known_offsets(destination, partitions, Point.LOG_END)
        logs = {p: _Log(starts[p], ends[p]) for p in starts.keys() & ends.keys()}
        for name, (group, mine) in found.items():
            rows += _clamp_group(destination, name, group, mine, logs)
    return rows


def _clamp_group(
    destination: ClusterClient,
    name: str,
    group: Group,
    mine: Mapping[Partition, Committed],
    logs: Mapping[Partition, _Log],
) -> list[DriftRow]:
    outside = {
        p: clamp(c.offset, logs[p].start, logs[p].end)
        for p, c in mine.items()
        if p in logs and not logs[p].start <= c.offset <= logs[p].end
    }
    if not group.idle:
        return [_skip(name, f"has members on the destination (it is {group.state} there)")] if outside else []
    todo = {p: (offset, mine[p].metadata) for p, offset in outside.items()}
    refused = commit_offsets(destination, name, todo, group.coordinator) if todo else {}
    return [
        replace(
            _row(f"{name} {p}", Deed.COMMIT, None, mine[p].offset, f"the log is [{logs[p].start}, {logs[p].end}]"),
            done=p not in refused,
        )
        if p in outside
        else _row(f"{name} {p}", Deed.EQUAL, None, mine[p].offset)
        for p in sorted(mine)
    ]
