"""A topic's records as a table. Options are those of Spark's Kafka source, where it has them.

Offsets are fixed when a table is planned: reading it twice gives the same records.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from mirror_core.evidence.table_schemas import RECORD_COLUMNS, Column, build_ddl, build_schema
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points
from mirror_core.kafka.log_reader import LogReader, LogTrimmed
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset, Partition
from mirror_core.wire.batch import LOG_APPEND_TIME, BatchHeader
from mirror_core.wire.records import Record

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
MAX_ROWS_PER_BATCH: Final = 2_000
MAX_BYTES_PER_BATCH: Final = 4 << 20
"""A batch is a copy in Spark's JVM, too."""
HEADER_BYTES: Final = 300
"""A header in memory, besides name and value."""


@dataclass(frozen=True, slots=True)
class RecordColumn:
    column: Column
    read: Callable[[Partition, BatchHeader, Record], object]


def compute_content_digest(header: BatchHeader, record: Record) -> bytes:
    is_append_time = bool(header.attributes & LOG_APPEND_TIME)
    return digest_content(record.timestamp_ms, is_append_time, record.key, record.value, record.headers)


def digest_content(
    timestamp_ms: int,
    is_append_time: bool,
    key: bytes | None,
    value: bytes | None,
    headers: Collection[tuple[bytes, bytes | None]],
) -> bytes:
    """SHA-256 of timestamp, timestamp type, key, value and headers, in that order: 32 bytes.

    Numbers are big-endian int64; bytes and lists have their length before them, and null has length -1.
    """
    digest = hashlib.sha256(struct.pack(">qq", timestamp_ms, is_append_time))
    for part in (key, value):
        _digest_bytes(digest.update, part)
    digest.update(struct.pack(">q", len(headers)))
    for name, content in headers:
        _digest_bytes(digest.update, name)
        _digest_bytes(digest.update, content)
    return digest.digest()


def _digest_bytes(update: Callable[[bytes], object], data: bytes | None) -> None:
    update(struct.pack(">q", -1 if data is None else len(data)))
    update(data or b"")


_READERS: Final[Mapping[str, Callable[[Partition, BatchHeader, Record], object]]] = {
    "topic": lambda p, h, r: p.topic,
    "partition": lambda p, h, r: p.index,
    "offset": lambda p, h, r: r.offset,
    "timestamp_ms": lambda p, h, r: r.timestamp_ms,
    "timestamp_type": lambda p, h, r: "LogAppendTime" if h.attributes & LOG_APPEND_TIME else "CreateTime",
    "key": lambda p, h, r: r.key,
    "value": lambda p, h, r: r.value,
    "headers": lambda p, h, r: [{"name": name, "value": value} for name, value in r.headers],
}
SCANNED_COLUMNS: Final = tuple(RecordColumn(column, _READERS[column.name]) for column in RECORD_COLUMNS)
DIGEST_COLUMN: Final = RecordColumn(
    Column("digest", pa.binary(), "SHA-256 of its content"), lambda p, h, r: compute_content_digest(h, r)
)
COLUMNS: Final[Mapping[str, RecordColumn]] = {one.column.name: one for one in (*SCANNED_COLUMNS, DIGEST_COLUMN)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """[start, end)."""

    partition: Partition
    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordScan:
    """Which records, in which columns. Holds no secret."""

    config_path: str
    """Where it is read."""
    cluster: ClusterIdentity
    columns: tuple[str, ...]
    ranges: tuple[LogRange, ...]
    """Spark reads each in a task of its own."""

    @property
    def ddl(self) -> str:
        return build_ddl(tuple(COLUMNS[name].column for name in self.columns))

    def list_columns(self) -> list[RecordColumn]:
        return [COLUMNS[name] for name in self.columns]


class RecordScanOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=str.lower, kw_only=True):
    """Text as users give it."""

    config: str
    """mirrorbook.yaml where the table is planned."""
    cluster: str
    subscribe: str = ""
    """Topics, comma-separated."""
    assign: str = ""
    """JSON: partitions by topic, instead of `subscribe`."""
    startingOffsets: str = EARLIEST
    """`earliest`, or JSON: first offsets by topic and partition, others earliest."""
    endingOffsets: str = LATEST
    """`latest` (the last stable offset), or JSON: next offsets after the last ones."""
    minPartitions: str = "1"
    """At least so many ranges, where there are as many offsets."""
    columns: str = ",".join(column.name for column in RECORD_COLUMNS)
    executorsConfig: str = ""
    """mirrorbook.yaml where tasks run; empty: the same."""


