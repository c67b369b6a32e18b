"""Compacts the receipts of past days, and rebuilds missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mirror_core.decide.verbs import MirrorCommand
from mirror_core.evidence import receipts
from mirror_core.evidence.compaction import DestinationLogs, ReceiptRow, compact_day, find_newest_pieces
from mirror_core.evidence.folders import Folder
from mirror_core.evidence.heads import CheckedReceipts, ReceiptHeads, is_day_file, replace_day
from mirror_core.evidence.kept import StoredReceipts, check_by_names, read_receipts
from mirror_core.evidence.receipts import RECEIPTS_ADVICE, ReceiptsFile, format_mirror_folder
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import OffsetPoint, list_offsets
from mirror_core.kafka.placing import fetch_topic_ids
from mirror_core.mirrors.door import take_control
from mirror_core.model.errors import Indeterminate, RemoteFault
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.receipts import ReceiptFileEntry, ReceiptsHead
from mirror_core.parity.certified_scope import heads_of
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import Tombstone


@dataclass(frozen=True, slots=True)
class ReceiptCompaction:
    files: Mapping[str, tuple[int, int]]
    """Files before and now, by day."""
    pieces_left_out: int
    troubled: Mapping[str, str]


def first_open_day() -> str:
    """UTC, ISO 8601. Failed writes are retried for hours."""
    return (datetime.now(UTC).date() - timedelta(days=1)).isoformat()


def compact_receipts(link: MirrorLink, folder: Folder, before: str) -> ReceiptCompaction:
    """One file for each day before this one. A crash leaves equivalent receipts.

    A day with a lost or altered file stays: nothing else would show that.
    """
    mirror = link.mirror.name
    heads = heads_of(link)
    days = sorted({head.day for head in heads.values() if head.day < before})
    new_days = {day for day in days if not all(head.is_whole_day for head in _list_heads_of_day(heads, day))}
    if not new_days:
        named_files = check_by_names(folder, mirror, heads)
        if named_files.left_over:
            _replace_files(link, folder, heads, {})
        return ReceiptCompaction({}, 0, _list_troubled_days(days, named_files))
    stored = read_receipts(folder, mirror, lambda: heads_of(link))
    logs = _read_logs(link, stored)
    coverage = find_newest_pieces(
        row for path in stored.tables if path >= _get_day_folder(min(new_days)) for row in _list_rows(stored, path)
    )
    troubled = _list_troubled_days(days, stored.checked)
    files, left_out, changed = dict[str, tuple[int, int]](), 0, dict[str, ReceiptsFile | None]()
    for day in days:
        if day in troubled:
            continue
        paths = [path for path in stored.tables if path.startswith(_get_day_folder(day))]
        rows = [row for path in paths for row in _list_rows(stored, path)]
        file, dropped = compact_day(day, rows, logs, coverage if day in new_days else None)
        if day in new_days or (paths and (file is None or dropped >= file.pieces)):
            changed[day] = file
            files[day], left_out = (len(paths), int(file is not None)), left_out + dropped
    if changed or stored.checked.left_over:
        _replace_files(link, folder, stored.heads, changed)
    return ReceiptCompaction(files, left_out, troubled)


def _list_troubled_days(days: Iterable[str], checked: CheckedReceipts) -> dict[str, str]:
    first = {
        day: next((path for path in checked.faulty_paths if path.startswith(_get_day_folder(day))), "") for day in days
    }
    return {day: path for day, path in first.items() if path}


def _list_rows(stored: StoredReceipts, path: str) -> list[ReceiptRow]:
    return stored.tables[path].to_pylist()


def _get_day_folder(day: str) -> str:
    return f"date={day}/"


def _read_logs(link: MirrorLink, stored: StoredReceipts) -> DestinationLogs:
    named = {str(name) for table in stored.tables.values() for name in table.column("topic").to_pylist()}
    try:
        with ClusterClient(link.destination) as client:
            metadata = client.metadata(named)
            partitions = [Partition(name, n) for name, topic in metadata.topics.items() for n in topic.partitions]
            starts = list_offsets(client, partitions, OffsetPoint.START)
            id_answers = fetch_topic_ids(client, named)  # one broker's metadata may be stale
    except RemoteFault as error:
        raise Indeterminate(f"mirror {link.mirror.name}: where its logs begin is not known: {error}") from None
    ids_by_name = {
        name: frozenset({topic.id}) for name, topic in metadata.topics.items()
    }  # also where topics have no ids yet
    ids = {name: answered_ids | ids_by_name.get(name, frozenset()) for name, answered_ids in id_answers.ids.items()}
    return DestinationLogs(ids, frozenset(named) if id_answers.unreachable_brokers else metadata.denied, starts)


def _replace_files(
    link: MirrorLink, folder: Folder, before: ReceiptHeads, changed: Mapping[str, ReceiptsFile | None]
) -> None:
    """Files, then heads, then removal of old files."""
    mirror = link.mirror.name
    for file in changed.values():
        if file is not None:
            receipts.write_receipts(folder, mirror, file)
    with take_control(link, MirrorCommand.RECEIPTS) as writer:
        heads = writer.state.receipts.get(mirror, {})
        for day, file in changed.items():
            if _list_heads_of_day(heads, day) == _list_heads_of_day(
                before, day
            ):  # unless another compaction was quicker
                day_files = (
                    () if file is None else (ReceiptFileEntry(file.name, file.sha256, file.pieces, stored=True),)
                )
                day_head = ReceiptsHead(mirror=mirror, part=day, files=day_files, location=folder.where)
                new_head, replaced = replace_day(heads, day_head)
                writer.put(new_head, *map(Tombstone, replaced))
                heads = writer.state.receipts.get(mirror, {})
        for file in changed.values():
            if file is not None and not _is_stored(folder, mirror, file):  # removed by another compaction as left over
                receipts.write_receipts(folder, mirror, file)
        for path in sorted(check_by_names(folder, mirror, heads).left_over, key=is_day_file, reverse=True):
            folder.remove(f"receipts of mirror {mirror}", f"{format_mirror_folder(mirror)}/{path}", RECEIPTS_ADVICE)


def _is_stored(folder: Folder, mirror: MirrorName, file: ReceiptsFile) -> bool:
    try:
        return folder.read(f"{format_mirror_folder(mirror)}/{file.path}") == file.content
    except OSError:
        return False


def _list_heads_of_day(heads: ReceiptHeads, day: str) -> list[ReceiptsHead]:
    return [head for _, head in sorted(heads.items()) if head.day == day]
