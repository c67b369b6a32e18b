from __future__ import annotations

import os
import shutil
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config, Principal, load_config
from mirror_core.kafka.existing import existing
from mirror_core.kafka.offsets import Point, list_offsets, list_points
from mirror_core.kafka.reader import LogReader
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.files import sync, sync_all, writing
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity import ParityRange, Saved
from mirror_core.parity.elsewhere import Elsewhere, look_for
from mirror_core.wire.batch import LOG_APPEND_TIME

_HEADER: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("name", pa.binary(), nullable=False),  # binary: header names need not be UTF-8
    pa.field("value", pa.binary()),
)
_COLUMNS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp_ms", pa.int64(), nullable=False),
    pa.field("timestamp_type", pa.string(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.struct(_HEADER)), nullable=False),
    pa.field("fate", pa.string()),  # null where no other cluster was compared
)
SCHEMA: Final = pa.schema(_COLUMNS)
DDL: Final = (
    "topic string not null, partition int not null, offset bigint not null, timestamp_ms bigint not null, "
    "timestamp_type string not null, key binary, value binary, "
    "headers array<struct<name: binary not null, value: binary>> not null, fate string"
)

MANIFEST: Final = "_salvage.json"
ADVICE: Final = "nothing was deleted: make room and rights there, or give another folder"
SHOWN: Final = 5
_ROWS: Final = 2000
_BYTES: Final = 16 << 20

Write = Callable[[Sequence["SalvageTask"], Path], None]


class SalvageIncomplete(MirrorError):
    """The number of saved records is not the log's: nothing may be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageTask:
    config_path: str
    cluster: ClusterName
    wanted: ParityRange
    against: Against | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The other cluster's log since both parted, [start, end)."""

    cluster: ClusterName
    start: Offset
    end: Offset


class LocalSalvage:
    def __init__(self, config_path: Path) -> None:
        self._config_path = config_path

    def __call__(
        self, cluster: ClusterName, ranges: Sequence[ParityRange], output: Path, against: ClusterName | None = None
    ) -> dict[Partition, Saved]:
        return salvage(self._config_path, cluster, ranges, output, against, write=write_here)