def parse_options(options: Mapping[str, str]) -> RecordScanOptions:
    """Names in any case. Raises BadRequest."""
    values = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in RecordScanOptions.__struct_fields__}
    if foreign := sorted(set(values) - set(known)):
        advice = (
            ": addresses and credentials come from the file that `config` names"
            if any(name.startswith("kafka.") for name in foreign)
            else ""
        )
        raise BadRequest(f"unknown option {', '.join(foreign)}{advice}. Known: {', '.join(known.values())}")
    if missing := [name for name in ("config", "cluster") if not values.get(name)]:
        raise BadRequest(f"missing options: {', '.join(missing)}")
    parsed = msgspec.convert(values, RecordScanOptions)
    if bool(parsed.subscribe) == bool(parsed.assign):
        raise BadRequest("give either option subscribe (topics) or option assign (partitions)")
    if not (parsed.minPartitions.isdecimal() and int(parsed.minPartitions)):
        raise BadRequest(f"option minPartitions is {parsed.minPartitions!r}, which is no number above 0")
    columns = _split(parsed.columns)
    if not columns or len(set(columns)) < len(columns) or not set(columns) <= set(COLUMNS):
        raise BadRequest(f"option columns is {parsed.columns!r}: name some of {', '.join(COLUMNS)}, each once")
    return parsed


def plan_record_scan(options: RecordScanOptions) -> RecordScan:
    """Asks the cluster, as its data principal.

    Raises BadRequest for offsets that are not in the log and for absent topics.
    """
    config = load_config(Path(options.config), only_principal=Principal.DATA)
    cluster = config.cluster(ClusterName(options.cluster))
    assigned = _parse_assignment(options.assign) if options.assign else None
    with ClusterClient(cluster, Principal.DATA) as client:
        cluster_id = client.metadata(()).cluster_id
        topics = _split(options.subscribe) if assigned is None else tuple(sorted({p.topic for p in assigned}))
        metadata = find_existing_topics(client, topics)
        if absent := [topic for topic in topics if topic not in metadata]:
            raise BadRequest(f"cluster {cluster.name}: unknown topics {', '.join(absent)}")
        existing = [Partition(topic, index) for topic in topics for index in sorted(metadata[topic].partitions)]
        partitions = existing if assigned is None else sorted(assigned)
        if unknown := [str(partition) for partition in partitions if partition not in set(existing)]:
            raise BadRequest(f"cluster {cluster.name}: unknown partitions {', '.join(unknown)}")
        starts, ends = list_offset_points(client, partitions, [OffsetPoint.START, OffsetPoint.STABLE_END]).values()
    chosen_starts = _parse_offsets("startingOffsets", options.startingOffsets, EARLIEST, starts)
    chosen_ends = _parse_offsets("endingOffsets", options.endingOffsets, LATEST, ends)
    for partition in partitions:
        start, end = chosen_starts[partition], chosen_ends[partition]
        if start < starts[partition] or end > ends[partition] or start > end:
            raise BadRequest(
                f"cluster {cluster.name}, {partition}: offsets {start} to {end} were asked for, and {starts[partition]}"
                f" to {ends[partition]} can be read"
            )
    unsplit_ranges = [
        LogRange(partition=partition, start=chosen_starts[partition], end=chosen_ends[partition])
        for partition in partitions
        if chosen_starts[partition] < chosen_ends[partition]
    ]
    return RecordScan(
        config_path=str(Path(options.executorsConfig or options.config).absolute()),
        cluster=ClusterIdentity(cluster.name, cluster_id),
        columns=_split(options.columns),
        ranges=tuple(split_ranges(unsplit_ranges, int(options.minPartitions))),
    )


