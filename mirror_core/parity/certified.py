from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from mirror_core.decide.parity import DIGEST, ENDS, Row, judge
from mirror_core.evidence.certificates import Gap, Vouched, shortfall
from mirror_core.evidence.folders import Folder, local_folder
from mirror_core.evidence.heads import with_receipts
from mirror_core.evidence.parity_report import write_report
from mirror_core.evidence.suites import Demands
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.kafka.log_faults import Trimmed
from mirror_core.kafka.placing import Heard, heard_ids
from mirror_core.kafka.reader import AHEAD, LogReader
from mirror_core.kafka.topics import NO_ID
from mirror_core.model.copying import PIECE_OFFSETS, Piece
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity import ALTERED, Finding, ParityRange, ParityResult
from mirror_core.parity.certified_scope import Certified, ranges_of
from mirror_core.parity.differences import damage
from mirror_core.wire.digest import MODULUS, content

CLEANED: Final = (
    "not as it was copied, and not comparable: the topic is cleaned by key, on each cluster at its own times; compare "
    "it with the source (`mirrorbook parity`, level 3)"
)
MADE_ANEW: Final = "the topic was deleted, or made anew, while it was read: compare again"
UNSURE: Final = "not known whether the topic was made anew while it was read"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedTask:
    config_path: str
    destination: ClusterName
    pieces: tuple[tuple[Partition, Piece], ...]
    cleaned: frozenset[str]


RunTasks = Callable[[Sequence[CertifiedTask]], Sequence[Row]]


def prove(
    config_path: Path,
    destination: ClusterName,
    scope: Certified,
    output: Path | None,
    *,
    run: RunTasks,
    tasks: int,
    demands: Demands | None = None,
) -> tuple[ParityResult, Sequence[Row]]:
    """Compare the destination with receipts, in at most `tasks` tasks; also returns a row for each piece.

    The report is that of a comparison at level 2 with the receipts as source. Unreadable data and gaps in receipts are
    reasons.
    """
    started, began = time.time(), time.monotonic()
    config = load_config(config_path)
    config.cluster(destination)
    ranges = ranges_of(scope)
    rows = [_end(wanted, scope.ends[wanted.partition][1]) for wanted in ranges]
    work = [
        CertifiedTask(
            config_path=str(config.path.absolute()), destination=destination, pieces=pieces, cleaned=scope.cleaned
        )
        for pieces in share(scope.vouched, tasks)
    ]
    rows = _still_ours(config.cluster(destination), scope.ids, [*rows, *run(work)]) if work else rows
    of_pieces = [row for row in rows if row.chunk >= 0]
    holes = [_hole(partition, gap) for partition, mine in scope.unproved.items() for gap in mine]
    table = tuple(sorted([*rows, *holes], key=lambda row: (row.partition, row.chunk >= 0, row.start)))
    judged = judge(ranges, table, DIGEST)
    if scope.unproved:
        every = scope.ends.keys() | scope.unproved.keys()
        judged = replace(judged, reasons=(shortfall(scope.unproved, len(every)), *judged.reasons))
    result = replace(with_receipts(judged, scope.checked), seconds=round(time.monotonic() - began, 3))
    if output is None:
        return result, of_pieces
    source = ClusterName(f"receipts in {scope.receipts}")
    reported = write_report(
        output,
        result,
        table,
        source=source,
        destination=destination,
        level=DIGEST,
        started=started,
        demands=demands,
        of_table=judged.verdict,
    )
    return reported, of_pieces


def _still_ours(cluster: ClusterConfig, ids: Mapping[str, str], rows: Sequence[Row]) -> list[Row]:
    """Receipts do not speak of a topic that was recreated during the reading.

    Where no broker answers, equal rows become unknown; differences stay.
    """
    topics = {row.partition.topic for row in rows}
    try:
        with ClusterClient(cluster) as client:
            heard = heard_ids(client, topics)
    except MirrorError as error:
        return [replace(row, error=f"{UNSURE}: {error}") if row.equal else row for row in rows]
    return [_judged(row, heard, ids.get(row.partition.topic, "")) for row in rows]


def _judged(row: Row, heard: Heard, topic_id: str) -> Row:
    told = heard.ids[row.partition.topic]
    if told == {topic_id} or topic_id == NO_ID:
        return row
    if told:
        seen = f" (what was read: {row.findings[0].detail})" if row.findings else ""
        return replace(row, error=f"{MADE_ANEW}{seen}", findings=(), differing=0, damaged=())
    silent = f", and broker(s) {', '.join(map(str, heard.silent))} do not answer" if heard.silent else ""
    return replace(row, error=f"{UNSURE}: no broker tells of it any more{silent}") if row.equal else row


