"""Compares the same offsets of two clusters by chunk: digests of raw batches, then records."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mirror_core.decide.parity_result import (
    LEVEL_DIGEST,
    LEVEL_RECORDS,
    ParityLogBounds,
    ParityRow,
    build_trimmed_row,
    split_chunks,
)
from mirror_core.decide.task_assignment import RateLimiter
from mirror_core.decide.topic_settings import is_compacted
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config, Principal, load_config
from mirror_core.kafka.log_offsets import OffsetPoint, explain_missing_offset, list_points_with_retry
from mirror_core.kafka.log_reader import PREFETCH_LOGS, LogReader, LogTrimmed
from mirror_core.kafka.topic_existence import check_presence
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import ClusterIdentity, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.parity.keyed_digest import DigestKey, KeyedDigest
from mirror_core.parity.record_differences import (
    LoneRecords,
    add_unexplained,
    compare_records,
    find_damage,
    read_records,
    to_failed_row,
)
from mirror_core.wire.batch import CODEC_MASK, HEADER_SIZE, LOG_APPEND_TIME, BatchHeader, is_dense

# Base offset, length, count, base and maximum timestamp, timestamp type, codec: what records depend on. With its
# length, a batch ends where it says: its records could hold the beginning of another one. Not the leader epoch,
# producer fields and transactional bit, which the destination sets itself.
_DIGESTED: Final = struct.Struct(">qiiqqBB")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareTask:
    """Holds no secret: the task opens `config_path` itself."""

    config_path: str
    source: ClusterIdentity
    destination: ClusterIdentity
    level: int
    chunk: int
    """Offsets."""
    pieces: tuple[ParityRange, ...]
    throttle: int | None = None
    """Bytes per second of each cluster."""
    values: bool = False
    """Findings show values, not only sizes and digests."""


@dataclass(frozen=True, slots=True)
class CompactedTopics:
    somewhere: frozenset[str]
    on_both: frozenset[str]


@dataclass(slots=True)
class _Side:
    digest: KeyedDigest
    count: int = 0
    is_exact: bool = True
    """The count excludes records of sparse batches beyond the chunk's boundary."""


def compare_task(task: CompareTask) -> tuple[ParityRow, ...]:
    rows: list[ParityRow] = []
    try:
        config = load_config(Path(task.config_path), only_principal=Principal.DATA)
        sides = config.pinned_cluster(task.source), config.pinned_cluster(task.destination)
    except MirrorError as error:
        return to_unread_rows(task, error)
    paces = [RateLimiter(task.throttle) for _ in sides]
    with LogReader(sides[0], pace=paces[0]) as source, LogReader(sides[1], pace=paces[1]) as destination:
        for number, piece in enumerate(task.pieces):
            if number % PREFETCH_LOGS == 0:
                for side in (source, destination):
                    side.prefetch(list_start_offsets(task.pieces[number : number + PREFETCH_LOGS]))
            try:
                rows += _compare_piece(source, destination, piece, task)
            except MirrorError as error:
                rows += _to_unread_rows(piece, task.chunk, error)
    # Use up the rate limit's debt here: the next task starts a new limiter.
    time.sleep(max(pace.wait_s(time.monotonic()) for pace in paces))
    return tuple(rows)


def list_start_offsets(pieces: Sequence[ParityRange]) -> dict[Partition, Offset]:
    return {piece.partition: piece.start for piece in reversed(pieces)}


def to_unread_rows(task: CompareTask, error: MirrorError | str) -> tuple[ParityRow, ...]:
    return tuple(row for piece in task.pieces for row in _to_unread_rows(piece, task.chunk, error))


@dataclass(frozen=True, slots=True)
class BothLogEnds:
    ends: Mapping[Partition, tuple[ParityLogBounds, ParityLogBounds]]
    """Without partitions that the source lacks."""
    unknown: Mapping[Partition, str]
    """No leader, or it does not answer."""


