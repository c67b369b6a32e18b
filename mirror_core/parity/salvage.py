"""Saves records to Parquet before their log is truncated.

Written beside its place, counted against the log, synced to disk, then moved into place.
"""

from __future__ import annotations

import os
import secrets
import shutil
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_core.evidence.table_schemas import SALVAGE, Column, build_schema
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config, Principal, load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points, list_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.files import report_write_errors, sync_path, sync_tree
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, SalvagedPartition, SalvageMatch
from mirror_core.parity.keyed_digest import PROCESS_KEY, digest_in_memory
from mirror_core.parity.record_scan import SCANNED_COLUMNS, RecordColumn, build_batches
from mirror_core.wire.batch import BatchHeader
from mirror_core.wire.records import Record

_TOMBSTONE: Final = b"\0"
"""Digests of values have 16 bytes."""


@dataclass(frozen=True, slots=True)
class TailMatches:
    """Keys of a tail that the other cluster has."""

    other_has: Mapping[bytes, bool]
    """By digest of a key, and by digests of key and value."""

    def find_match(self, record: Record) -> SalvageMatch:
        if record.key is None:
            return SalvageMatch.UNKEYED
        key, pair = _digest_in_memory(record.key, record.value)
        if self.other_has[pair]:
            return SalvageMatch.SAME_VALUE
        return SalvageMatch.CONFLICTING if self.other_has[key] else SalvageMatch.MISSING


def find_tail_records(tail: Iterable[Record], other: Iterable[Record]) -> TailMatches:
    """Memory grows with the tail, which is read first, not with the other log."""
    other_has = dict[bytes, bool]()
    for record in tail:
        if record.key is not None:
            other_has |= dict.fromkeys(_digest_in_memory(record.key, record.value), False)
    for record in other if other_has else ():
        if record.key is not None:
            other_has |= {d: True for d in _digest_in_memory(record.key, record.value) if d in other_has}
    return TailMatches(other_has)


def _digest_in_memory(key: bytes, value: bytes | None) -> tuple[bytes, bytes]:
    key_digest = digest_in_memory(key)
    return key_digest, key_digest + _digest_value(value)


def _digest_value(value: bytes | None, key: bytes = PROCESS_KEY) -> bytes:
    return _TOMBSTONE if value is None else digest_in_memory(value, key)


_MATCH: Final = RecordColumn(SALVAGE.columns[-1], lambda p, h, r: None)
"""Null where no other cluster was compared."""
SCHEMA: Final = SALVAGE.schema
MANIFEST: Final = "_salvage.json"
NOT_WRITABLE_ADVICE: Final = "nothing was deleted: make room and rights there, or give another folder"
MAX_LISTED_OFFSETS: Final = 5
MAX_MATCHED_OFFSETS: Final = 2_000_000
"""For one tail in one process. A key takes 230 bytes: 450 MB."""
_MAX_SCANNED_OFFSETS: Final = 1_000_000
_NAME_CHARACTERS: Final = 200
WriteRecords = Callable[[Sequence["SalvageTask"], Path], None]


class SalvageIncomplete(MirrorError):
    """The saved records are not as many as the log's: nothing may be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageTask:
    config_path: str
    cluster: ClusterIdentity
    range: ParityRange
    counterpart: TailCounterpart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TailCounterpart:
    """The other cluster's log since both parted, [start, end)."""

    cluster: ClusterIdentity
    start: Offset
    end: Offset


class LocalSalvage:
    def __init__(self, config_path: Path) -> None:
        self._config_path = config_path

    def __call__(
        self,
        cluster: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path,
        against: ClusterIdentity | None = None,
    ) -> dict[Partition, SalvagedPartition]:
        return salvage_records(self._config_path, cluster, ranges, output, against, write=write_locally)


