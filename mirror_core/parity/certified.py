"""Comparing what the destination holds with what receipts vouch for: also when the source is dead, and deleted.

Copying tasks have taken the digests of what they sent, and of what was acknowledged. So the destination alone is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from mirror_core.decide.parity import DIGEST, ENDS, Row, judge
from mirror_core.decide.topics import cleans
from mirror_core.evidence.certificates import Gap, Told, Vouched, gaps, shortfall, vouched
from mirror_core.evidence.folders import Folder, local_folder
from mirror_core.evidence.heads import Checked, Heads, with_receipts
from mirror_core.evidence.kept import found as found_receipts
from mirror_core.evidence.parity_report import write_report
from mirror_core.evidence.suites import Demands
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.existing import existing
from mirror_core.kafka.log_faults import Trimmed
from mirror_core.kafka.offsets import Point, list_points
from mirror_core.kafka.reader import AHEAD, LogReader
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.copying import PIECE_OFFSETS, Piece
from mirror_core.model.errors import Indeterminate, MirrorError, RemoteFault
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity import ALTERED, Finding, ParityRange, ParityResult
from mirror_core.parity.scope import COMPARABLE
from mirror_core.state.lease import copier
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.topic import read_whole
from mirror_core.wire.digest import MODULUS, content

CLEANED: Final = (
    "not as it was copied, and not comparable: the topic is cleaned by key, on each cluster at its own times; compare "
    "it with the source (`mirrorbook parity`, level 3)"
)
_ADVICE: Final = "`mirrorbook mirror recover` shows what can be done"
GONE: Final = f"it was copied, and the destination does not show it: {_ADVICE}"
REPLACED: Final = f"it was copied, and the destination shows another topic of its name: {_ADVICE}"
SOUND: Final = Checked(good=())
TOLD_WITHIN: Final = timedelta(minutes=5)
"""A data plane whose newest receipt is older stores none: what it copies is vouched for by nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedTask:
    """The work of one task. Holds no secret: the task opens `config_path` itself."""

    config_path: str
    destination: ClusterName
    pieces: tuple[tuple[Partition, Piece], ...]
    cleaned: frozenset[str]
    """Topics that are cleaned by key."""