def read_ends(
    config: Config, source: ClusterIdentity, destination: ClusterIdentity, partitions: Sequence[Partition]
) -> BothLogEnds:
    """Destination first: see `decide.parity_result.compare_log_bounds`."""
    with ClusterClient(config.pinned_cluster(destination), Principal.CONTROL) as client:
        destination_ends, destination_unknown = _list_ends(client, partitions)
    with ClusterClient(config.pinned_cluster(source), Principal.CONTROL) as client:
        source_ends, source_unknown = _list_ends(client, partitions)
    missing_ends, unknown = (
        ParityLogBounds(start=Offset(0), end=Offset(0), missing_on=destination.name),
        {**destination_unknown, **source_unknown},
    )
    ends = {p: (ends, destination_ends.get(p, missing_ends)) for p, ends in source_ends.items() if p not in unknown}
    return BothLogEnds(ends, unknown)


def list_compacted_topics(
    config: Config, source: ClusterIdentity, destination: ClusterIdentity, topics: Collection[str]
) -> CompactedTopics:
    """Sends nothing for no topics: a planned failover calls it while applications stand still."""
    sides = list[frozenset[str]]()
    for identity in (source, destination) if topics else ():
        with ClusterClient(config.pinned_cluster(identity), Principal.CONTROL) as client:
            described = describe_configs(client, topics)
        sides.append(frozenset(topic for topic, configs in described.items() if is_compacted(configs.effective)))
    return CompactedTopics(frozenset().union(*sides), frozenset(topics).intersection(*sides))


def _list_ends(
    client: ClusterClient, partitions: Sequence[Partition]
) -> tuple[dict[Partition, ParityLogBounds], dict[Partition, str]]:
    presence_by_partition = check_presence(client, partitions)
    present = [p for p in partitions if p not in presence_by_partition.absent and p not in presence_by_partition.denied]
    starts, ends = list_points_with_retry(client, present, [OffsetPoint.START, OffsetPoint.LOG_END])
    answered = starts.offsets.keys() & ends.offsets.keys()
    known_ends = {p: ParityLogBounds(start=starts.offsets[p], end=ends.offsets[p]) for p in present if p in answered}
    unanswered = ((p, ends if p in starts.offsets else starts) for p in present if p not in known_ends)
    return known_ends, {
        **{p: explain_missing_offset(client.name, p, offsets_result) for p, offsets_result in unanswered},
        **presence_by_partition.denied,
    }


def _compare_piece(source: LogReader, destination: LogReader, piece: ParityRange, task: CompareTask) -> list[ParityRow]:
    """Begins again behind what the source's retention removed."""
    trimmed_rows: list[ParityRow] = []
    while True:
        try:
            return trimmed_rows + _compare_chunks(source, destination, piece, task)
        except LogTrimmed as error:
            start = source.log_start(piece.partition)
            if not piece.start < start or error.log_start > start:
                # The destination has lost what the source still has.
                return [*trimmed_rows, *_to_unread_rows(piece, task.chunk, error)]
            trimmed_rows.append(build_trimmed_row(piece, min(start, piece.end)))
            piece = replace(piece, start=min(start, piece.end))


