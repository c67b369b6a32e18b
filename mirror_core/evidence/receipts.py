"""Receipts as Parquet: what copying tasks said, whole files or none, and where nobody said anything.

    <directory>/mirror=<name>/date=<UTC day>/epoch-<generation>-<epoch>.parquet

Files hold only what tasks reported. A task attempt that was killed takes its receipt with it, although the records
it copied are on the destination; the next attempt starts behind them. Such holes are found when receipts are read, not
when they are written, because epochs overlap and may end in any order.
"""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_core.evidence.folders import Folder
from mirror_core.model.copying import Receipt
from mirror_core.model.errors import Indeterminate
from mirror_core.model.names import MirrorName, Offset, Partition

_PIECE: Final = pa.struct(
    (
        pa.field("first", pa.int64(), nullable=False),
        pa.field("next", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    )
)
_COLUMNS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("generation", pa.int64(), nullable=False),
    pa.field("epoch", pa.int64(), nullable=False),
    pa.field("task", pa.int32(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("first", pa.int64(), nullable=False),
    pa.field("next", pa.int64(), nullable=False),
    pa.field("records", pa.int64(), nullable=False),
    pa.field("gaps", pa.int64()),
    pa.field("batches", pa.int64(), nullable=False),
    pa.field("bytes", pa.int64(), nullable=False),
    pa.field("pieces", pa.list_(_PIECE)),
    pa.field("source_topic_id", pa.string()),
    pa.field("destination_topic_id", pa.string()),
    pa.field("source_end", pa.int64()),
    pa.field("started", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("ended", pa.timestamp("ms", tz="UTC"), nullable=False),
)
SCHEMA: Final = pa.schema(_COLUMNS)
"""Columns as in `Receipt`; the mirror and the day are in the path. Earlier versions wrote no pieces and no ids."""
ADVICE: Final = "make room and rights there, or give another folder (--receipts)"


@dataclass(frozen=True, slots=True, order=True)
class Hole:
    """Offsets [first, next) of a partition that lie between receipts, so were on the destination, but which no receipt
    covers. Inferred: a killed attempt copied them, or, while the mirror was stopped, somebody else wrote them."""

    partition: Partition
    first: Offset
    next: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the receipts of one mirror say together."""

    mirror: MirrorName
    files: int
    receipts: int
    partitions: int
    records: int
    gaps: int
    """Offsets without a record. Receipts of versions that copied no gaps don't say it, and had none."""
    batches: int
    bytes: int
    first_ms: int | None
    """Wall clock at which the earliest receipt starts; None without receipts."""
    last_ms: int | None
    holes: tuple[Hole, ...]


@dataclass(frozen=True, slots=True)
class File:
    """Receipts as they are to be stored."""

    day: str
    """ISO 8601."""
    name: str
    content: bytes
    pieces: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def path(self) -> str:
        """Below the mirror's folder."""
        return f"date={self.day}/{self.name}"


def packed(generation: int, epoch: int, receipts: Sequence[Receipt], name: str | None = None) -> File:
    """One epoch's receipts, at least one, in a file of the day on which the first of them began."""
    name = name or f"epoch-{generation:08d}-{epoch:010d}.parquet"
    day = datetime.fromtimestamp(min(receipt.started_ms for receipt in receipts) / 1000, UTC).date()
    return as_file(day.isoformat(), name, _table(generation, receipts))


def as_file(day: str, name: str, table: pa.Table) -> File:
    """Rows of `SCHEMA`."""
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return File(day, name, out.getvalue(), pc.sum(pc.list_value_length(table.column("pieces"))).as_py() or 0)


def write(folder: Folder, mirror: MirrorName, file: File) -> str:
    """Store it; returns its name in the folder. A reader sees the whole file or none."""
    name = f"{mirror_folder(mirror)}/{file.path}"
    folder.write(f"receipts of mirror {mirror}", name, file.content, ADVICE)
    return name


def read(folder: Folder, mirror: MirrorName, since: date | None = None) -> pa.Table:
    """All receipts of a mirror, of days from `since` (UTC) on, by partition and offset, with a column `inferred` more.

    Rows where `inferred` is true are the holes: their `first` and `next` are right, counts are 0, there are no
    pieces, and generation, epoch, task and times are those of the receipt behind the hole.
    """
    _, table = _read(folder, mirror, since)
    rows = [{**row, "inferred": False} for row in table.to_pylist()]
    spans = defaultdict(list)
    for row in rows:
        spans[Partition(row["topic"], row["partition"])].append(row)
    for partition, of_partition in spans.items():
        for hole in _holes(partition, ((row["first"], row["next"]) for row in of_partition)):
            behind = min((row for row in of_partition if row["first"] >= hole.next), key=lambda row: int(row["first"]))
            nothing = {
                "records": 0,
                "gaps": 0,
                "batches": 0,
                "bytes": 0,
                "pieces": [],
                "source_end": None,
                "inferred": True,
            }
            rows.append({**behind, **nothing, "first": hole.first, "next": hole.next})
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["first"], row["next"], row["epoch"]))
    return pa.Table.from_pylist(rows, schema=SCHEMA.append(pa.field("inferred", pa.bool_(), nullable=False)))


def summarize(folder: Folder, mirror: MirrorName, since: date | None = None) -> Summary:
    """Totals and holes over all receipts of a mirror, of days from `since` (UTC) on."""
    files, table = _read(folder, mirror, since)
    columns = table.to_pydict()
    spans: dict[Partition, list[tuple[int, int]]] = defaultdict(list)
    for topic, index, first, end in zip(*(columns[c] for c in ("topic", "partition", "first", "next")), strict=True):
        spans[Partition(topic, index)].append((first, end))
    return Summary(
        mirror=mirror,
        files=files,
        receipts=table.num_rows,
        partitions=len(spans),
        records=sum(columns["records"]),
        gaps=sum(gaps or 0 for gaps in columns["gaps"]),
        batches=sum(columns["batches"]),
        bytes=sum(columns["bytes"]),
        first_ms=min((_millis(at) for at in columns["started"]), default=None),
        last_ms=max((_millis(at) for at in columns["ended"]), default=None),
        holes=tuple(hole for partition in sorted(spans) for hole in _holes(partition, spans[partition])),
    )


def _read(folder: Folder, mirror: MirrorName, since: date | None) -> tuple[int, pa.Table]:
    """How many files there are, and their rows."""
    oldest = f"date={since.isoformat()}" if since else ""
    files = [
        name
        for name in folder.names(mirror_folder(mirror))
        if name.split("/")[-2] >= oldest and name.endswith(".parquet")
    ]
    return len(files), pa.concat_tables([SCHEMA.empty_table(), *(_read_file(folder, name) for name in files)])


def _read_file(folder: Folder, name: str) -> pa.Table:
    try:
        return parsed(folder.read(name))
    except (OSError, pa.ArrowInvalid) as error:
        raise Indeterminate(
            f"{folder.where}/{name}: receipts cannot be read ({type(error).__name__}): restore the file, or move it "
            "away; its offsets then count as inferred"
        ) from error


def parsed(content: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(content), schema=SCHEMA)


def _holes(partition: Partition, spans: Iterable[tuple[int, int]]) -> list[Hole]:
    """What lies between spans [first, next), in any order and overlapping at will, without being in one."""
    found: list[Hole] = []
    reached: int | None = None
    # An empty span says where its task found the position, so that everything below had been copied by then.
    for first, end in sorted(spans):
        if reached is not None and first > reached:
            found.append(Hole(partition, Offset(reached), Offset(first)))
        reached = max(end, reached if reached is not None else end)
    return found


def _table(generation: int, receipts: Sequence[Receipt]) -> pa.Table:
    rows = [
        {
            "generation": generation,
            "epoch": receipt.epoch,
            "task": receipt.task,
            "topic": receipt.partition.topic,
            "partition": receipt.partition.index,
            "first": receipt.first,
            "next": receipt.next,
            "records": receipt.records,
            "gaps": receipt.gaps,
            "batches": receipt.batches,
            "bytes": receipt.bytes,
            "pieces": [msgspec.to_builtins(piece) for piece in receipt.pieces],
            "source_topic_id": receipt.source_topic_id,
            "destination_topic_id": receipt.destination_topic_id,
            "source_end": receipt.source_end,
            "started": receipt.started_ms,
            "ended": receipt.ended_ms,
        }
        for receipt in receipts
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def mirror_folder(mirror: MirrorName) -> str:
    return f"mirror={quote(mirror, safe='')}"


def _millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)
