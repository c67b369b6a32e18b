"""Builds the batches to send: fetched records, hidden ones and seeds.

Seeds fill an empty log up to the source's log start. They and hidden records carry sequences like data, so filling with
them needs no owner, and may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from mirror_core.copy.partition_progress import PartitionProgress
from mirror_core.copy.send_queue import Gap, HiddenGap, ReadyBatch, SendQueue, SentBatch
from mirror_core.decide.batch_treatment import BatchTreatment, choose_treatment
from mirror_core.model.names import ClusterName
from mirror_core.wire import message_v0_v1
from mirror_core.wire.batch import (
    BatchHeader,
    MalformedBatch,
    clear_transaction_bits,
    compute_batch_digest,
    read_base_sequence,
    readdress,
    split_batches,
)
from mirror_core.wire.batch_encoder import EMPTY_CONTENT, build_batch, encode_record
from mirror_core.wire.fetch import FetchedPartition
from mirror_core.wire.hidden_records import build_hidden_batch
from mirror_core.wire.read_committed import DamagedBatch, filter_committed
from mirror_core.wire.records import Codec
from mirror_core.wire.reencode import RecordRun, is_mergeable, merge_batches, split_into_runs

PRODUCER_EPOCH: Final = 0
TINY_BATCH_RECORDS: Final = 8
MIN_MERGED_BATCHES: Final = 4
MAX_MERGED_BYTES: Final = 16 << 10


class RewrittenBatch(NamedTuple):
    """Dense, and all committed; still without producer id and sequence of ours."""

    base_offset: int
    records: int
    batch: memoryview

    @property
    def end(self) -> int:
        return self.base_offset + self.records


class CorruptBatch(NamedTuple):
    offset: int
    reason: str


CopyItem = RewrittenBatch | Gap | CorruptBatch


def rewrite_fetched_batches(
    source: ClusterName, fetched: FetchedPartition, position: int
) -> Iterator[Sequence[CopyItem]]:
    """From `position` on: one sequence for each batch of the source.

    A `Gap` stands for offsets without a visible record. A batch that may not be copied is the last item.
    """
    subject = f"cluster {source}, {fetched.partition}"
    try:
        for header, batch, visible in filter_committed(fetched, position):
            items = _rewrite_batch(header, batch, position, is_visible=visible)
            if items:
                position = items[-1].end
            yield items
    except DamagedBatch as error:
        reason = (
            f"{subject}: the batch at offset {error.offset} is corrupt (its CRC-32C does not match) "
            "and was not copied; repair the source's replica, then recover the partition"
        )
        yield (CorruptBatch(error.offset, reason),)
    except MalformedBatch as error:
        reason = f"{subject}: what came back for offset {position} is not a record batch ({error}); it was not copied"
        yield (CorruptBatch(position, reason),)


def _rewrite_batch(
    header: BatchHeader, batch: memoryview, position: int, *, is_visible: bool
) -> Sequence[RewrittenBatch | Gap]:
    chosen = choose_treatment(header, position, is_visible=is_visible)
    if chosen is BatchTreatment.OLD_FORMAT or chosen is BatchTreatment.REENCODED:
        split = message_v0_v1.split_message_into_runs if chosen is BatchTreatment.OLD_FORMAT else split_into_runs
        return list(_fill_gaps_between_runs(split(header, batch, position), position, header.next_offset))
    if chosen is BatchTreatment.DROPPED:
        return (Gap(header.next_offset),) if header.next_offset > position else ()
    if chosen is BatchTreatment.CLEARED:
        clear_transaction_bits(batch)
    whole = RewrittenBatch(header.base_offset, header.record_count, batch)
    return (whole,) if header.base_offset <= position else (Gap(header.base_offset), whole)


def _fill_gaps_between_runs(runs: Iterable[RecordRun], position: int, end: int) -> Iterator[RewrittenBatch | Gap]:
    for run in runs:
        if run.base_offset > position:
            yield Gap(run.base_offset)
        yield RewrittenBatch(run.base_offset, run.records, memoryview(run.batch))
        position = run.next_offset
    if end > position:
        yield Gap(end)


def merge_tiny_batches(ready: list[ReadyBatch], producer_id: int) -> list[ReadyBatch]:
    """Each batch costs brokers as much as kilobytes of records, so tiny neighbours become one."""
    if len(ready) < MIN_MERGED_BATCHES:
        return ready
    merged: list[ReadyBatch] = []
    run: list[tuple[BatchHeader, ReadyBatch]] = []
    size = 0
    for item in ready:
        header = _read_tiny_header(item)
        if header is None or size + item[0].size > MAX_MERGED_BYTES:
            merged += _merge_run(run, producer_id)
            run, size = [], 0
        if header is None:
            merged.append(item)
        else:
            run.append((header, item))
            size += item[0].size
    return merged + _merge_run(run, producer_id)


def _read_tiny_header(item: ReadyBatch) -> BatchHeader | None:
    sent, batch = item
    if sent.records > TINY_BATCH_RECORDS:
        return None
    header, _ = next(split_batches(batch))
    header = header._replace(base_offset=sent.base_offset)
    return header if is_mergeable(header) else None


def _merge_run(run: list[tuple[BatchHeader, ReadyBatch]], producer_id: int) -> list[ReadyBatch]:
    if len(run) < MIN_MERGED_BATCHES:
        return [item for _, item in run]
    try:
        batch = memoryview(merge_batches([(header, batch) for header, (_, batch) in run]))
    except MalformedBatch:
        return [item for _, item in run]  # malformed as produced: copied as it is
    first, first_batch = run[0][1]
    readdress(batch, producer_id, PRODUCER_EPOCH, read_base_sequence(first_batch))
    records, newest_ms = sum(sent.records for _, (sent, _) in run), max(sent.newest_ms for _, (sent, _) in run)
    digest = compute_batch_digest(first.base_offset, batch)
    return [(SentBatch(first.base_offset, records, len(batch), digest, newest_ms), batch)]


MAX_HIDDEN_RECORDS: Final = 20_000
"""220 KB: mirror topics accept 1 MiB more than their sources."""


def pop_hidden_batch(queue: SendQueue, gap: HiddenGap, producer_id: int, producer_epoch: int) -> ReadyBatch:
    count = queue.pop_hidden(gap, MAX_HIDDEN_RECORDS)
    batch = memoryview(build_hidden_batch(count, gap.time_ms))
    readdress(batch, producer_id, producer_epoch, gap.sequence)
    return SentBatch(gap.base_offset, count, len(batch), None), batch


MAX_SEED_OFFSETS: Final = 200_000
MAX_SEEDS_IN_FLIGHT: Final = 4
_NO_TIMESTAMP: Final = -1
"""Any other time would be the newest of the segment, and lookups by time would find it instead of later records. The
price: a broker that compacts just then forgets the producer; the log end shows how far seeding is.
"""


def build_seed_batches(progress: PartitionProgress, producer_id: int, producer_epoch: int) -> Iterator[ReadyBatch]:
    for _ in range(MAX_SEEDS_IN_FLIGHT if progress.is_sequence_known else 1):
        base_offset, sequence, records = progress.next_seeds(MAX_SEED_OFFSETS)
        if records <= 0:
            return
        batch = memoryview(bytearray(_encode_seed_batch(records)))
        readdress(batch, producer_id, producer_epoch, sequence)
        yield SentBatch(base_offset, records, len(batch), None), batch


@lru_cache(maxsize=2)
def _encode_seed_batch(records: int) -> bytes:
    encoded_records = b"".join(encode_record(0, delta, EMPTY_CONTENT) for delta in range(records))
    return bytes(build_batch(encoded_records, records, Codec.ZSTD, _NO_TIMESTAMP, _NO_TIMESTAMP))
