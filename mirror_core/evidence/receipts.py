"""Receipts as Parquet files:

<directory>/mirror=<name>/date=<UTC day>/epoch-<generation>-<epoch>.parquet

Files hold only what tasks reported. A killed task attempt takes its receipt with it, though its records are on the
destination and the next attempt starts behind them. Such holes are found when receipts are read (`certificates`),
because epochs overlap and may end in any order.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_core.evidence.folders import Folder
from mirror_core.model.copying import Receipt
from mirror_core.model.names import MirrorName

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
RECEIPTS_SCHEMA: Final = pa.schema(_COLUMNS)
"""Columns as in `Receipt`. The mirror and the day are in the path."""
RECEIPTS_ADVICE: Final = "make room and rights there, or give another folder (--receipts)"


@dataclass(frozen=True, slots=True)
class ReceiptsFile:
    day: str
    name: str
    content: bytes
    pieces: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def path(self) -> str:
        return f"date={self.day}/{self.name}"


def pack_receipts(generation: int, epoch: int, receipts: Sequence[Receipt], name: str | None = None) -> ReceiptsFile:
    name = name or f"epoch-{generation:08d}-{epoch:010d}.parquet"
    day = datetime.fromtimestamp(min(receipt.started_ms for receipt in receipts) / 1000, UTC).date()
    return to_receipts_file(day.isoformat(), name, _to_table(generation, receipts))


def to_receipts_file(day: str, name: str, table: pa.Table) -> ReceiptsFile:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return ReceiptsFile(day, name, buffer.getvalue(), pc.sum(pc.list_value_length(table.column("pieces"))).as_py() or 0)


def write_receipts(folder: Folder, mirror: MirrorName, file: ReceiptsFile) -> str:
    name = f"{format_mirror_folder(mirror)}/{file.path}"
    folder.write(f"receipts of mirror {mirror}", name, file.content, RECEIPTS_ADVICE)
    return name


def parse_receipts(content: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(content), schema=RECEIPTS_SCHEMA)


def _to_table(generation: int, receipts: Sequence[Receipt]) -> pa.Table:
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
    return pa.Table.from_pylist(rows, schema=RECEIPTS_SCHEMA)


def format_mirror_folder(mirror: MirrorName) -> str:
    return f"mirror={quote(mirror, safe='')}"
