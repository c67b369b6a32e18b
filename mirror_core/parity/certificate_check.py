"""Compares the destination with receipts, without the source."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from mirror_core.decide.parity_result import LEVEL_DIGEST, LEVEL_ENDS, ParityRow, judge_rows
from mirror_core.decide.topic_settings import is_compacted
from mirror_core.evidence.certificates import (
    Coverage,
    DatedPiece,
    UncoveredRange,
    compute_coverage,
    find_gaps,
    format_shortfall,
)
from mirror_core.evidence.expectation_suites import TableExpectations
from mirror_core.evidence.file_store import Folder, open_local_folder
from mirror_core.evidence.parity_report import write_parity_report
from mirror_core.evidence.receipt_files import ReceiptRow, parse_pieces, spill_receipts
from mirror_core.evidence.receipt_index import CheckedReceipts, ReceiptHeads, apply_receipt_faults
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points
from mirror_core.kafka.log_reader import PREFETCH_LOGS, LogReader, LogTrimmed
from mirror_core.kafka.reassignment import TopicIds, fetch_topic_ids
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.kafka.topics import NO_TOPIC_ID, describe_configs
from mirror_core.model.errors import Indeterminate, MirrorError, RemoteFault
from mirror_core.model.mirror import Lease, PartitionStatus
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ALTERED_KIND, ParityFinding, ParityRange, ParityResult
from mirror_core.model.task_messages import PIECE_OFFSETS, ReceiptPiece
from mirror_core.parity.comparable_ranges import COMPARABLE_STATES
from mirror_core.parity.record_differences import find_damage
from mirror_core.state.lease import observe_live_lease
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_complete_state
from mirror_core.wire.batch import DIGEST_MODULUS, compute_batch_digest

_ADVICE: Final = "`mirrorbook mirror recover` shows what can be done"
GONE_REASON: Final = f"it was copied, and the destination does not show it: {_ADVICE}"
REPLACED_REASON: Final = f"it was copied, and the destination shows another topic of its name: {_ADVICE}"
ALL_SOUND: Final = CheckedReceipts(readable=())
MAX_RECEIPT_AGE: Final = timedelta(minutes=5)  # with an older newest receipt a data plane stores none


@dataclass(frozen=True, slots=True)
class CertificateScope:
    receipts: str
    """Folder or URL."""
    ends: Mapping[Partition, tuple[Offset, Offset]]
    """Destination log starts and ends."""
    certified: Mapping[Partition, Coverage]
    compacted_topics: frozenset[str]
    left_out: Mapping[Partition, str]
    """Not part of the result, with the reason; includes parts of partitions."""
    checked: CheckedReceipts = ALL_SOUND
    newest_receipts: Mapping[Partition, tuple[int, int, Offset]] = field(default_factory=dict)
    """Generation, epoch and next offset."""
    uncertified: Mapping[Partition, tuple[UncoveredRange, ...]] = field(default_factory=dict)
    """While there is any, the mirror as a whole is not certified."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """On the destination."""
    live_lease: Lease | None = None


def read_certificate_scope(link: MirrorLink, state: State, folder: Folder) -> CertificateScope:
    """By unaltered receipts in this folder. Indeterminate when the destination or the receipts cannot be read."""
    mirror, statuses = link.mirror.name, state.partitions.get(link.mirror.name, {})
    try:
        with spill_receipts(folder, mirror, lambda: heads_of(link)) as (_, checked, buckets):
            with ClusterClient(link.destination) as client:
                topics = find_existing_topics(client, {p.topic for p in statuses})
                present = sorted(p for p in statuses if p.topic in topics and p.index in topics[p.topic].partitions)
                # Receipts say nothing about another topic of the same name.
                own = {p for p in present if statuses[p].destination_topic_id in ("", topics[p.topic].id)}
                points = list_offset_points(client, present, [OffsetPoint.START, OffsetPoint.LOG_END])
                configs = describe_configs(client, {p.topic for p in present})
            starts, ends = points[OffsetPoint.START], points[OffsetPoint.LOG_END]
            comparable = {p: starts[p] for p in present if p in own and statuses[p].state in COMPARABLE_STATES}
            coverage, newest, ended_at = read_coverage(buckets, statuses, comparable)
    except (RemoteFault, OSError) as error:
        raise Indeterminate(f"mirror {mirror}: what to prove is not known: {error}") from None
    lease = observe_live_lease(link.destination, state, mirror)
    uncertified, left_out = dict[Partition, tuple[UncoveredRange, ...]](), dict[Partition, str]()
    for p, status in sorted(statuses.items()):
        if p not in own:
            reached = newest[p][2] if p in newest else ends.get(p, Offset(0))
            if status.lmo is not None:
                left_out[p] = "the destination does not hold it any more; its mirroring had ended"
            elif reached:
                uncertified[p] = (UncoveredRange(Offset(0), reached, REPLACED_REASON if p in ends else GONE_REASON),)
            continue
        # Records from the LMO on are the applications' own.
        end = ends[p] if status.lmo is None else min(ends[p], status.lmo)
        if p in coverage:
            generation, _, reached = newest.get(p, (-1, 0, Offset(0)))
            is_copying = status.lmo is None and are_receipts_current(lease, generation, ended_at.get(p))
            uncertified[p], excluded = find_gaps(coverage[p], starts[p], end, reached if is_copying else None)
            left_out |= (
                {p: "; ".join(f"[{gap.start}, {gap.end}): {gap.reason}" for gap in excluded)} if excluded else {}
            )
        elif starts[p] < end:
            uncertified[p] = (
                UncoveredRange(starts[p], end, f"it is {status.state}: `mirrorbook mirror describe {mirror}`"),
            )
    return CertificateScope(
        folder.where,
        {p: (starts[p], ends[p]) for p in coverage},
        {p: partition_coverage for p, partition_coverage in coverage.items() if partition_coverage.pieces},
        frozenset(topic for topic, described in configs.items() if is_compacted(described.effective)),
        left_out,
        checked,
        newest,
        {p: gap_list for p, gap_list in uncertified.items() if gap_list},
        {p.topic: topics[p.topic].id for p in own},
        lease,
    )


def are_receipts_current(lease: Lease | None, generation: int, ended_at: datetime | None) -> bool:
    """By the data plane's clock, which dates both."""
    if lease is None or ended_at is None or generation != lease.generation:
        return False
    return ended_at > datetime.fromtimestamp(lease.heartbeat_ms / 1000, UTC) - MAX_RECEIPT_AGE