RunTasks = Callable[[Sequence[CertifiedTask]], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Certified:
    """What can be proved of a mirror without its source, and what can't."""

    receipts: str
    """Where they are."""
    ends: Mapping[Partition, tuple[Offset, Offset]]
    """Of the destination's logs: first offset, next offset to be written."""
    vouched: Mapping[Partition, Vouched]
    cleaned: frozenset[str]
    left_out: Mapping[Partition, str]
    """What is none of the verdict's, and why; also the parts of partitions of which the rest is."""
    checked: Checked = SOUND
    """The receipts themselves."""
    newest: Mapping[Partition, tuple[int, int, Offset]] = field(default_factory=dict)
    """Of each partition's newest receipt: generation, epoch, and the next offset."""
    unproved: Mapping[Partition, tuple[Gap, ...]] = field(default_factory=dict)
    """What of the mirror cannot be proved: no verdict on the rest passes for one on the mirror."""


def certified(link: Link, state: State, folder: Folder) -> Certified:
    """By the receipts in this folder that are as they were written. Indeterminate when the destination doesn't answer,
    or receipts can't be read."""
    mirror, statuses = link.mirror.name, state.partitions.get(link.mirror.name, {})
    chosen = sorted(p for p, status in statuses.items() if status.state in COMPARABLE)
    told: dict[Partition, list[Told]] = {p: [] for p in chosen}
    newest, ended = dict[Partition, tuple[int, int, Offset]](), dict[Partition, datetime]()
    try:
        kept = found_receipts(folder, mirror, lambda: heads_of(link))
        with ClusterClient(link.destination) as client:
            there = existing(client, {p.topic for p in statuses})
            held = sorted(p for p in statuses if p.topic in there and p.index in there[p.topic].partitions)
            # Of another topic of the same name receipts say nothing, whatever it holds.
            ours = {p for p in held if statuses[p].destination_topic_id in ("", there[p.topic].id)}
            points = list_points(client, held, [Point.START, Point.LOG_END])
            configs = describe_configs(client, {p.topic for p in held})
    except (RemoteFault, OSError) as error:
        raise Indeterminate(f"mirror {mirror}: what to prove is not known: {error}") from None
    for row in kept.rows().select([*_COLUMNS, *_IDS]).to_pylist():
        partition = Partition(row["topic"], row["partition"])
        status = statuses.get(partition)
        if status and tuple(row[i] for i in _IDS) == tuple(getattr(status, i) for i in _IDS):
            if partition in told:
                told[partition] += [Told(row["generation"], row["epoch"], _piece(one)) for one in row["pieces"] or ()]
            one = row["generation"], row["epoch"], Offset(row["next"])
            if one > newest.get(partition, (0, 0, Offset(0))):
                newest[partition], ended[partition] = one, row["ended"]
    starts, ends = points[Point.START], points[Point.LOG_END]
    found = {p: vouched(told[p], starts[p], statuses[p].lmo) for p in held if p in told and p in ours}
    lease, soon = copier(state, mirror), datetime.now(UTC) - TOLD_WITHIN
    unproved, left_out = dict[Partition, tuple[Gap, ...]](), dict[Partition, str]()
    for p, status in sorted(statuses.items()):
        if p not in ours:
            reached = newest[p][2] if p in newest else ends.get(p, Offset(0))
            if status.lmo is not None:
                left_out[p] = "the destination does not hold it any more; its mirroring had ended"
            elif reached:
                unproved[p] = (Gap(Offset(0), reached, REPLACED if p in ends else GONE),)
            continue
        # What applications have written behind the LMO is theirs.
        end = ends[p] if status.lmo is None else min(ends[p], status.lmo)
        if p in found:
            generation, _, reached = newest.get(p, (-1, 0, Offset(0)))
            copying = lease is not None and status.lmo is None and generation == lease.generation and ended[p] > soon
            unproved[p], out = gaps(found[p], starts[p], end, reached if copying else None)
            left_out |= {p: "; ".join(f"[{gap.start}, {gap.end}): {gap.why}" for gap in out)} if out else {}
        elif starts[p] < end:
            unproved[p] = (Gap(starts[p], end, f"it is {status.state}: `mirrorbook mirror describe {mirror}`"),)
    return Certified(
        folder.where,
        {p: (starts[p], ends[p]) for p in found},
        {p: one for p, one in found.items() if one.pieces},
        frozenset(topic for topic, described in configs.items() if cleans(described.effective)),
        left_out,
        kept.checked,
        newest,
        {p: mine for p, mine in unproved.items() if mine},
    )


def heads_of(link: Link) -> Heads:
    """What the state topic tells of this mirror's receipts now."""
    state = read_whole(link.destination)
    state.require(link.mirror.name)
    return state.receipts.get(link.mirror.name, {})


_IDS: Final = ("source_topic_id", "destination_topic_id")
_COLUMNS: Final = ("topic", "partition", "generation", "epoch", "next", "ended", "pieces")


def _piece(row: Mapping[str, str]) -> Piece:
    first, end = Offset(int(row["first"])), Offset(int(row["next"]))
    return Piece(first=first, next=end, records=int(row["records"]), digest=row["digest"])


def prove(
    config_path: Path,
    destination: ClusterName,
    scope: Certified,
    output: Path | None,
    *,
    run: RunTasks,
    tasks: int,
    demands: Demands | None = None,
) -> ParityResult:
    """Read the destination where receipts vouch for it, in at most `tasks` tasks, and judge; report as of a comparison
    at level 2, with the receipts as its source. What can't be read, and what lies in a hole, is a reason.
    """
    started, began = time.time(), time.monotonic()
    config = load_config(config_path)
    config.cluster(destination)
    ranges = ranges_of(scope)
    rows = [_end(wanted, scope.ends[wanted.partition][1]) for wanted in ranges]
    rows += [_hole(partition, gap) for partition, mine in scope.unproved.items() for gap in mine]
    work = [
        CertifiedTask(
            config_path=str(config.path.absolute()), destination=destination, pieces=pieces, cleaned=scope.cleaned
        )
        for pieces in share(scope.vouched, tasks)
    ]
    rows += run(work) if work else ()
    table = tuple(sorted(rows, key=lambda row: (row.partition, row.chunk >= 0, row.start)))
    judged = judge(ranges, table, DIGEST)
    if scope.unproved:
        every = scope.ends.keys() | scope.unproved.keys()
        judged = replace(judged, reasons=(shortfall(scope.unproved, len(every)), *judged.reasons))
    result = replace(with_receipts(judged, scope.checked), seconds=round(time.monotonic() - began, 3))
    if output is None:
        return result
    source = ClusterName(f"receipts in {scope.receipts}")
    return write_report(
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


def ranges_of(scope: Certified) -> list[ParityRange]:
    """What certificates vouch for, and the gaps before it."""
    ranges = list[ParityRange]()
    for partition, found in scope.vouched.items():
        assert found.start is not None
        assert found.end is not None
        first = min([found.start, *(gap.start for gap in scope.unproved.get(partition, ()))])
        ranges.append(ParityRange(partition=partition, start=first, end=found.end, stopped=True))
    return ranges


def verify(task: CertifiedTask) -> tuple[Row, ...]:
    """A row for each piece. What cannot be read becomes a row with an error, and the rest goes on."""
    return tuple(verifying(task))


def verifying(task: CertifiedTask) -> Iterator[Row]:
    """The same rows, in the order of the task's pieces, as they are known."""
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
                row = replace(_row(partition, piece), error=str(error))
            if not row.error and not row.equal:
                row = replace(row, error=CLEANED) if partition.topic in task.cleaned else _altered(row)
            yield row


class Proof(Protocol):
    """Where tasks run, and where receipts are found."""

    @property
    def tasks(self) -> int: ...

    def folder(self, place: str) -> Folder: ...

    def run(self, tasks: Sequence[CertifiedTask]) -> Sequence[Row]: ...


class LocalProof:
    """In threads of this process."""

    tasks = 4

    def folder(self, place: str) -> Folder:
        return local_folder(place)

    def run(self, tasks: Sequence[CertifiedTask]) -> Sequence[Row]:
        with ThreadPoolExecutor(max(1, len(tasks))) as pool:
            return [row for rows in pool.map(verify, tasks) for row in rows]


def unread(task: CertifiedTask, error: str) -> tuple[Row, ...]:
    """Rows for a task that could not be done at all, for this reason."""
    return tuple(replace(_row(partition, piece), error=error) for partition, piece in task.pieces)


def _verified(reader: LogReader, partition: Partition, piece: Piece) -> Row:
    """Batches that begin in the piece: one that reaches in from before has no part in its digest, on either side."""
    records = total = 0
    for header, batch in reader.batches(partition, piece.first, piece.next):
        if header.base_offset >= piece.first:
            records += header.record_count
            total += content(header.base_offset, batch)
    return replace(_row(partition, piece), dst_count=records, dst_digest=f"{total % MODULUS:032x}")


def _altered(row: Row) -> Row:
    """Batches stay as they were acknowledged, so what differs is no question of where they begin."""
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
    """Whether the log reaches as far as receipts say."""
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
    """Work for at most this many tasks, about equally many records each."""
    loads = [0] * max(1, tasks)
    shares: list[list[tuple[Partition, Piece]]] = [[] for _ in loads]
    pieces = [(partition, piece) for partition, one in sorted(found.items()) for piece in one.pieces]
    for partition, piece in sorted(pieces, key=lambda one: -one[1].records):
        lightest = loads.index(min(loads))
        shares[lightest].append((partition, piece))
        loads[lightest] += piece.records + 1
    return [tuple(sorted(mine, key=lambda one: (one[0], one[1].first))) for mine in shares if mine]