def split_ranges(ranges: Sequence[LogRange], min_partitions: int) -> Iterator[LogRange]:
    """About as many offsets each."""
    total = sum(log_range.end - log_range.start for log_range in ranges)
    size = max(1, total // min_partitions)
    for log_range in ranges:
        length = log_range.end - log_range.start
        count = 1 if min_partitions <= len(ranges) else -(-length // size)
        cuts = [Offset(log_range.start + length * number // count) for number in range(count + 1)]
        for start, end in itertools.pairwise(cuts):
            yield replace(log_range, start=start, end=end)


def read_record_scan(table: RecordScan) -> Iterator[pa.RecordBatch]:
    """Committed records, without the hidden ones that fill gaps.

    LogTrimmed when the log's start passed a range while it was read.
    """
    config = load_config(Path(table.config_path), only_principal=Principal.DATA)
    with LogReader(config.pinned_cluster(table.cluster)) as reader:
        for log_range in table.ranges:
            yield from build_batches(
                log_range.partition,
                reader.records(log_range.partition, log_range.start, log_range.end),
                table.list_columns(),
            )
            if (log_start := reader.log_start(log_range.partition)) > log_range.start:
                raise LogTrimmed(
                    f"cluster {table.cluster.name}, {log_range.partition}, offset {log_range.start}", log_start
                )


def build_batches(
    partition: Partition, records: Iterator[tuple[BatchHeader, Record]], columns: Sequence[RecordColumn]
) -> Iterator[pa.RecordBatch]:
    """At most a few thousand rows or some megabytes each; a larger record has a batch of its own."""
    schema = build_schema(tuple(one.column for one in columns))
    rows: list[list[object]] = [[] for _ in columns]
    count = size = 0
    for header, record in records:
        for values, column in zip(rows, columns, strict=True):
            values.append(column.read(partition, header, record))
        count, size = count + 1, size + estimate_row_bytes(record)
        if count >= MAX_ROWS_PER_BATCH or size >= MAX_BYTES_PER_BATCH:
            yield _to_batch(rows, schema)
            rows, count, size = [[] for _ in columns], 0, 0
    if count:
        yield _to_batch(rows, schema)


def _to_batch(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(values, type=field.type) for values, field in zip(rows, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def estimate_row_bytes(record: Record) -> int:
    """In memory, where many headers take far more than their bytes."""
    headers = sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _parse_assignment(text: str) -> list[Partition]:
    try:
        assigned = msgspec.json.decode(text, type=dict[str, list[int]])
    except msgspec.DecodeError as error:
        raise BadRequest(f'option assign is no JSON such as {{"orders": [0, 1]}}: {error}') from None
    return [Partition(topic, index) for topic, indexes in assigned.items() for index in dict.fromkeys(indexes)]


def _parse_offsets(
    option: str, text: str, default: str, default_offsets: Mapping[Partition, Offset]
) -> dict[Partition, Offset]:
    if text == default:
        return dict(default_offsets)
    shape = f'option {option} is {default} or JSON such as {{"orders": {{"0": 100}}}}'
    try:
        given = msgspec.json.decode(text, type=dict[str, dict[int, int]])
    except msgspec.DecodeError as error:
        raise BadRequest(f"{shape}: {error}") from None
    offsets = {Partition(topic, index): value for topic, values in given.items() for index, value in values.items()}
    if foreign := [str(partition) for partition in offsets if partition not in default_offsets]:
        raise BadRequest(f"option {option} names {', '.join(foreign)}, which neither subscribe nor assign selects")
    if any(offset < 0 for offset in offsets.values()):
        raise BadRequest(f"{shape}: an offset is negative")
    return {**default_offsets, **{partition: Offset(offset) for partition, offset in offsets.items()}}
