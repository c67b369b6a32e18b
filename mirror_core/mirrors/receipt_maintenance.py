"""Compacts the receipts of past days, and rebuilds missing ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.parity_result import ParityRow
from mirror_core.evidence import receipt_files
from mirror_core.evidence.certificates import Coverage, find_uncovered, make_blank_pieces
from mirror_core.evidence.file_store import Folder
from mirror_core.evidence.receipt_files import (
    RECEIPTS_ADVICE,
    DestinationLogs,
    ReceiptsFile,
    check_by_names,
    compact_days,
    format_mirror_folder,
    spill_receipts,
)
from mirror_core.evidence.receipt_index import (
    CheckedReceipts,
    ReceiptHeads,
    add_file,
    is_day_file,
    mark_stored,
    replace_day,
    supersede_files,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.reassignment import fetch_topic_ids
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.mirrors.control import take_control
from mirror_core.model.errors import Indeterminate, RemoteFault
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.model.receipt_heads import ReceiptFileEntry, ReceiptsHead
from mirror_core.model.task_messages import PIECE_OFFSETS, Receipt, ReceiptPiece
from mirror_core.model.timing import now_ms
from mirror_core.parity.certificate_check import (
    CertificateRunner,
    CertificateScope,
    CertificateTask,
    distribute_pieces,
    heads_of,
    read_certificate_scope,
)
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State, Tombstone


@dataclass(frozen=True, slots=True)
class ReceiptCompaction:
    files: Mapping[str, tuple[int, int]]
    """Before and now, by day."""
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
    with spill_receipts(folder, mirror, lambda: heads_of(link)) as (heads, checked, buckets):
        troubled = _list_troubled_days(days, checked)
        compacted = compact_days(buckets, {*days} - troubled.keys(), new_days, _read_logs(link, buckets.topics))
    files, left_out, changed = dict[str, tuple[int, int]](), 0, dict[str, ReceiptsFile | None]()
    for day in days:
        if day in troubled:
            continue
        paths = [path for path in checked.readable if path.startswith(_get_day_folder(day))]
        file, dropped = compacted.get(day, (None, 0))
        if day in new_days or (paths and (file is None or dropped >= file.pieces)):
            changed[day] = file
            files[day], left_out = (len(paths), int(file is not None)), left_out + dropped
    if changed or checked.left_over:
        _replace_files(link, folder, heads, changed)
    return ReceiptCompaction(files, left_out, troubled)


def _list_troubled_days(days: Iterable[str], checked: CheckedReceipts) -> dict[str, str]:
    first = {
        day: next((path for path in checked.faulty_paths if path.startswith(_get_day_folder(day))), "") for day in days
    }
    return {day: path for day, path in first.items() if path}


def _get_day_folder(day: str) -> str:
    return f"date={day}/"


def _read_logs(link: MirrorLink, named: Collection[str]) -> DestinationLogs:
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
    mirror = link.mirror.name
    for file in changed.values():
        if file is not None:
            receipt_files.write_receipts(folder, mirror, file)
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
                receipt_files.write_receipts(folder, mirror, file)
        for path in sorted(check_by_names(folder, mirror, heads).left_over, key=is_day_file, reverse=True):
            folder.remove(f"receipts of mirror {mirror}", f"{format_mirror_folder(mirror)}/{path}", RECEIPTS_ADVICE)


def _is_stored(folder: Folder, mirror: MirrorName, file: ReceiptsFile) -> bool:
    try:
        return folder.read(f"{format_mirror_folder(mirror)}/{file.path}") == file.content
    except OSError:
        return False


def _list_heads_of_day(heads: ReceiptHeads, day: str) -> list[ReceiptsHead]:
    return [head for _, head in sorted(heads.items()) if head.day == day]


ROUND_OFFSETS: Final = 64 * PIECE_OFFSETS
CompareRanges = Callable[[Sequence[ParityRange]], ParityResult]


@dataclass(frozen=True, slots=True)
class RebuildResult:
    records: int
    files: int
    uncovered: Mapping[Partition, tuple[str, ...]]
    """Not covered by receipts, and why."""
    settled: tuple[str, ...]


def rebuild_receipts(
    link: MirrorLink,
    state: State,
    folder: Folder,
    proof: CertificateRunner,
    compare: CompareRanges,
    report: Callable[[str], None],
) -> RebuildResult:
    """Certifies offsets without receipts that equal the source's.

    Digests are taken before comparing: the next verification finds alterations in between. A round is stored before the
    next. Indeterminate when a cluster does not answer.
    """
    scope = read_certificate_scope(link, state, folder)
    starts = _list_source_starts(link, scope.ends)
    queue = RebuildQueue(link.mirror.name, state, scope, starts)
    records = files = 0
    for pieces in queue.next_rounds():
        rows = [row for row in proof.run(_build_tasks(link, pieces, proof.tasks)) if row.chunk >= 0]
        compared = compare(_to_ranges(pieces, queue.mirrored))
        accepted = queue.select_certified(pieces, rows, compared, _list_source_starts(link, pieces))
        if accepted:
            _store_receipts(link, folder, state, accepted)
            records, files = (
                records + sum(p.records for partition_pieces in accepted.values() for p in partition_pieces),
                files + 1,
            )
            report(
                f"{records} records are vouched for again, {queue.remaining_offsets} offsets are left to be compared"
            )
    settled_files: tuple[str, ...] = ()
    if not queue.may_retry:
        settled_files = (
            *scope.checked.faulty_paths,
            *scope.checked.unwritten,
            *(scope.checked.readable if scope.checked.headless else ()),
        )
    if settled_files:
        _record_settled(link, settled_files)
    return RebuildResult(records, files, queue.uncovered, settled_files)


class RebuildQueue:
    def __init__(
        self, mirror: MirrorName, state: State, scope: CertificateScope, starts: Mapping[Partition, Offset]
    ) -> None:
        self.uncovered: dict[Partition, tuple[str, ...]] = {}
        self.may_retry = False
        self.mirrored: dict[Partition, Offset] = {}
        """Source records below may have compacted away what is compared."""
        self._pieces: dict[Partition, deque[ReceiptPiece]] = {}
        lease = scope.live_lease
        for partition in scope.uncertified.keys() - scope.ends.keys():
            for gap in scope.uncertified[partition]:
                self._add_uncovered(partition, f"[{gap.start}, {gap.end}): {gap.reason}")
        for partition, (start, end) in sorted(scope.ends.items()):
            status = state.partitions[mirror][partition]
            generation, _, reached = scope.newest_receipts.get(partition, (-1, 0, start))
            if status.lmo is not None:
                end = min(end, status.lmo)
            self.mirrored[partition] = end
            if status.lmo is None and lease is not None and generation != lease.generation and start < end:
                self._add_uncovered(
                    partition, "its data plane has not told yet where it began: try again in a minute", True
                )
                continue
            if status.lmo is None and lease is not None:
                end = min(end, reached)  # its receipts will cover what follows
            no_certificate = Coverage((), None)
            coverage = no_certificate if scope.checked.headless else scope.certified.get(partition, no_certificate)
            log_start = starts.get(partition)
            spans = find_uncovered(coverage, start, Offset(max(start, end)))
            for span in spans:
                if log_start is None or span[0] < log_start:
                    gap_end = span[1] if log_start is None else min(log_start, span[1])
                    self._add_uncovered(partition, f"[{span[0]}, {gap_end}): the source does not hold it any more")
            source_start = log_start if log_start is not None else end
            ranges = [
                (max(source_start, range_start), range_end)
                for range_start, range_end in spans
                if max(source_start, range_start) < range_end
            ]
            self._pieces[partition] = deque(piece for span in ranges for piece in make_blank_pieces(span))

    @property
    def remaining_offsets(self) -> int:
        return sum(piece.next - piece.first for queue in self._pieces.values() for piece in queue)

    def next_rounds(self) -> Iterator[dict[Partition, list[ReceiptPiece]]]:
        """Contiguous in each partition."""
        while self.remaining_offsets:
            chosen, size = dict[Partition, list[ReceiptPiece]](), 0
            for partition, queue in self._pieces.items():
                batch: list[ReceiptPiece] = []
                while queue and size < ROUND_OFFSETS and (not batch or batch[-1].next == queue[0].first):
                    batch.append(queue.popleft())
                    size += batch[-1].next - batch[-1].first
                if batch:
                    chosen[partition] = batch
            yield chosen

    def select_certified(
        self,
        pieces: Mapping[Partition, Sequence[ReceiptPiece]],
        rows: Sequence[ParityRow],
        compared: ParityResult,
        starts: Mapping[Partition, Offset],
    ) -> dict[Partition, list[ReceiptPiece]]:
        """The first refused piece is given up; those behind it come again.

        `starts`: read after the comparison.
        """
        rows_by_start = {(row.partition, row.start): row for row in rows}
        errors = {row.partition: row.error for row in reversed(rows) if row.error}
        accepted: dict[Partition, list[ReceiptPiece]] = {}
        for partition, partition_pieces in pieces.items():
            for number, piece in enumerate(partition_pieces):
                row = rows_by_start.get((partition, piece.first))
                reason = _explain_refusal(partition, piece, row, compared, starts.get(partition), errors)
                if reason or row is None:
                    self._add_uncovered(partition, f"[{piece.first}, {piece.next}): {reason}", True)
                    self._pieces[partition].extendleft(reversed(partition_pieces[number + 1 :]))
                    break
                counted = replace(piece, records=row.dst_count or 0, digest=row.dst_digest)
                accepted.setdefault(partition, []).append(counted)
        return accepted

    def _add_uncovered(self, partition: Partition, reason: str, may_retry: bool = False) -> None:
        self.uncovered[partition] = (*self.uncovered.get(partition, ()), reason)
        self.may_retry |= may_retry


def _explain_refusal(
    partition: Partition,
    piece: ReceiptPiece,
    row: ParityRow | None,
    compared: ParityResult,
    start: Offset | None,
    errors: Mapping[Partition, str],
) -> str:
    """`errors`: of the partitions' first chunks that could not be read."""
    if row is None:
        return "no task reported it"
    if row.error:
        return row.error
    if start is None or piece.first < start:
        return "the source has deleted it meanwhile"
    if compared.verified_ends.get(partition, Offset(0)) >= piece.next:
        return ""
    findings = [f for f in compared.findings if f.partition == partition]
    if findings:
        return f"it differs from the source: {findings[0].kind}: {findings[0].detail}"
    return errors.get(partition, "it could not be compared with the source")


