"""Compares the same offsets of two clusters by chunk: digests of raw batches, then records."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mirror_core.decide.parity import DIGEST, RECORDS, Ends, Row, chunks, trimmed
from mirror_core.decide.rate import RateLimiter
from mirror_core.decide.topics import cleans
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config, Principal, load_config
from mirror_core.kafka.existing import presence
from mirror_core.kafka.log_faults import Trimmed
from mirror_core.kafka.offsets import Point, points_of, untold
from mirror_core.kafka.reader import AHEAD, LogReader
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.parity.differences import Lone, compare_records, damage
from mirror_core.parity.explained import explained, failed, records_of
from mirror_core.parity.keyed_digest import DigestKey, KeyedDigest
from mirror_core.wire.batch import CODEC_MASK, HEADER_SIZE, LOG_APPEND_TIME, BatchHeader, is_dense

_DIGESTED: Final = struct.Struct(">qiqqBB")
"""Base offset, count, base and maximum timestamp, timestamp type, codec: what records depend on.

Not the leader epoch, producer fields and transactional bit, which the destination sets itself.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareTask:
    """Holds no secret: the task opens `config_path` itself."""

    config_path: str
    source: ClusterName
    destination: ClusterName
    level: int
    chunk: int
    """Offsets of a chunk."""
    pieces: tuple[ParityRange, ...]
    throttle: int | None = None
    """Bytes per second of each cluster."""
    values: bool = False
    """Findings show values, not only sizes and digests."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    somewhere: frozenset[str]
    on_both: frozenset[str]


@dataclass(slots=True)
class _Side:
    digest: KeyedDigest
    count: int = 0
    exact: bool = True
    """Whether the count excludes records of sparse batches beyond the chunk's boundary."""


def compare(task: CompareTask) -> tuple[Row, ...]:
    """What cannot be read becomes rows with an error."""
    rows: list[Row] = []
    try:
        config = load_config(Path(task.config_path), only=Principal.DATA)
        sides = config.cluster(task.source), config.cluster(task.destination)
    except MirrorError as error:
        return unread(task, error)
    paces = [RateLimiter(task.throttle) for _ in sides]
    with LogReader(sides[0], pace=paces[0]) as source, LogReader(sides[1], pace=paces[1]) as destination:
        for number, piece in enumerate(task.pieces):
            if number % AHEAD == 0:
                for side in (source, destination):
                    side.ahead(beginnings(task.pieces[number : number + AHEAD]))
            try:
                rows += _compare_piece(source, destination, piece, task)
            except MirrorError as error:
                rows += _unread(piece, task.chunk, error)
    # Use up the rate limit's debt here: the next task starts a new limiter.
    time.sleep(max(pace.wait_s(time.monotonic()) for pace in paces))
    return tuple(rows)


def beginnings(pieces: Sequence[ParityRange]) -> dict[Partition, Offset]:
    return {piece.partition: piece.start for piece in reversed(pieces)}


def unread(task: CompareTask, error: MirrorError | str) -> tuple[Row, ...]:
    return tuple(row for piece in task.pieces for row in _unread(piece, task.chunk, error))


@dataclass(frozen=True, slots=True)
class BothEnds:
    ends: Mapping[Partition, tuple[Ends, Ends]]
    """Without partitions that the source lacks."""
    unseen: Mapping[Partition, str]
    """No leader, or it does not answer."""


def read_ends(
    config: Config, source: ClusterName, destination: ClusterName, partitions: Sequence[Partition]
) -> BothEnds:
    """The destination is read first: see `decide.parity.compare_ends`."""
    with ClusterClient(config.cluster(destination), Principal.CONTROL) as client:
        copied, away = _ends(client, partitions)
    with ClusterClient(config.cluster(source), Principal.CONTROL) as client:
        original, gone = _ends(client, partitions)
    missing, unseen = Ends(start=Offset(0), end=Offset(0), missing_on=destination), {**away, **gone}
    ends = {p: (ends, copied.get(p, missing)) for p, ends in original.items() if p not in unseen}
    return BothEnds(ends, unseen)


def cleaned_of(config: Config, source: ClusterName, destination: ClusterName, topics: Collection[str]) -> Cleaned:
    """Sends nothing for no topics: a planned failover calls it while applications stand still."""
    sides = list[frozenset[str]]()
    for name in (source, destination) if topics else ():
        with ClusterClient(config.cluster(name), Principal.CONTROL) as client:
            described = describe_configs(client, topics)
        sides.append(frozenset(topic for topic, configs in described.items() if cleans(configs.effective)))
    return Cleaned(frozenset().union(*sides), frozenset(topics).intersection(*sides))


def _ends(client: ClusterClient, partitions: Sequence[Partition]) -> tuple[dict[Partition, Ends], dict[Partition, str]]:
    known = presence(client, partitions)
    there = [p for p in partitions if p not in known.absent and p not in known.denied]
    starts, ends = points_of(client, there, [Point.START, Point.LOG_END])
    both = starts.offsets.keys() & ends.offsets.keys()
    told = {p: Ends(start=starts.offsets[p], end=ends.offsets[p]) for p in there if p in both}
    missing = ((p, ends if p in starts.offsets else starts) for p in there if p not in told)
    return told, {**{p: untold(client.name, p, led) for p, led in missing}, **known.denied}