def salvage(
    config_path: Path,
    cluster: ClusterName,
    ranges: Sequence[ParityRange],
    output: Path,
    against: ClusterName | None = None,
    *,
    write: Write,
    opened_by_tasks: Path | None = None,
) -> dict[Partition, Saved]:
    """Save these ranges; returns counts, and what cluster `against` has of them.

    A finished salvage of the same ranges is returned as it is. Refused when something else is at `output`;
    SalvageIncomplete when the count is wrong, and nothing appears there.
    """
    wanted = tuple(sorted(ranges, key=lambda r: (r.partition, r.start)))
    if len({r.partition for r in wanted}) < len(wanted):
        raise Refused("salvage not started", ["a partition is named twice: give one range for each"])
    done = _done(output, wanted)
    if done is not None:
        return done
    config = load_config(config_path)
    with ClusterClient(config.cluster(cluster)) as client:
        starts = list_offsets(client, [r.partition for r in wanted], Point.START) if wanted else {}
    others = _others(config, against, wanted) if against else {}
    tasks = [
        SalvageTask(
            config_path=str((opened_by_tasks or config_path).absolute()),
            cluster=cluster,
            wanted=_clipped(r, starts[r.partition]),
            against=others.get(r.partition),
        )
        for r in wanted
    ]
    work = [task for task in tasks if task.wanted.start < task.wanted.end]
    expected = {task.wanted.partition: count(task) if task in work else 0 for task in tasks}
    incomplete = output.with_name(f"_{output.name}.incomplete")
    with writing(f"salvage of cluster {cluster}", output, ADVICE):
        shutil.rmtree(incomplete, ignore_errors=True)
        incomplete.mkdir(parents=True, mode=0o700)  # application data
        if work:
            write(work, incomplete)
        manifest = [replace(s, log_start=starts[p]) for p, s in _count_saved(incomplete, wanted).items()]
        _check(cluster, expected, {s.wanted.partition: s.records for s in manifest}, incomplete)
        (incomplete / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        sync_all(incomplete)
        os.replace(incomplete, output)
        sync(output.parent)
    return {s.wanted.partition: s for s in manifest}


def record_batches(task: SalvageTask) -> Iterator[pa.RecordBatch]:
    """Arrow batches of a few thousand rows or some megabytes."""
    config = load_config(Path(task.config_path), only=Principal.DATA)
    wanted = task.wanted
    elsewhere = _look(config, task)
    rows: list[dict[str, Any]] = []
    size = 0
    with LogReader(config.cluster(task.cluster)) as reader:
        for header, record in reader.records(wanted.partition, wanted.start, wanted.end):
            rows.append(
                {
                    "topic": wanted.partition.topic,
                    "partition": wanted.partition.index,
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp_ms,
                    "timestamp_type": "LogAppendTime" if header.attributes & LOG_APPEND_TIME else "CreateTime",
                    "key": record.key,
                    "value": record.value,
                    "headers": [{"name": name, "value": value} for name, value in record.headers],
                    "fate": None if elsewhere is None else elsewhere.fate(record).value,
                }
            )
            size += len(record.key or b"") + len(record.value or b"") + sum(len(v or b"") for _, v in record.headers)
            if len(rows) >= _ROWS or size >= _BYTES:
                yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
                rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _look(config: Config, task: SalvageTask) -> Elsewhere | None:
    if task.against is None:
        return None
    other, wanted = task.against, task.wanted
    with LogReader(config.cluster(task.cluster)) as here, LogReader(config.cluster(other.cluster)) as there:
        return look_for(
            (record for _, record in here.records(wanted.partition, wanted.start, wanted.end)),
            (record for _, record in there.records(wanted.partition, other.start, other.end)),
        )


def _others(config: Config, cluster: ClusterName, wanted: Sequence[ParityRange]) -> dict[Partition, Against]:
    """An empty range where the other cluster lacks the partition."""
    with ClusterClient(config.cluster(cluster)) as client:
        topics = existing(client, {r.partition.topic for r in wanted})
        there = [
            p for p in (r.partition for r in wanted) if p.topic in topics and p.index in topics[p.topic].partitions
        ]
        starts, ends = list_points(client, there, [Point.START, Point.STABLE_END]).values()
    found = {}
    for r in wanted:
        start = Offset(max(r.start, starts.get(r.partition, Offset(0))))
        end = Offset(max(start, ends.get(r.partition, start)))
        found[r.partition] = Against(cluster=cluster, start=start, end=end)
    return found


def count(task: SalvageTask) -> int:
    """Records by batch headers, without decoding: a second opinion."""
    config = load_config(Path(task.config_path), only=Principal.DATA)
    wanted = task.wanted
    records = 0
    with LogReader(config.cluster(task.cluster)) as reader:
        for header, _ in reader.batches(wanted.partition, wanted.start, wanted.end):
            if header.base_offset >= wanted.start and header.next_offset <= wanted.end:
                records += header.record_count
            else:  # crosses the range's boundary: count records
                low, high = max(wanted.start, header.base_offset), min(wanted.end, header.next_offset)
                records += sum(1 for _ in reader.records(wanted.partition, Offset(low), Offset(high)))
    return records


def write_here(tasks: Sequence[SalvageTask], folder: Path) -> None:
    for task in tasks:
        path = folder / f"{task.wanted.partition}.parquet"
        with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
            for batch in record_batches(task):
                writer.write_batch(batch)


def _clipped(wanted: ParityRange, log_start: Offset) -> ParityRange:
    return replace(wanted, start=min(max(wanted.start, log_start), wanted.end))


def _count_saved(folder: Path, wanted: Sequence[ParityRange]) -> dict[Partition, Saved]:
    counts: dict[Partition, int] = {}
    fates: dict[Partition, dict[str, int]] = {}
    first: dict[Partition, dict[str, list[Offset]]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=["topic", "partition", "offset", "fate"]):
            for row in batch.to_pylist():
                partition, fate = Partition(row["topic"], row["partition"]), row["fate"]
                counts[partition] = counts.get(partition, 0) + 1
                if fate is not None:
                    mine = fates.setdefault(partition, {})
                    mine[fate] = mine.get(fate, 0) + 1
                    offsets = first.setdefault(partition, {}).setdefault(fate, [])
                    insort(offsets, row["offset"])
                    del offsets[SHOWN:]
    return {
        r.partition: Saved(
            wanted=r,
            log_start=Offset(0),
            records=counts.get(r.partition, 0),
            fates=fates.get(r.partition, {}),
            first={fate: tuple(offsets) for fate, offsets in first.get(r.partition, {}).items()},
        )
        for r in wanted
    }


def _check(cluster: ClusterName, expected: dict[Partition, int], saved: dict[Partition, int], folder: Path) -> None:
    wrong = [
        f"{partition}: {saved.get(partition, 0)} saved, {records} in the log"
        for partition, records in sorted(expected.items())
        if saved.get(partition, 0) != records
    ]
    if wrong:
        raise SalvageIncomplete(
            f"salvage of cluster {cluster} is not complete, and stays at {folder}: {'; '.join(wrong)}. Nothing may be "
            "deleted now; run it again"
        )


def _done(output: Path, wanted: tuple[ParityRange, ...]) -> dict[Partition, Saved] | None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    try:
        manifest = msgspec.json.decode((output / MANIFEST).read_bytes(), type=tuple[Saved, ...])
    except (OSError, msgspec.MsgspecError):
        raise Refused("salvage not started", [f"{output} exists and is no finished salvage: choose another"]) from None
    if tuple(saved.wanted for saved in manifest) != wanted:
        raise Refused("salvage not started", [f"{output} holds a salvage of other ranges: choose another place"])
    sync(output.parent)  # the process that moved it may have been killed before syncing
    return {saved.wanted.partition: saved for saved in manifest}