def _compare_chunks(
    source: LogReader, destination: LogReader, piece: ParityRange, task: CompareTask
) -> list[ParityRow]:
    key = DigestKey.generate()
    src_sides, src_end, src_error = _digest_side(source, piece, task.chunk, key)
    dst_sides, dst_end, dst_error = _digest_side(destination, piece, task.chunk, key)
    rows = []
    lone_by_row: dict[int, LoneRecords] = {}
    for chunk in split_chunks(piece, task.chunk):
        number = chunk.start // task.chunk
        if chunk.end > min(src_end, dst_end):
            errors = [
                side_error
                for end, side_error in ((src_end, src_error), (dst_end, dst_error))
                if side_error and chunk.end > end
            ]
            rows += _to_unread_rows(chunk, task.chunk, *errors)
            continue
        src_side, dst_side = src_sides[number], dst_sides[number]
        row = ParityRow(
            partition=chunk.partition,
            chunk=number,
            start=chunk.start,
            end=chunk.end,
            level=LEVEL_DIGEST,
            src_count=src_side.count,
            dst_count=dst_side.count,
            src_digest=src_side.digest.hexdigest(),
            dst_digest=dst_side.digest.hexdigest(),
        )
        is_doubtful = not row.equal or not src_side.is_exact or not dst_side.is_exact
        if is_doubtful and task.level >= LEVEL_RECORDS:
            row, lone_by_row[len(rows)] = _compare_records(source, destination, row, piece, task.values)
        rows.append(row)
    return (
        add_unexplained(source, destination, rows, lone_by_row, piece.stopped_at) if any(lone_by_row.values()) else rows
    )


def _compare_records(
    source: LogReader, destination: LogReader, row: ParityRow, piece: ParityRange, values: bool
) -> tuple[ParityRow, LoneRecords]:
    span = row.partition, row.start, row.end
    streams = read_records(source, *span), read_records(destination, *span)
    try:
        difference = compare_records(
            row.partition, *streams, compacted=piece.compacted, unkeyed_explained=piece.removes_unkeyed, values=values
        )
    except LogTrimmed:
        raise
    except MirrorError as error:
        return replace(to_failed_row(row, error), damaged=find_damage(row.partition, error, row.start, row.end)), {}
    compared = replace(
        row,
        level=LEVEL_RECORDS,
        src_count=difference.src_count,
        dst_count=difference.dst_count,
        src_digest=difference.src_digest,
        dst_digest=difference.dst_digest,
        findings=difference.findings,
        differing=difference.differing,
    )
    return compared, difference.lone


def _digest_side(
    reader: LogReader, piece: ParityRange, size: int, key: DigestKey
) -> tuple[dict[int, _Side], int, MirrorError | None]:
    """Digests by chunk number, the offset read up to, and the error that ended it."""
    sides = {chunk.start // size: _Side(KeyedDigest(key)) for chunk in split_chunks(piece, size)}
    read_end: int = piece.start
    try:
        for header, batch in reader.batches(piece.partition, piece.start, piece.end):
            read_end = min(header.next_offset, piece.end)
            low, high = max(header.base_offset, piece.start), min(header.next_offset, piece.end)
            facts = _pack_header(header)
            for number in range(low // size, (high - 1) // size + 1):
                side = sides[number]
                side.digest.update(facts)
                side.digest.update(batch[HEADER_SIZE:])
                _add_count(side, header, max(low, number * size), min(high, (number + 1) * size))
    except LogTrimmed:
        raise
    except MirrorError as error:
        return sides, read_end, error
    return sides, piece.end, None


def _add_count(side: _Side, header: BatchHeader, low: int, high: int) -> None:
    if is_dense(header):
        side.count += high - low
    else:
        side.count += header.record_count
        side.is_exact &= low == header.base_offset and high == header.next_offset


def _pack_header(header: BatchHeader) -> bytes:
    return _DIGESTED.pack(
        header.base_offset,
        header.length,
        header.record_count,
        header.base_timestamp,
        header.max_timestamp,
        bool(header.attributes & LOG_APPEND_TIME),
        header.attributes & CODEC_MASK,
    )


def _to_unread_rows(piece: ParityRange, size: int, *errors: MirrorError | str) -> list[ParityRow]:
    return [
        ParityRow(
            partition=chunk.partition,
            chunk=chunk.start // size,
            start=chunk.start,
            end=chunk.end,
            level=LEVEL_DIGEST,
            error="; ".join(map(str, errors)),
            damaged=tuple(
                finding for error in errors for finding in find_damage(chunk.partition, error, chunk.start, chunk.end)
            ),
        )
        for chunk in split_chunks(piece, size)
    ]