def read_coverage(
    buckets: Iterable[Iterable[ReceiptRow]],
    statuses: Mapping[Partition, PartitionStatus],
    starts: Mapping[Partition, Offset],
) -> tuple[dict[Partition, Coverage], dict[Partition, tuple[int, int, Offset]], dict[Partition, datetime]]:
    """Also newest receipts, and when their work ended. All rows of a partition are in one bucket."""
    coverage = {p: compute_coverage((), start) for p, start in starts.items()}
    newest, ended_at = dict[Partition, tuple[int, int, Offset]](), dict[Partition, datetime]()
    for rows in buckets:
        dated_pieces = defaultdict[Partition, list[DatedPiece]](list)
        for row in rows:
            partition = Partition(row["topic"], row["partition"])
            status = statuses.get(partition)
            if status and tuple(row[i] for i in _ID_COLUMNS) == tuple(getattr(status, i) for i in _ID_COLUMNS):
                generation, epoch = row["generation"], row["epoch"]
                if partition in starts:
                    dated_pieces[partition] += (DatedPiece(generation, epoch, piece) for piece in parse_pieces(row))
                receipt_key = generation, epoch, Offset(row["next"])
                if receipt_key > newest.get(partition, (0, 0, Offset(0))):
                    newest[partition], ended_at[partition] = receipt_key, row["ended"]
        coverage |= {p: compute_coverage(dated, starts[p], statuses[p].lmo) for p, dated in dated_pieces.items()}
    return coverage, newest, ended_at


def heads_of(link: MirrorLink) -> ReceiptHeads:
    state = read_complete_state(link.destination)
    state.require_readable(link.mirror.name)
    return state.receipts.get(link.mirror.name, {})


_ID_COLUMNS: Final = ("source_topic_id", "destination_topic_id")


def to_certified_ranges(scope: CertificateScope) -> list[ParityRange]:
    """Includes the gaps before them."""
    ranges = list[ParityRange]()
    for partition, coverage in scope.certified.items():
        assert coverage.start is not None
        assert coverage.end is not None
        range_start = min([coverage.start, *(gap.start for gap in scope.uncertified.get(partition, ()))])
        ranges.append(ParityRange(partition=partition, start=range_start, end=coverage.end, stopped_at=coverage.end))
    return ranges


COMPACTED_REASON: Final = (
    "not as it was copied, and not comparable: the topic is cleaned by key, on each cluster at its own times; compare "
    "it with the source (`mirrorbook parity`, level 3)"
)
RECREATED_REASON: Final = "the topic was deleted, or made anew, while it was read: compare again"
MAYBE_RECREATED_REASON: Final = "not known whether the topic was made anew while it was read"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateTask:
    config_path: str
    destination: ClusterIdentity
    pieces: tuple[tuple[Partition, ReceiptPiece], ...]
    compacted_topics: frozenset[str]