def salvage_records(
    config_path: Path,
    cluster: ClusterIdentity,
    ranges: Sequence[ParityRange],
    output: Path,
    against: ClusterIdentity | None = None,
    *,
    write: WriteRecords,
    opened_by_tasks: Path | None = None,
) -> dict[Partition, SalvagedPartition]:
    """Returns counts, and what cluster `against` has of the ranges.

    A finished salvage of the same ranges is returned as it is. Refused when something else is at `output`;
    SalvageIncomplete when the count is wrong, and nothing appears there.
    """
    wanted = tuple(sorted(ranges, key=lambda r: (r.partition, r.start)))
    if len({r.partition for r in wanted}) < len(wanted):
        raise Refused(
            "salvage not started",
            ["a partition is named twice: give one range for each"],
            reason_code="partition_named_twice",
        )
    finished = _read_finished(output, wanted)
    if finished is not None:
        return finished
    config = load_config(config_path)
    with ClusterClient(config.pinned_cluster(cluster)) as client:
        starts = list_offsets(client, [r.partition for r in wanted], OffsetPoint.START) if wanted else {}
    counterparts = _list_counterparts(config, against, wanted) if against else {}
    tasks = [
        SalvageTask(
            config_path=str((opened_by_tasks or config_path).absolute()),
            cluster=cluster,
            range=_clip_range(r, starts[r.partition]),
            counterpart=counterparts.get(r.partition),
        )
        for r in wanted
    ]
    work = [task for task in tasks if task.range.start < task.range.end]
    expected = {task.range.partition: count_records(task) if task in work else 0 for task in tasks}
    incomplete = output.with_name(f"_{output.name}.incomplete")
    with report_write_errors(f"salvage of cluster {cluster.name}", output, NOT_WRITABLE_ADVICE):
        shutil.rmtree(incomplete, ignore_errors=True)
        incomplete.mkdir(parents=True, mode=0o700)  # application data
        if work:
            write(work, incomplete)
        manifest = [replace(s, log_start=starts[p]) for p, s in _count_saved(incomplete, wanted).items()]
        _check_counts(cluster.name, expected, {s.requested_range.partition: s.records for s in manifest}, incomplete)
        (incomplete / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        sync_tree(incomplete)
        os.replace(incomplete, output)
        sync_path(output.parent)
    return {s.requested_range.partition: s for s in manifest}


@dataclass(frozen=True, slots=True, kw_only=True)
class TailDigestScan:
    """[start, end) of a tail, or of its counterpart. Holds no secret."""

    task: SalvageTask
    number: int
    is_tail: bool
    start: Offset
    end: Offset
    digest_key: bytes = field(repr=False)
    """Random, one for a whole salvage; stored nowhere."""


def plan_tail_digests(tasks: Sequence[SalvageTask]) -> list[TailDigestScan]:
    digest_key = secrets.token_bytes(16)
    return [
        TailDigestScan(
            task=task,
            number=number,
            is_tail=log is task.range,
            start=Offset(start),
            end=Offset(min(start + _MAX_SCANNED_OFFSETS, log.end)),
            digest_key=digest_key,
        )
        for number, task in enumerate(tasks)
        for log in (task.range, task.counterpart)
        if log is not None
        for start in range(log.start, log.end, _MAX_SCANNED_OFFSETS)
    ]


def read_tail_digests(scan: TailDigestScan) -> Iterator[pa.RecordBatch]:
    """Rows of `TAIL_DIGEST_COLUMNS`."""
    config = load_config(Path(scan.task.config_path), only_principal=Principal.DATA)
    cluster = scan.task.cluster if scan.is_tail or scan.task.counterpart is None else scan.task.counterpart.cluster
    with LogReader(config.pinned_cluster(cluster)) as reader:
        yield from digest_records(scan, reader.records(scan.task.range.partition, scan.start, scan.end))


def digest_records(scan: TailDigestScan, records: Iterator[tuple[BatchHeader, Record]]) -> Iterator[pa.RecordBatch]:
    """Leaves out records without a key. The tail's first scan also yields its task, in a row of its own."""
    if scan.is_tail and scan.start == scan.task.range.start:
        row = {"task": scan.number, "offset": -1, "is_tail": True, "payload": msgspec.json.encode(scan.task)}
        yield pa.RecordBatch.from_pylist([row], schema=build_schema(TAIL_DIGEST_COLUMNS))
    read = (
        lambda p, h, r: scan.number,
        lambda p, h, r: r.offset,
        lambda p, h, r: scan.is_tail,
        lambda p, h, r: digest_in_memory(r.key or b"", scan.digest_key),
        lambda p, h, r: _digest_value(r.value, scan.digest_key),
        lambda p, h, r: None,
    )
    columns = [RecordColumn(column, reads) for column, reads in zip(TAIL_DIGEST_COLUMNS, read, strict=True)]
    keyed = ((header, record) for header, record in records if record.key is not None)
    yield from build_batches(scan.task.range.partition, keyed, columns)


TAIL_DIGEST_COLUMNS: Final = (
    Column("task", pa.int32(), "number of the tail"),
    Column("offset", pa.int64(), "its offset; -1 in the row of the task"),
    Column("is_tail", pa.bool_(), "false: a record of the other cluster"),
    Column("key", pa.binary(), "its digest", nullable=True),
    Column("value", pa.binary(), "its digest", nullable=True),
    Column("payload", pa.binary(), "the tail's task", nullable=True),
)


def read_matched_records(rows: Iterator[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """`rows`: offset, match and payload of whole tails, in the order of their offsets."""
    task: SalvageTask | None = None
    for row in rows:
        if task is not None and row["payload"] is None:
            raise _make_changed_log_error(task, row["offset"])
        task = msgspec.json.decode(row["payload"], type=SalvageTask)
        yield from read_record_batches(task, partial(_take_match, task, rows))


def _take_match(task: SalvageTask, rows: Iterator[Mapping[str, Any]], record: Record) -> SalvageMatch:
    if record.key is None:
        return SalvageMatch.UNKEYED
    row = next(rows, None)
    if row is None or row["offset"] != record.offset:
        raise _make_changed_log_error(task, record.offset)
    return SalvageMatch(row["match"])


def _make_changed_log_error(task: SalvageTask, offset: int) -> SalvageIncomplete:
    return SalvageIncomplete(
        f"cluster {task.cluster.name}, {task.range.partition}, offset {offset:,}: the log changed while it was saved."
        " Nothing may be deleted now; run it again"
    )


def read_record_batches(
    task: SalvageTask, find_match: Callable[[Record], SalvageMatch] | None = None
) -> Iterator[pa.RecordBatch]:
    """A few thousand rows or some megabytes each. `find_match`: None looks in the other cluster's log."""
    config = load_config(Path(task.config_path), only_principal=Principal.DATA)
    wanted = task.range
    if find_match is None and task.counterpart is not None:
        find_match = _find_matches(config, task, task.counterpart).find_match
    match = replace(_MATCH, read=lambda p, h, r: find_match(r).value) if find_match is not None else _MATCH
    with LogReader(config.pinned_cluster(task.cluster)) as reader:
        records = reader.records(wanted.partition, wanted.start, wanted.end)
        yield from build_batches(wanted.partition, records, [*SCANNED_COLUMNS, match])


def _find_matches(config: Config, task: SalvageTask, other: TailCounterpart) -> TailMatches:
    wanted = task.range
    with (
        LogReader(config.pinned_cluster(task.cluster)) as tail_reader,
        LogReader(config.pinned_cluster(other.cluster)) as other_reader,
    ):
        return find_tail_records(
            (record for _, record in tail_reader.records(wanted.partition, wanted.start, wanted.end)),
            (record for _, record in other_reader.records(wanted.partition, other.start, other.end)),
        )


def _list_counterparts(
    config: Config, cluster: ClusterIdentity, wanted: Sequence[ParityRange]
) -> dict[Partition, TailCounterpart]:
    """An empty range where the other cluster lacks the partition."""
    with ClusterClient(config.pinned_cluster(cluster)) as client:
        topics = find_existing_topics(client, {wanted_range.partition.topic for wanted_range in wanted})
        present = [
            p
            for p in (wanted_range.partition for wanted_range in wanted)
            if p.topic in topics and p.index in topics[p.topic].partitions
        ]
        starts, ends = list_offset_points(client, present, [OffsetPoint.START, OffsetPoint.STABLE_END]).values()
    counterparts = {}
    for wanted_range in wanted:
        start = Offset(max(wanted_range.start, starts.get(wanted_range.partition, Offset(0))))
        end = Offset(max(start, ends.get(wanted_range.partition, start)))
        counterparts[wanted_range.partition] = TailCounterpart(cluster=cluster, start=start, end=end)
    return counterparts


def count_records(task: SalvageTask) -> int:
    """By batch headers, without decoding: a second opinion."""
    config = load_config(Path(task.config_path), only_principal=Principal.DATA)
    wanted = task.range
    records = 0
    with LogReader(config.pinned_cluster(task.cluster)) as reader:
        for header, _ in reader.batches(wanted.partition, wanted.start, wanted.end):
            if header.base_offset >= wanted.start and header.next_offset <= wanted.end:
                records += header.record_count
            else:  # crosses the range's boundary: count records
                low, high = max(wanted.start, header.base_offset), min(wanted.end, header.next_offset)
                records += sum(1 for _ in reader.records(wanted.partition, Offset(low), Offset(high)))
    return records


def write_locally(tasks: Sequence[SalvageTask], folder: Path) -> None:
    """Refused for a tail whose keys would take too much memory."""
    if too_large := [
        f"{task.range.partition}: {size:,} offsets to compare with cluster {task.counterpart.cluster.name}"
        for task in tasks
        if task.counterpart is not None and (size := task.range.end - task.range.start) > MAX_MATCHED_OFFSETS
    ]:
        advice = f"one process compares at most {MAX_MATCHED_OFFSETS:,} of a partition: use --runner spark"
        raise Refused(
            "salvage not started", [*too_large, f"{advice}, in Airflow a Spark master"], reason_code="salvage_too_large"
        )
    for number, task in enumerate(tasks):
        # A topic's name may be too long for a file's; the number tells apart what begins alike.
        path = folder / f"{number}.{str(task.range.partition)[:_NAME_CHARACTERS]}.parquet"
        with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
            for batch in read_record_batches(task):
                writer.write_batch(batch)


def _clip_range(wanted: ParityRange, log_start: Offset) -> ParityRange:
    return replace(wanted, start=min(max(wanted.start, log_start), wanted.end))


def _count_saved(folder: Path, wanted: Sequence[ParityRange]) -> dict[Partition, SalvagedPartition]:
    counts: dict[Partition, int] = {}
    matches: dict[Partition, dict[str, int]] = {}
    first: dict[Partition, dict[str, list[Offset]]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=["topic", "partition", "offset", "match"]):
            for row in batch.to_pylist():
                partition, match = Partition(row["topic"], row["partition"]), row["match"]
                counts[partition] = counts.get(partition, 0) + 1
                if match is not None:
                    partition_matches = matches.setdefault(partition, {})
                    partition_matches[match] = partition_matches.get(match, 0) + 1
                    offsets = first.setdefault(partition, {}).setdefault(match, [])
                    insort(offsets, row["offset"])
                    del offsets[MAX_LISTED_OFFSETS:]
    return {
        r.partition: SalvagedPartition(
            requested_range=r,
            log_start=Offset(0),
            records=counts.get(r.partition, 0),
            matches=matches.get(r.partition, {}),
            first_offsets={match: tuple(offsets) for match, offsets in first.get(r.partition, {}).items()},
        )
        for r in wanted
    }


def _check_counts(
    cluster: ClusterName, expected: dict[Partition, int], saved: dict[Partition, int], folder: Path
) -> None:
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


def _read_finished(output: Path, wanted: tuple[ParityRange, ...]) -> dict[Partition, SalvagedPartition] | None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    try:
        manifest = msgspec.json.decode((output / MANIFEST).read_bytes(), type=tuple[SalvagedPartition, ...])
    except (OSError, msgspec.MsgspecError):
        raise Refused(
            "salvage not started",
            [f"{output} exists and is no finished salvage: choose another"],
            reason_code="salvage_unfinished",
        ) from None
    if tuple(saved.requested_range for saved in manifest) != wanted:
        raise Refused(
            "salvage not started",
            [f"{output} holds a salvage of other ranges: choose another place"],
            reason_code="salvage_of_other_ranges",
        )
    sync_path(output.parent)  # the process that moved it may have been killed before syncing
    return {saved.requested_range.partition: saved for saved in manifest}