def _build_tasks(
    link: MirrorLink, pieces: Mapping[Partition, Sequence[ReceiptPiece]], tasks: int
) -> list[CertificateTask]:
    coverage = {partition: Coverage(tuple(partition_pieces), None) for partition, partition_pieces in pieces.items()}
    path, destination = str(link.config.path.absolute()), link.mirror.destination_identity
    return [
        CertificateTask(
            config_path=path, destination=destination, pieces=partition_pieces, compacted_topics=frozenset()
        )
        for partition_pieces in distribute_pieces(coverage, tasks)
    ]


def _to_ranges(
    pieces: Mapping[Partition, Sequence[ReceiptPiece]], mirrored: Mapping[Partition, Offset]
) -> list[ParityRange]:
    return [
        ParityRange(
            partition=partition,
            start=partition_pieces[0].first,
            end=partition_pieces[-1].next,
            stopped_at=mirrored[partition],
        )
        for partition, partition_pieces in pieces.items()
    ]


def _list_source_starts(link: MirrorLink, partitions: Collection[Partition]) -> dict[Partition, Offset]:
    try:
        with ClusterClient(link.source) as client:
            topics = find_existing_topics(client, {partition.topic for partition in partitions})
            present = [p for p in partitions if p.topic in topics and p.index in topics[p.topic].partitions]
            return list_offsets(client, present, OffsetPoint.START)
    except RemoteFault as error:
        raise Indeterminate(
            f"mirror {link.mirror.name}: receipts are rebuilt by comparing with the source, which does not answer: "
            f"{error}"
        ) from None