RunCertificateTasks = Callable[[Sequence[CertificateTask]], Sequence[ParityRow]]


def check_certificates(
    config_path: Path,
    destination: ClusterIdentity,
    scope: CertificateScope,
    output: Path | None,
    *,
    run: RunCertificateTasks,
    tasks: int,
    demands: TableExpectations | None = None,
) -> tuple[ParityResult, Sequence[ParityRow]]:
    """Compares the destination with receipts, in at most `tasks` tasks; also returns a row for each piece.

    The report is that of a comparison at level 2 with the receipts as source. Unreadable data and gaps in receipts are
    reasons.
    """
    started, began = time.time(), time.monotonic()
    config = load_config(config_path)
    cluster = config.pinned_cluster(destination)
    ranges = to_certified_ranges(scope)
    rows = [_to_end_row(wanted, scope.ends[wanted.partition][1]) for wanted in ranges]
    task_list = [
        CertificateTask(
            config_path=str(config.path.absolute()),
            destination=destination,
            pieces=pieces,
            compacted_topics=scope.compacted_topics,
        )
        for pieces in distribute_pieces(scope.certified, tasks)
    ]
    rows = _check_topic_ids(cluster, scope.topic_ids, [*rows, *run(task_list)]) if task_list else rows
    piece_rows = [row for row in rows if row.chunk >= 0]
    gap_rows = [_to_gap_row(partition, gap) for partition, gaps in scope.uncertified.items() for gap in gaps]
    table = tuple(sorted([*rows, *gap_rows], key=lambda row: (row.partition, row.chunk >= 0, row.start)))
    judged_result = judge_rows(ranges, table, LEVEL_DIGEST)
    if scope.uncertified:
        all_partitions = scope.ends.keys() | scope.uncertified.keys()
        judged_result = replace(
            judged_result, reasons=(format_shortfall(scope.uncertified, len(all_partitions)), *judged_result.reasons)
        )
    result = replace(apply_receipt_faults(judged_result, scope.checked), seconds=round(time.monotonic() - began, 3))
    if output is None:
        return result, piece_rows
    source = ClusterName(f"receipts in {scope.receipts}")
    reported = write_parity_report(
        output,
        result,
        table,
        source=source,
        destination=destination.name,
        level=LEVEL_DIGEST,
        started=started,
        demands=demands,
        table_verdict=judged_result.verdict,
    )
    return reported, piece_rows


def _check_topic_ids(cluster: ClusterConfig, ids: Mapping[str, str], rows: Sequence[ParityRow]) -> list[ParityRow]:
    """Receipts do not speak of a topic recreated during the reading.

    Where no broker answers, equal rows become unknown.
    """
    topics = {row.partition.topic for row in rows}
    try:
        with ClusterClient(cluster) as client:
            answers = fetch_topic_ids(client, topics)
    except MirrorError as error:
        return [replace(row, error=f"{MAYBE_RECREATED_REASON}: {error}") if row.equal else row for row in rows]
    return [_check_row_topic(row, answers, ids.get(row.partition.topic, "")) for row in rows]


def _check_row_topic(row: ParityRow, answers: TopicIds, topic_id: str) -> ParityRow:
    answered_ids = answers.ids[row.partition.topic]
    if answered_ids == {topic_id} or topic_id == NO_TOPIC_ID:
        return row
    if answered_ids:
        finding_text = f" (what was read: {row.findings[0].detail})" if row.findings else ""
        return replace(row, error=f"{RECREATED_REASON}{finding_text}", findings=(), differing=0, damaged=())
    silent_text = f", and {answers.format_unreachable()}" if answers.unreachable_brokers else ""
    return (
        replace(row, error=f"{MAYBE_RECREATED_REASON}: no broker tells of it any more{silent_text}")
        if row.equal
        else row
    )


def verify_task(task: CertificateTask) -> tuple[ParityRow, ...]:
    """A row for each piece."""
    return tuple(iterate_verified(task))


def iterate_verified(task: CertificateTask) -> Iterator[ParityRow]:
    """As they are known, in the order of the task's pieces."""
    try:
        cluster = load_config(Path(task.config_path), only_principal=Principal.DATA).pinned_cluster(task.destination)
    except MirrorError as error:
        yield from to_unread_certificate_rows(task, str(error))
        return
    with LogReader(cluster) as reader:
        for number, (partition, piece) in enumerate(task.pieces):
            if number % PREFETCH_LOGS == 0:
                reader.prefetch(
                    {p: ahead_piece.first for p, ahead_piece in reversed(task.pieces[number : number + PREFETCH_LOGS])}
                )
            try:
                row = _verify_piece(reader, partition, piece)
            except LogTrimmed as error:
                row = replace(_to_piece_row(partition, piece), error=f"the log lost it while it was read: {error}")
            except MirrorError as error:
                damaged = find_damage(partition, error, piece.first, piece.next)
                row = replace(_to_piece_row(partition, piece), error=str(error), damaged=damaged)
            if not row.error and not row.equal:
                row = (
                    replace(row, error=COMPACTED_REASON)
                    if partition.topic in task.compacted_topics
                    else _mark_altered(row)
                )
            yield row


