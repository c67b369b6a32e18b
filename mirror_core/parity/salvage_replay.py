"""Writes chosen records of a salvage back to topics.

They keep partition, order, timestamp, key, value and headers. A repeat continues where the last one ended: each
transaction also commits the progress.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from mirror_core.evidence.table_schemas import SALVAGE
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.kafka.replay_producer import NO_PROGRESS, ReplayProducer, ReplayProgress, ReplayRecord
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.names import ClusterIdentity, Offset, Partition
from mirror_core.model.parity_verdict import SalvageMatch
from mirror_core.model.text import join_limited
from mirror_core.parity.record_scan import HEADER_BYTES, MAX_BYTES_PER_BATCH, digest_content
from mirror_core.wire.records import UNDECODED_HEADERS

_DIGEST_MODULUS: Final = 1 << 128
_TRANSACTION_RECORDS: Final = 5_000
_REPLAY_ID_CHARACTERS: Final = 32
MAX_ROWS_PER_BATCH: Final = 2_000


class ReplaySelection(msgspec.Struct, frozen=True, kw_only=True):
    """An empty field does not limit the saved records."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...] = ()
    first: Offset = Offset(0)
    """Saved offsets [first, next)."""
    next: Offset | None = None
    matches: tuple[SalvageMatch, ...] = ()
    where: str = ""
    """Spark's SQL over the salvage's columns."""

    def to_sql(self) -> str:
        conditions = [f"topic in ({_list_literals(self.topics)})", f"offset >= {self.first}"]
        if self.partitions:
            conditions.append(f"partition in ({', '.join(map(str, self.partitions))})")
        if self.next is not None:
            conditions.append(f"offset < {self.next}")
        if self.matches:
            conditions.append(f"match in ({_list_literals(self.matches)})")
        return " and ".join([*conditions, *([f"({self.where})"] if self.where else [])])

    def to_arrow(self) -> pc.Expression:
        if self.where:
            raise BadRequest("--where is Spark's SQL: give it with --runner spark")
        condition = pc.field("topic").isin(list(self.topics)) & (pc.field("offset") >= self.first)
        if self.partitions:
            condition &= pc.field("partition").isin(list(self.partitions))
        if self.next is not None:
            condition &= pc.field("offset") < self.next
        if self.matches:
            condition &= pc.field("match").isin([str(match) for match in self.matches])
        return condition


def _list_literals(values: Iterable[str]) -> str:
    """The values contain no quotes: topic names are checked when they are parsed, and match classes are fixed."""
    return ", ".join(f"'{value}'" for value in values)


class ReplayCount(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen records of one partition and match class."""

    topic: str
    partition: int
    match: str | None
    records: int
    bytes: int
    digest: str
    """Sum of the records' digests modulo 2^128, hexadecimal."""
    last: Offset
    largest_bytes: int
    unwritable: Offset | None
    """First record with a header that a client cannot write unchanged. None: no such record."""


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Holds no secret."""

    config_path: str
    """On the hosts where tasks run."""
    cluster: ClusterIdentity
    targets: Mapping[str, str]
    """By saved topic."""
    topic_ids: Mapping[str, str]
    """By target topic."""
    selection: ReplaySelection
    salvage: str
    """SHA-256 of the salvage's manifest."""
    counts: tuple[ReplayCount, ...]

    @property
    def hash(self) -> str:
        """Identifies records, topics and cluster, whatever the host or time of planning."""
        return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self, config_path=""))).hexdigest()

    @property
    def records(self) -> int:
        return sum(count.records for count in self.counts)

    @property
    def rows_per_batch(self) -> int:
        """Spark limits Arrow batches by rows, not by bytes."""
        return limit_batch_rows(max((count.largest_bytes for count in self.counts), default=1))

    def sum_partitions(self) -> dict[Partition, tuple[int, int]]:
        """(records, digest) by saved partition."""
        sums: dict[Partition, tuple[int, int]] = {}
        for count in self.counts:
            partition = Partition(count.topic, count.partition)
            records, digest = sums.get(partition, (0, 0))
            sums[partition] = records + count.records, (digest + int(count.digest, 16)) % _DIGEST_MODULUS
        return sums


