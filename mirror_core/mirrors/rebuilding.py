from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from mirror_core.decide.parity import Row
from mirror_core.decide.verbs import Verb
from mirror_core.evidence import receipts
from mirror_core.evidence.certificates import Vouched, blank, unvouched
from mirror_core.evidence.folders import Folder
from mirror_core.evidence.heads import arrived, promised, settled
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.existing import existing
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.mirrors.door import door
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import PIECE_OFFSETS, Piece, Receipt
from mirror_core.model.errors import Indeterminate, RemoteFault
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity import ParityRange, ParityResult
from mirror_core.model.receipts import Kept, ReceiptsHead
from mirror_core.parity.certified import CertifiedTask, Proof, share
from mirror_core.parity.certified_scope import Certified, certified
from mirror_core.state.lease import copier
from mirror_core.state.link import Link
from mirror_core.state.records import State

ROUND: Final = 64 * PIECE_OFFSETS
Compare = Callable[[Sequence[ParityRange]], ParityResult]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    records: int
    files: int
    left: Mapping[Partition, tuple[str, ...]]
    """Not covered by receipts, and why."""
    settled: tuple[str, ...]


def rebuild(
    link: Link, state: State, folder: Folder, proof: Proof, compare: Compare, say: Callable[[str], None]
) -> Rebuilt:
    """Certify offsets without receipts that equal the source's.

    Digests are taken before comparing: the next verification finds alterations in between. A round is stored before the
    next. Indeterminate when a cluster does not answer.
    """
    scope = certified(link, state, folder)
    starts = _source_starts(link, scope.ends)
    work = Work(link.mirror.name, state, scope, starts)
    records = files = 0
    for pieces in work.rounds():
        told = [row for row in proof.run(_tasks(link, pieces, proof.tasks)) if row.chunk >= 0]
        compared = compare(_ranges(pieces, work.mirrored))
        good = work.judge(pieces, told, compared, _source_starts(link, pieces))
        if good:
            _keep(link, folder, state, good)
            records, files = records + sum(p.records for of_one in good.values() for p in of_one), files + 1
            say(f"{records} records are vouched for again, {work.offsets} offsets are left to be compared")
    gone: tuple[str, ...] = ()
    if not work.doubtful:
        gone = (
            *scope.checked.trouble,
            *scope.checked.unwritten,
            *(scope.checked.good if scope.checked.headless else ()),
        )
    if gone:
        _settle(link, gone)
    return Rebuilt(records, files, work.left, gone)


class Work:
    def __init__(self, mirror: MirrorName, state: State, scope: Certified, starts: Mapping[Partition, Offset]) -> None:
        self.left: dict[Partition, tuple[str, ...]] = {}
        self.doubtful = False
        self.mirrored: dict[Partition, Offset] = {}
        """Source records below may have compacted away what is compared."""
        self._pieces: dict[Partition, deque[Piece]] = {}
        lease = copier(state, mirror)
        for partition in scope.unproved.keys() - scope.ends.keys():
            for gap in scope.unproved[partition]:
                self._leave(partition, f"[{gap.start}, {gap.end}): {gap.why}")
        for partition, (start, end) in sorted(scope.ends.items()):
            status = state.partitions[mirror][partition]
            generation, _, reached = scope.newest.get(partition, (-1, 0, start))
            if status.lmo is not None:
                end = min(end, status.lmo)
            self.mirrored[partition] = end
            if status.lmo is None and lease is not None and generation != lease.generation and start < end:
                self._leave(partition, "its data plane has not told yet where it began: try again in a minute", True)
                continue
            if status.lmo is None and lease is not None:
                end = min(end, reached)  # its receipts will cover what follows
            nothing = Vouched((), None)
            found = nothing if scope.checked.headless else scope.vouched.get(partition, nothing)
            first = starts.get(partition)
            spans = unvouched(found, start, Offset(max(start, end)))
            for span in spans:
                if first is None or span[0] < first:
                    upto = span[1] if first is None else min(first, span[1])
                    self._leave(partition, f"[{span[0]}, {upto}): the source does not hold it any more")
            low = first if first is not None else end
            rest = [(max(low, one), two) for one, two in spans if max(low, one) < two]
            self._pieces[partition] = deque(piece for span in rest for piece in blank(span))

    @property
    def offsets(self) -> int:
        return sum(piece.next - piece.first for rest in self._pieces.values() for piece in rest)

    def rounds(self) -> Iterator[dict[Partition, list[Piece]]]:
        """Contiguous in each partition."""
        while self.offsets:
            chosen, size = dict[Partition, list[Piece]](), 0
            for partition, rest in self._pieces.items():
                mine: list[Piece] = []
                while rest and size < ROUND and (not mine or mine[-1].next == rest[0].first):
                    mine.append(rest.popleft())
                    size += mine[-1].next - mine[-1].first
                if mine:
                    chosen[partition] = mine
            yield chosen

    def judge(
        self,
        pieces: Mapping[Partition, Sequence[Piece]],
        told: Sequence[Row],
        compared: ParityResult,
        starts: Mapping[Partition, Offset],
    ) -> dict[Partition, list[Piece]]:
        """The first refused piece is given up; those behind it come again.

        `starts`: read after the comparison.
        """
        held = {(row.partition, row.start): row for row in told}
        good: dict[Partition, list[Piece]] = {}
        for partition, mine in pieces.items():
            for number, piece in enumerate(mine):
                row = held.get((partition, piece.first))
                why = _why_not(partition, piece, row, compared, starts.get(partition))
                if why or row is None:
                    self._leave(partition, f"[{piece.first}, {piece.next}): {why}", True)
                    self._pieces[partition].extendleft(reversed(mine[number + 1 :]))
                    break
                counted = replace(piece, records=row.dst_count or 0, digest=row.dst_digest)
                good.setdefault(partition, []).append(counted)
        return good

    def _leave(self, partition: Partition, why: str, doubtful: bool = False) -> None:
        self.left[partition] = (*self.left.get(partition, ()), why)
        self.doubtful |= doubtful