class CertificateRunner(Protocol):
    @property
    def tasks(self) -> int: ...

    def folder(self, place: str) -> Folder: ...

    def run(self, tasks: Sequence[CertificateTask]) -> Sequence[ParityRow]: ...


class LocalCertificateRunner:
    tasks = 4

    def folder(self, place: str) -> Folder:
        return open_local_folder(place)

    def run(self, tasks: Sequence[CertificateTask]) -> Sequence[ParityRow]:
        with ThreadPoolExecutor(max(1, len(tasks))) as pool:
            return [row for rows in pool.map(verify_task, tasks) for row in rows]


def to_unread_certificate_rows(task: CertificateTask, error: str) -> tuple[ParityRow, ...]:
    return tuple(replace(_to_piece_row(partition, piece), error=error) for partition, piece in task.pieces)


def _verify_piece(reader: LogReader, partition: Partition, piece: ReceiptPiece) -> ParityRow:
    records = total = 0
    for header, batch in reader.batches(partition, piece.first, piece.next):
        if header.base_offset >= piece.first:
            records += header.record_count
            total += compute_batch_digest(header.base_offset, batch)
    return replace(_to_piece_row(partition, piece), dst_count=records, dst_digest=f"{total % DIGEST_MODULUS:032x}")


def _mark_altered(row: ParityRow) -> ParityRow:
    """Batches stay as acknowledged, so a difference is no question of batch boundaries."""
    text = (
        f"[{row.start}, {row.end}) is not what was copied: the log holds {row.dst_count} records, digest "
        f"{row.dst_digest}; the receipt says {row.src_count}, digest {row.src_digest}. One of the two was altered"
    )
    finding = ParityFinding(partition=row.partition, offset=row.start, kind=ALTERED_KIND, detail=text)
    return replace(row, findings=(finding,), differing=1)


def _to_piece_row(partition: Partition, piece: ReceiptPiece) -> ParityRow:
    return ParityRow(
        partition=partition,
        chunk=piece.first // PIECE_OFFSETS,
        start=piece.first,
        end=piece.next,
        level=LEVEL_DIGEST,
        src_count=piece.records,
        src_digest=piece.digest,
    )


def _to_gap_row(partition: Partition, gap: UncoveredRange) -> ParityRow:
    chunk = gap.start // PIECE_OFFSETS
    return ParityRow(
        partition=partition, chunk=chunk, start=gap.start, end=gap.end, level=LEVEL_DIGEST, error=gap.reason
    )


def _to_end_row(certified_range: ParityRange, end: Offset) -> ParityRow:
    findings = []
    if end < certified_range.end:
        text = f"the destination's log ends at {end}; [{end}, {certified_range.end}) was copied, and is missing there"
        findings.append(ParityFinding(partition=certified_range.partition, offset=end, kind="log end", detail=text))
    return ParityRow(
        partition=certified_range.partition,
        chunk=-1,
        start=certified_range.start,
        end=certified_range.end,
        level=LEVEL_ENDS,
        src_count=certified_range.end - certified_range.start,
        dst_count=min(end, certified_range.end) - certified_range.start,
        findings=tuple(findings),
        differing=len(findings),
        shared=(certified_range.start, certified_range.end),
    )


def distribute_pieces(
    coverage: Mapping[Partition, Coverage], tasks: int
) -> list[tuple[tuple[Partition, ReceiptPiece], ...]]:
    """About equally many records for each task."""
    loads = [0] * max(1, tasks)
    shares: list[list[tuple[Partition, ReceiptPiece]]] = [[] for _ in loads]
    pieces = [
        (partition, piece)
        for partition, partition_and_piece in sorted(coverage.items())
        for piece in partition_and_piece.pieces
    ]
    for partition, piece in sorted(pieces, key=lambda partition_and_piece: -partition_and_piece[1].records):
        lightest = loads.index(min(loads))
        shares[lightest].append((partition, piece))
        loads[lightest] += piece.records + 1
    return [
        tuple(
            sorted(task_pieces, key=lambda partition_and_piece: (partition_and_piece[0], partition_and_piece[1].first))
        )
        for task_pieces in shares
        if task_pieces
    ]
