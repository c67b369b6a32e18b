"""Compacts the receipts of past days, and rebuilds missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mirror_core.decide.verbs import Verb
from mirror_core.evidence import receipts
from mirror_core.evidence.compaction import Logs, Row, compacted, holding
from mirror_core.evidence.folders import Folder
from mirror_core.evidence.heads import Checked, Heads, is_day_file, put_together
from mirror_core.evidence.kept import Found, by_names, found
from mirror_core.evidence.receipts import ADVICE, File, mirror_folder
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.placing import heard_ids
from mirror_core.mirrors.door import door
from mirror_core.model.errors import Indeterminate, RemoteFault
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.receipts import Kept, ReceiptsHead
from mirror_core.parity.certified_scope import heads_of
from mirror_core.state.link import Link
from mirror_core.state.records import Forget


@dataclass(frozen=True, slots=True)
class Compacted:
    files: Mapping[str, tuple[int, int]]
    """Files before and now, by day."""
    pieces_left_out: int
    left: Mapping[str, str]


def closed() -> str:
    """UTC, ISO 8601. Failed writes are retried for hours."""
    return (datetime.now(UTC).date() - timedelta(days=1)).isoformat()


def compact(link: Link, folder: Folder, before: str) -> Compacted:
    """One file for each day before this one. A crash leaves equivalent receipts.

    A day with a lost or altered file stays: nothing else would show that.
    """
    mirror = link.mirror.name
    heads = heads_of(link)
    days = sorted({head.day for head in heads.values() if head.day < before})
    fresh = {day for day in days if not all(head.whole for head in _of(heads, day))}
    if not fresh:
        seen = by_names(folder, mirror, heads)
        if seen.left_over:
            _put(link, folder, heads, {})
        return Compacted({}, 0, _troubled(days, seen))
    kept = found(folder, mirror, lambda: heads_of(link))
    logs = _logs(link, kept)
    hold = holding(row for path in kept.tables if path >= _folder(min(fresh)) for row in _rows(kept, path))
    left = _troubled(days, kept.checked)
    files, left_out, changed = dict[str, tuple[int, int]](), 0, dict[str, File | None]()
    for day in days:
        if day in left:
            continue
        mine = [path for path in kept.tables if path.startswith(_folder(day))]
        rows = [row for path in mine for row in _rows(kept, path)]
        file, out = compacted(day, rows, logs, hold if day in fresh else None)
        if day in fresh or (mine and (file is None or out >= file.pieces)):
            changed[day] = file
            files[day], left_out = (len(mine), int(file is not None)), left_out + out
    if changed or kept.checked.left_over:
        _put(link, folder, kept.heads, changed)
    return Compacted(files, left_out, left)


def _troubled(days: Iterable[str], seen: Checked) -> dict[str, str]:
    first = {day: next((path for path in seen.trouble if path.startswith(_folder(day))), "") for day in days}
    return {day: path for day, path in first.items() if path}


def _rows(kept: Found, path: str) -> list[Row]:
    return kept.tables[path].to_pylist()


def _folder(day: str) -> str:
    return f"date={day}/"


def _logs(link: Link, kept: Found) -> Logs:
    named = {str(name) for table in kept.tables.values() for name in table.column("topic").to_pylist()}
    try:
        with ClusterClient(link.destination) as client:
            view = client.metadata(named)
            there = [Partition(name, n) for name, topic in view.topics.items() for n in topic.partitions]
            starts = list_offsets(client, there, Point.START)
            heard = heard_ids(client, named)  # one broker's metadata may be stale
    except RemoteFault as error:
        raise Indeterminate(f"mirror {link.mirror.name}: where its logs begin is not known: {error}") from None
    seen = {name: frozenset({topic.id}) for name, topic in view.topics.items()}  # also where topics have no ids yet
    ids = {name: told | seen.get(name, frozenset()) for name, told in heard.ids.items()}
    return Logs(ids, frozenset(named) if heard.silent else view.denied, starts)


def _put(link: Link, folder: Folder, before: Heads, changed: Mapping[str, File | None]) -> None:
    """Files, then heads, then removal of old files."""
    mirror = link.mirror.name
    for file in changed.values():
        if file is not None:
            receipts.write(folder, mirror, file)
    with door(link, Verb.RECEIPTS) as writer:
        heads = writer.state.receipts.get(mirror, {})
        for day, file in changed.items():
            if _of(heads, day) == _of(before, day):  # unless another compaction was quicker
                one = () if file is None else (Kept(file.name, file.sha256, file.pieces, stored=True),)
                whole = ReceiptsHead(mirror=mirror, part=day, files=one, where=folder.where)
                told, gone = put_together(heads, whole)
                writer.put(told, *map(Forget, gone))
                heads = writer.state.receipts.get(mirror, {})
        for file in changed.values():
            if file is not None and not _is_there(folder, mirror, file):  # removed by another compaction as left over
                receipts.write(folder, mirror, file)
        for path in sorted(by_names(folder, mirror, heads).left_over, key=is_day_file, reverse=True):
            folder.remove(f"receipts of mirror {mirror}", f"{mirror_folder(mirror)}/{path}", ADVICE)


def _is_there(folder: Folder, mirror: MirrorName, file: File) -> bool:
    try:
        return folder.read(f"{mirror_folder(mirror)}/{file.path}") == file.content
    except OSError:
        return False


def _of(heads: Heads, day: str) -> list[ReceiptsHead]:
    return [head for _, head in sorted(heads.items()) if head.day == day]