def _why_not(partition: Partition, piece: Piece, row: Row | None, compared: ParityResult, start: Offset | None) -> str:
    if row is None:
        return "no task reported it"
    if row.error:
        return row.error
    if start is None or piece.first < start:
        return "the source has deleted it meanwhile"
    if compared.proven.get(partition, Offset(0)) >= piece.next:
        return ""
    mine = [f for f in compared.findings if f.partition == partition]
    if mine:
        return f"it differs from the source: {mine[0].kind}: {mine[0].detail}"
    said = [reason for reason in compared.reasons if reason.startswith(f"{partition} ")]
    return said[0] if said else "it could not be compared with the source"


def _tasks(link: Link, pieces: Mapping[Partition, Sequence[Piece]], tasks: int) -> list[CertifiedTask]:
    found = {partition: Vouched(tuple(mine), None) for partition, mine in pieces.items()}
    path, name = str(link.config.path.absolute()), link.destination.name
    return [
        CertifiedTask(config_path=path, destination=name, pieces=mine, cleaned=frozenset())
        for mine in share(found, tasks)
    ]


def _ranges(pieces: Mapping[Partition, Sequence[Piece]], mirrored: Mapping[Partition, Offset]) -> list[ParityRange]:
    return [
        ParityRange(partition=partition, start=mine[0].first, end=mine[-1].next, stopped_at=mirrored[partition])
        for partition, mine in pieces.items()
    ]


def _source_starts(link: Link, partitions: Collection[Partition]) -> dict[Partition, Offset]:
    try:
        with ClusterClient(link.source) as client:
            there = existing(client, {partition.topic for partition in partitions})
            asked = [p for p in partitions if p.topic in there and p.index in there[p.topic].partitions]
            return list_offsets(client, asked, Point.START)
    except RemoteFault as error:
        raise Indeterminate(
            f"mirror {link.mirror.name}: receipts are rebuilt by comparing with the source, which does not answer: "
            f"{error}"
        ) from None


def _keep(link: Link, folder: Folder, state: State, good: Mapping[Partition, Sequence[Piece]]) -> None:
    """Announce the file, write it, confirm it."""
    lease, statuses = state.leases.get(link.mirror.name), state.partitions[link.mirror.name]
    told = [_receipt(link, statuses[p], p, mine) for p, mine in good.items()]
    # Older than this generation's epochs, so that later receipts win.
    file = receipts.packed(lease.generation if lease else 0, 0, told, f"rebuilt-{now_ms():013d}.parquet")
    with door(link, Verb.RECEIPTS) as writer:
        part, one = f"{file.day}-rebuilt", Kept(file.name, file.sha256, file.pieces, stored=False)
        before = writer.state.receipts.get(link.mirror.name, {})
        writer.put(promised(link.mirror.name, before, part, one, where=folder.where))
        receipts.write(folder, link.mirror.name, file)
        writer.put(*arrived(writer.state.receipts[link.mirror.name], {(part, file.name)}))


def _receipt(link: Link, status: PartitionStatus, partition: Partition, pieces: Sequence[Piece]) -> Receipt:
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


def _settle(link: Link, paths: Collection[str]) -> None:
    part, mirror = f"{datetime.now(UTC).date().isoformat()}-rebuilt", link.mirror.name
    with door(link, Verb.RECEIPTS) as writer:
        head = writer.state.receipts.get(mirror, {}).get(part) or ReceiptsHead(mirror=mirror, part=part, files=())
        writer.put(settled(head, paths))