def _store_receipts(
    link: MirrorLink, folder: Folder, state: State, accepted: Mapping[Partition, Sequence[ReceiptPiece]]
) -> None:
    lease, statuses = state.leases.get(link.mirror.name), state.partitions[link.mirror.name]
    new_receipts = [_to_receipt(link, statuses[p], p, partition_pieces) for p, partition_pieces in accepted.items()]
    # Older than this generation's epochs, so that later receipts win.
    file = receipt_files.pack_receipts(
        lease.generation if lease else 0, 0, new_receipts, f"rebuilt-{now_ms():013d}.parquet"
    )
    with take_control(link, MirrorCommand.RECEIPTS) as writer:
        part, promise = f"{file.day}-rebuilt", ReceiptFileEntry(file.name, file.sha256, file.pieces, stored=False)
        before = writer.state.receipts.get(link.mirror.name, {})
        writer.put(add_file(link.mirror.name, before, part, promise, location=folder.where))
        receipt_files.write_receipts(folder, link.mirror.name, file)
        writer.put(*mark_stored(writer.state.receipts[link.mirror.name], {(part, file.name)}))


def _to_receipt(
    link: MirrorLink, status: PartitionStatus, partition: Partition, pieces: Sequence[ReceiptPiece]
) -> Receipt:
    first, end, records = pieces[0].first, pieces[-1].next, sum(piece.records for piece in pieces)
    return Receipt(
        mirror=link.mirror.name,
        partition=partition,
        epoch=0,
        task=0,
        first=first,
        next=end,
        records=records,
        gaps=end - first - records,
        batches=0,
        bytes=0,
        pieces=tuple(pieces),
        source_topic_id=status.source_topic_id,
        destination_topic_id=status.destination_topic_id,
        source_end=None,
        started_ms=now_ms(),
        ended_ms=now_ms(),
    )


def _record_settled(link: MirrorLink, paths: Collection[str]) -> None:
    part, mirror = f"{datetime.now(UTC).date().isoformat()}-rebuilt", link.mirror.name
    with take_control(link, MirrorCommand.RECEIPTS) as writer:
        head = writer.state.receipts.get(mirror, {}).get(part) or ReceiptsHead(mirror=mirror, part=part, files=())
        writer.put(supersede_files(head, paths))