def _compare_piece(source: LogReader, destination: LogReader, piece: ParityRange, task: CompareTask) -> list[Row]:
    """When retention on the source overtakes the reading, begin again behind what it removed."""
    gone: list[Row] = []
    while True:
        try:
            return gone + _compare_chunks(source, destination, piece, task)
        except Trimmed as error:
            start = source.log_start(piece.partition)
            if not piece.start < start or error.log_start > start:
                # The destination has lost what the source still has.
                return [*gone, *_unread(piece, task.chunk, error)]
            gone.append(trimmed(piece, min(start, piece.end)))
            piece = replace(piece, start=min(start, piece.end))


def _compare_chunks(source: LogReader, destination: LogReader, piece: ParityRange, task: CompareTask) -> list[Row]:
    key = DigestKey.random()
    src, src_end, src_error = _digest(source, piece, task.chunk, key)
    dst, dst_end, dst_error = _digest(destination, piece, task.chunk, key)
    rows = []
    lone: dict[int, Lone] = {}
    for chunk in chunks(piece, task.chunk):
        number = chunk.start // task.chunk
        if chunk.end > min(src_end, dst_end):
            errors = [why for end, why in ((src_end, src_error), (dst_end, dst_error)) if why and chunk.end > end]
            rows += _unread(chunk, task.chunk, *errors)
            continue
        one, two = src[number], dst[number]
        row = Row(
            partition=chunk.partition,
            chunk=number,
            start=chunk.start,
            end=chunk.end,
            level=DIGEST,
            src_count=one.count,
            dst_count=two.count,
            src_digest=one.digest.hexdigest(),
            dst_digest=two.digest.hexdigest(),
        )
        doubtful = not row.equal or not one.exact or not two.exact
        if doubtful and task.level >= RECORDS:
            row, lone[len(rows)] = _by_record(source, destination, row, piece, task.values)
        rows.append(row)
    return explained(source, destination, rows, lone, piece.stopped_at) if any(lone.values()) else rows


def _by_record(
    source: LogReader, destination: LogReader, row: Row, piece: ParityRange, values: bool
) -> tuple[Row, Lone]:
    span = row.partition, row.start, row.end
    streams = records_of(source, *span), records_of(destination, *span)
    try:
        found = compare_records(
            row.partition, *streams, compacted=piece.compacted, unkeyed_go=piece.unkeyed_go, values=values
        )
    except Trimmed:
        raise
    except MirrorError as error:
        return replace(failed(row, error), damaged=damage(row.partition, error, row.start, row.end)), {}
    compared = replace(
        row,
        level=RECORDS,
        src_count=found.src_count,
        dst_count=found.dst_count,
        src_digest=found.src_digest,
        dst_digest=found.dst_digest,
        findings=found.findings,
        differing=found.differing,
    )
    return compared, found.lone


def _digest(
    reader: LogReader, piece: ParityRange, size: int, key: DigestKey
) -> tuple[dict[int, _Side], int, MirrorError | None]:
    """Digests by chunk number, the offset read up to, and the error that ended it."""
    sides = {chunk.start // size: _Side(KeyedDigest(key)) for chunk in chunks(piece, size)}
    read: int = piece.start
    try:
        for header, batch in reader.batches(piece.partition, piece.start, piece.end):
            read = min(header.next_offset, piece.end)
            low, high = max(header.base_offset, piece.start), min(header.next_offset, piece.end)
            facts = _facts(header)
            for number in range(low // size, (high - 1) // size + 1):
                side = sides[number]
                side.digest.update(facts)
                side.digest.update(batch[HEADER_SIZE:])
                _count(side, header, max(low, number * size), min(high, (number + 1) * size))
    except Trimmed:
        raise
    except MirrorError as error:
        return sides, read, error
    return sides, piece.end, None


def _count(side: _Side, header: BatchHeader, low: int, high: int) -> None:
    """Add the batch's records in [low, high)."""
    if is_dense(header):
        side.count += high - low
    else:
        side.count += header.record_count
        side.exact &= low == header.base_offset and high == header.next_offset


def _facts(header: BatchHeader) -> bytes:
    return _DIGESTED.pack(
        header.base_offset,
        header.record_count,
        header.base_timestamp,
        header.max_timestamp,
        bool(header.attributes & LOG_APPEND_TIME),
        header.attributes & CODEC_MASK,
    )


def _unread(piece: ParityRange, size: int, *errors: MirrorError | str) -> list[Row]:
    return [
        Row(
            partition=c.partition,
            chunk=c.start // size,
            start=c.start,
            end=c.end,
            level=DIGEST,
            error="; ".join(map(str, errors)),
            damaged=tuple(found for error in errors for found in damage(c.partition, error, c.start, c.end)),
        )
        for c in chunks(piece, size)
    ]