def verify(task: CertifiedTask) -> tuple[Row, ...]:
    """A row for each piece; what cannot be read becomes a row with an error."""
    return tuple(verifying(task))


def verifying(task: CertifiedTask) -> Iterator[Row]:
    """In the order of the task's pieces, as they are known."""
    try:
        cluster = load_config(Path(task.config_path), only=Principal.DATA).cluster(task.destination)
    except MirrorError as error:
        yield from unread(task, str(error))
        return
    with LogReader(cluster) as reader:
        for number, (partition, piece) in enumerate(task.pieces):
            if number % AHEAD == 0:
                reader.ahead({p: one.first for p, one in reversed(task.pieces[number : number + AHEAD])})
            try:
                row = _verified(reader, partition, piece)
            except Trimmed as error:
                row = replace(_row(partition, piece), error=f"the log lost it while it was read: {error}")
            except MirrorError as error:
                damaged = damage(partition, error, piece.first, piece.next)
                row = replace(_row(partition, piece), error=str(error), damaged=damaged)
            if not row.error and not row.equal:
                row = replace(row, error=CLEANED) if partition.topic in task.cleaned else _altered(row)
            yield row


class Proof(Protocol):
    @property
    def tasks(self) -> int: ...

    def folder(self, place: str) -> Folder: ...

    def run(self, tasks: Sequence[CertifiedTask]) -> Sequence[Row]: ...


class LocalProof:
    tasks = 4

    def folder(self, place: str) -> Folder:
        return local_folder(place)

    def run(self, tasks: Sequence[CertifiedTask]) -> Sequence[Row]:
        with ThreadPoolExecutor(max(1, len(tasks))) as pool:
            return [row for rows in pool.map(verify, tasks) for row in rows]


def unread(task: CertifiedTask, error: str) -> tuple[Row, ...]:
    return tuple(replace(_row(partition, piece), error=error) for partition, piece in task.pieces)


def _verified(reader: LogReader, partition: Partition, piece: Piece) -> Row:
    """Only batches that begin in the piece are in its digest."""
    records = total = 0
    for header, batch in reader.batches(partition, piece.first, piece.next):
        if header.base_offset >= piece.first:
            records += header.record_count
            total += content(header.base_offset, batch)
    return replace(_row(partition, piece), dst_count=records, dst_digest=f"{total % MODULUS:032x}")


def _altered(row: Row) -> Row:
    """Batches stay as acknowledged, so a difference is no question of batch boundaries."""
    text = (
        f"[{row.start}, {row.end}) is not what was copied: the log holds {row.dst_count} records, digest "
        f"{row.dst_digest}; the receipt says {row.src_count}, digest {row.src_digest}. One of the two was altered"
    )
    finding = Finding(partition=row.partition, offset=row.start, kind=ALTERED, detail=text)
    return replace(row, findings=(finding,), differing=1)


def _row(partition: Partition, piece: Piece) -> Row:
    return Row(
        partition=partition,
        chunk=piece.first // PIECE_OFFSETS,
        start=piece.first,
        end=piece.next,
        level=DIGEST,
        src_count=piece.records,
        src_digest=piece.digest,
    )


def _hole(partition: Partition, gap: Gap) -> Row:
    chunk = gap.start // PIECE_OFFSETS
    return Row(partition=partition, chunk=chunk, start=gap.start, end=gap.end, level=DIGEST, error=gap.why)


def _end(wanted: ParityRange, end: Offset) -> Row:
    lost = []
    if end < wanted.end:
        text = f"the destination's log ends at {end}; [{end}, {wanted.end}) was copied, and is missing there"
        lost.append(Finding(partition=wanted.partition, offset=end, kind="log end", detail=text))
    return Row(
        partition=wanted.partition,
        chunk=-1,
        start=wanted.start,
        end=wanted.end,
        level=ENDS,
        src_count=wanted.end - wanted.start,
        dst_count=min(end, wanted.end) - wanted.start,
        findings=tuple(lost),
        differing=len(lost),
        shared=(wanted.start, wanted.end),
    )


def share(found: Mapping[Partition, Vouched], tasks: int) -> list[tuple[tuple[Partition, Piece], ...]]:
    """About equally many records for each task."""
    loads = [0] * max(1, tasks)
    shares: list[list[tuple[Partition, Piece]]] = [[] for _ in loads]
    pieces = [(partition, piece) for partition, one in sorted(found.items()) for piece in one.pieces]
    for partition, piece in sorted(pieces, key=lambda one: -one[1].records):
        lightest = loads.index(min(loads))
        shares[lightest].append((partition, piece))
        loads[lightest] += piece.records + 1
    return [tuple(sorted(mine, key=lambda one: (one[0], one[1].first))) for mine in shares if mine]