def limit_batch_rows(largest_bytes: int) -> int:
    """That fit into `MAX_BYTES_PER_BATCH` if each has `largest_bytes`."""
    return max(1, min(MAX_ROWS_PER_BATCH, MAX_BYTES_PER_BATCH // max(1, largest_bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """Holds no secret."""

    config_path: str
    cluster: ClusterIdentity
    replay_id: str
    """First characters of the plan's hash."""
    targets: Mapping[str, str]


def make_replay_task(plan: ReplayPlan) -> ReplayTask:
    return ReplayTask(
        config_path=plan.config_path,
        cluster=plan.cluster,
        replay_id=plan.hash[:_REPLAY_ID_CHARACTERS],
        targets=plan.targets,
    )


class ReplayOutcome(StrEnum):
    WRITTEN = "written"
    """Each record once."""
    INCOMPLETE = "incomplete"
    """A repeat writes the rest."""
    UNKNOWN = "unknown"
    """No task reported the partition. A repeat reads the committed progress."""
    DIFFERS = "differs"
    """The replay wrote other records than the dry run counted."""


class ReplayedPartition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    written: int
    written_before: int
    digest: str
    first_offset: Offset | None
    last_offset: Offset | None
    error: str


def read_selected(folder: Path, selection: ReplaySelection) -> Iterator[pa.RecordBatch]:
    """In the order in which they were saved."""
    import pyarrow.dataset as ds  # late: it imports pandas, half a second of processor time in each worker

    files = [str(path) for path in sorted(folder.rglob("*.parquet"))]
    dataset = cast("Any", ds.dataset(files, schema=SALVAGE.schema, format="parquet"))
    yield from dataset.to_batches(
        filter=selection.to_arrow(), batch_size=MAX_ROWS_PER_BATCH, batch_readahead=1, fragment_readahead=1
    )


def count_selected(batches: Iterable[pa.RecordBatch]) -> list[ReplayCount]:
    counts: dict[tuple[str, int, str | None], ReplayCount] = {}
    for row in _iterate_rows(batches):
        record, size, match = _to_record(row), _measure_row(row), row["match"]
        added = ReplayCount(
            topic=row["topic"],
            partition=row["partition"],
            match=match,
            records=1,
            bytes=size,
            digest=f"{_digest_row(row, record):x}",
            last=record.offset,
            largest_bytes=size,
            unwritable=None if all(_can_write(name) for name, _ in record.headers) else record.offset,
        )
        key = added.topic, added.partition, match
        counts[key] = _add_counts(counts[key], added) if key in counts else added
    return list(counts.values())


def merge_counts(counts: Iterable[ReplayCount]) -> tuple[ReplayCount, ...]:
    """Adds up several tasks. Sorted by partition and match class."""
    merged: dict[tuple[str, int, str], ReplayCount] = {}
    for count in counts:
        key = count.topic, count.partition, count.match or ""
        merged[key] = _add_counts(merged[key], count) if key in merged else count
    return tuple(merged[key] for key in sorted(merged))


def _add_counts(count: ReplayCount, other: ReplayCount) -> ReplayCount:
    unwritable = [offset for offset in (count.unwritable, other.unwritable) if offset is not None]
    return msgspec.structs.replace(
        count,
        records=count.records + other.records,
        bytes=count.bytes + other.bytes,
        digest=f"{(int(count.digest, 16) + int(other.digest, 16)) % _DIGEST_MODULUS:x}",
        last=max(count.last, other.last),
        largest_bytes=max(count.largest_bytes, other.largest_bytes),
        unwritable=min(unwritable, default=None),
    )


def replay_batches(task: ReplayTask, batches: Iterable[pa.RecordBatch]) -> Iterator[ReplayedPartition]:
    """One report per partition, whose rows must be consecutive, in offset order."""
    config = load_config(Path(task.config_path))
    writer: _PartitionWriter | None = None
    for row in _iterate_rows(batches):
        partition = Partition(row["topic"], row["partition"])
        if writer is None or writer.partition != partition:
            if writer is not None:
                yield writer.finish()
            writer = _PartitionWriter(task, config.pinned_cluster(task.cluster), partition)
        writer.add(row)
    if writer is not None:
        yield writer.finish()


@dataclass(slots=True)
class _PartitionWriter:
    """An error ends the replay of this partition only."""

    task: ReplayTask
    cluster: ClusterConfig
    partition: Partition
    error: str = ""
    _resources: ExitStack = field(default_factory=ExitStack)
    _producer: ReplayProducer | None = None
    _progress: ReplayProgress = NO_PROGRESS
    _written_before: int = 0
    _digest: int = 0
    _records: list[ReplayRecord] = field(default_factory=list)
    _bytes: int = 0
    _last: int = -1

    def add(self, row: Mapping[str, Any]) -> None:
        if self.error:
            return
        try:
            self._add(row)
        except MirrorError as error:
            self.error = str(error)

    def finish(self) -> ReplayedPartition:
        with self._resources:
            if not self.error:
                try:
                    self._write()
                except MirrorError as error:
                    self.error = str(error)
        return ReplayedPartition(
            topic=self.partition.topic,
            partition=self.partition.index,
            written=self._progress.records,
            written_before=self._written_before,
            digest=f"{self._progress.digest:x}",
            first_offset=self._progress.first_written,
            last_offset=self._progress.last_written,
            error=self.error,
        )

    def _add(self, row: Mapping[str, Any]) -> None:
        record = _to_record(row)
        if record.offset <= self._last:
            raise BadRequest(
                f"salvage, {self.partition}: offset {record.offset:,} follows {self._last:,}: somebody"
                " rearranged its files. Use --runner spark, which sorts the records"
            )
        self._last = record.offset
        if self._producer is None:
            target = Partition(self.task.targets[self.partition.topic], self.partition.index)
            self._producer = self._resources.enter_context(ReplayProducer(self.cluster, self.task.replay_id, target))
            self._progress = self._producer.take_over()
            self._written_before, self._digest = self._progress.records, self._progress.digest
        if record.offset < self._progress.next:
            return
        self._digest = (self._digest + _digest_row(row, record)) % _DIGEST_MODULUS
        self._records.append(record)
        self._bytes += _measure_row(row)
        if len(self._records) >= _TRANSACTION_RECORDS or self._bytes >= MAX_BYTES_PER_BATCH:
            self._write()

    def _write(self) -> None:
        if self._producer is not None and self._records:
            self._progress = self._producer.write(self._records, self._progress, self._digest)
            self._records, self._bytes = [], 0


def judge_replay(plan: ReplayPlan, reports: Iterable[ReplayedPartition], ended_ms: int) -> list[dict[str, Any]]:
    """Rows of table `salvage_replays`, one per partition of the plan. Unreported ones are unknown."""
    by_partition = {Partition(report.topic, report.partition): report for report in reports}
    return [
        _judge_partition(plan, partition, records, digest, by_partition.get(partition), ended_ms)
        for partition, (records, digest) in sorted(plan.sum_partitions().items())
    ]


def _judge_partition(
    plan: ReplayPlan,
    partition: Partition,
    records: int,
    digest: int,
    report: ReplayedPartition | None,
    ended_ms: int,
) -> dict[str, Any]:
    outcome, error = ReplayOutcome.WRITTEN, ""
    if report is None:
        outcome, error = ReplayOutcome.UNKNOWN, "no task reported this partition: run the same command again"
    elif report.written > records or (report.written == records and int(report.digest, 16) != digest):
        outcome = ReplayOutcome.DIFFERS
        error = report.error or "the replay wrote other records than the dry run counted: compare both topics"
    elif report.error or report.written < records:
        outcome = ReplayOutcome.INCOMPLETE
        error = report.error or "the salvage holds fewer records than at the dry run"
    return {
        "replay": plan.hash,
        "topic": partition.topic,
        "partition": partition.index,
        "target_cluster": plan.cluster.id,
        "target_topic": plan.targets[partition.topic],
        "selected": records,
        "written": report.written if report else None,
        "written_before": report.written_before if report else None,
        "first_offset": report.first_offset if report else None,
        "last_offset": report.last_offset if report else None,
        "outcome": outcome.value,
        "error": error,
        "ended": ended_ms,
    }


def check_writable_records(counts: Sequence[ReplayCount]) -> list[str]:
    unwritable = [f"{c.topic}-{c.partition} offset {c.unwritable:,}" for c in counts if c.unwritable is not None]
    if not unwritable:
        return []
    return [
        "a client cannot write headers whose names are not UTF-8, nor more than 65,536 headers of one record:"
        f" {join_limited(unwritable)}. Leave these records out with --offsets or --where"
    ]


def _iterate_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _to_record(row: Mapping[str, Any]) -> ReplayRecord:
    return ReplayRecord(
        offset=Offset(row["offset"]),
        timestamp_ms=row["timestamp_ms"],
        key=row["key"],
        value=row["value"],
        headers=tuple((header["name"], header["value"]) for header in row["headers"]),
    )


def _can_write(header_name: bytes) -> bool:
    """librdkafka accepts UTF-8 names, and cuts them off at a zero byte."""
    try:
        header_name.decode()
    except UnicodeDecodeError:
        return False
    return header_name != UNDECODED_HEADERS and b"\0" not in header_name


def _measure_row(row: Mapping[str, Any]) -> int:
    headers = sum(HEADER_BYTES + len(header["name"]) + len(header["value"] or b"") for header in row["headers"])
    return len(row["key"] or b"") + len(row["value"] or b"") + headers


def _digest_row(row: Mapping[str, Any], record: ReplayRecord) -> int:
    is_append_time = row["timestamp_type"] == "LogAppendTime"
    content = digest_content(record.timestamp_ms, is_append_time, record.key, record.value, record.headers)
    place = f"{row['topic']} {row['partition']} {record.offset} ".encode()
    return int.from_bytes(hashlib.sha256(place + content).digest()[:16])
