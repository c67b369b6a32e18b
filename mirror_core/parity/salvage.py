"""Saves records to Parquet before their log is truncated.

A salvage is written beside its place, counted against the log, synced to disk, and then moved into place. It is never
overwritten: after a repeated step it may be the only copy.
"""

from __future__ import annotations

import os
import shutil
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_core.evidence.table_schemas import SALVAGE
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config, Principal, load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points, list_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.files import report_write_errors, sync_path, sync_tree
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, SalvagedPartition, SalvageMatch
from mirror_core.parity.keyed_digest import digest_in_memory
from mirror_core.parity.record_scan import SCANNED_COLUMNS, RecordColumn, build_batches
from mirror_core.wire.records import Record

_TOMBSTONE: Final = b""
"""Digests of values have 16 bytes."""


@dataclass(frozen=True, slots=True)
class TailMatches:
    """Which keys of a tail the other cluster has."""

    same_values: frozenset[tuple[bytes, bytes]]
    """Digests of keys and values found there."""
    keys: frozenset[bytes]
    """Digests of keys found there."""

    def find_match(self, record: Record) -> SalvageMatch:
        if record.key is None:
            return SalvageMatch.UNKEYED
        key = digest_in_memory(record.key)
        if (key, _digest_value(record)) in self.same_values:
            return SalvageMatch.SAME_VALUE
        return SalvageMatch.CONFLICTING if key in self.keys else SalvageMatch.MISSING


def find_tail_records(tail: Iterable[Record], other: Iterable[Record]) -> TailMatches:
    """Memory grows with the tail, which is read first, not with the other log."""
    tail_values: dict[bytes, set[bytes]] = {}
    for record in tail:
        if record.key is not None:
            tail_values.setdefault(digest_in_memory(record.key), set()).add(_digest_value(record))
    same_values, found_keys = set[tuple[bytes, bytes]](), set[bytes]()
    for record in other if tail_values else ():
        if record.key is None:
            continue
        key = digest_in_memory(record.key)
        if key in tail_values:
            found_keys.add(key)
            if (value := _digest_value(record)) in tail_values[key]:
                same_values.add((key, value))
    return TailMatches(frozenset(same_values), frozenset(found_keys))


def _digest_value(record: Record) -> bytes:
    return _TOMBSTONE if record.value is None else digest_in_memory(record.value)


_MATCH: Final = RecordColumn(SALVAGE.columns[-1], lambda p, h, r: None)
"""Null where no other cluster was compared."""
SCHEMA: Final = SALVAGE.schema
MANIFEST: Final = "_salvage.json"
NOT_WRITABLE_ADVICE: Final = "nothing was deleted: make room and rights there, or give another folder"
MAX_LISTED_OFFSETS: Final = 5
_NAME_CHARACTERS: Final = 200
WriteRecords = Callable[[Sequence["SalvageTask"], Path], None]


class SalvageIncomplete(MirrorError):
    """The number of saved records is not the log's: nothing may be deleted."""


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
    """Save these ranges; returns counts, and what cluster `against` has of them.

    A finished salvage of the same ranges is returned as it is. Refused when something else is at `output`;
    SalvageIncomplete when the count is wrong, and nothing appears there.
    """
    wanted = tuple(sorted(ranges, key=lambda r: (r.partition, r.start)))
    if len({r.partition for r in wanted}) < len(wanted):
        raise Refused("salvage not started", ["a partition is named twice: give one range for each"])
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


def read_record_batches(task: SalvageTask) -> Iterator[pa.RecordBatch]:
    """Arrow batches of a few thousand rows or some megabytes."""
    config = load_config(Path(task.config_path), only_principal=Principal.DATA)
    wanted = task.range
    matches = _find_matches(config, task)
    match = replace(_MATCH, read=lambda p, h, r: matches.find_match(r).value) if matches is not None else _MATCH
    with LogReader(config.pinned_cluster(task.cluster)) as reader:
        records = reader.records(wanted.partition, wanted.start, wanted.end)
        yield from build_batches(wanted.partition, records, [*SCANNED_COLUMNS, match])


def _find_matches(config: Config, task: SalvageTask) -> TailMatches | None:
    if task.counterpart is None:
        return None
    other, wanted = task.counterpart, task.range
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
    """Records by batch headers, without decoding: a second opinion."""
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
        raise Refused("salvage not started", [f"{output} exists and is no finished salvage: choose another"]) from None
    if tuple(saved.requested_range for saved in manifest) != wanted:
        raise Refused("salvage not started", [f"{output} holds a salvage of other ranges: choose another place"])
    sync_path(output.parent)  # the process that moved it may have been killed before syncing
    return {saved.requested_range.partition: saved for saved in manifest}
