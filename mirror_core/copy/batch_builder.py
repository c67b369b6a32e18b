"""Turns a Fetch response into batches to send and gaps to fill: verified, with new producer ids and
sequences.

Also builds batches of hidden records, and seeds.

Builds batches of hidden records (`wire.hidden_records`) that use up gaps.

They carry sequences like data, so the task need not be the only writer, wait, or check log ends.

Seeds an empty log up to the source's log start with placeholder records, which are deleted at once.

A batch is built once and sent many times; it takes less than a byte per offset. Seeds carry sequences like data, so
seeding may be interrupted, repeated or done twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.send_queue import HiddenGap, ReadyBatch, SendQueue, SentBatch
from mirror_core.decide.batch_treatment import BatchTreatment, choose_treatment
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName
from mirror_core.wire import message_v0_v1
from mirror_core.wire.batch import (
    CURRENT_MAGIC,
    BatchHeader,
    MalformedBatch,
    clear_transaction_bits,
    compute_batch_digest,
    read_base_sequence,
    read_max_timestamp,
    readdress,
)
from mirror_core.wire.batch_encoder import EMPTY_CONTENT, build_batch, encode_record
from mirror_core.wire.fetch import FetchedPartition
from mirror_core.wire.hidden_records import build_hidden_batch
from mirror_core.wire.read_committed import DamagedBatch, filter_committed
from mirror_core.wire.records import Codec
from mirror_core.wire.reencode import is_mergeable, merge_batches, split_into_runs

PRODUCER_EPOCH: Final = 0
TINY_BATCH_RECORDS: Final = 8
MIN_MERGED_BATCHES: Final = 4
MAX_MERGED_BYTES: Final = 16 << 10


class BatchRewriter:
    def __init__(self, source: ClusterName, producer_id: int) -> None:
        self.source = source
        self.producer_id = producer_id

    def rewrite(self, replicator: PartitionReplicator, fetched: FetchedPartition) -> list[ReadyBatch]:
        """Batches of one partition that may be sent at once, in place; its position moves past them.

        From the first gap on everything is enqueued, batches as copies. A batch that may not be copied ends the
        partition, after everything before it. What follows a first batch that must go alone is fetched again later: in
        the queue it would neither be merged nor let others pass while the source is the faster side.
        """
        ready: list[ReadyBatch] = []
        tiny: dict[int, BatchHeader] = {}
        subject = f"cluster {self.source}, {replicator.partition}"
        has_end, progress = replicator.assigned.stop_offset is not None, replicator.progress
        try:
            for header, batch, visible in filter_committed(fetched, progress.position):
                self._rewrite_batch(replicator, ready, header, batch, visible)
                if header.record_count <= TINY_BATCH_RECORDS and header.magic == CURRENT_MAGIC and is_mergeable(header):
                    tiny[header.base_offset] = header
                if progress.is_first_unanswered or (has_end and replicator.is_finished):
                    break
        except DamagedBatch as error:
            replicator.fail_after(
                f"{subject}: the batch at offset {error.offset} is corrupt (its CRC-32C does not match) "
                "and was not copied; repair the source's replica, then recover the partition",
                error.offset,
                FailureKind.CORRUPT,
            )
        except MalformedBatch as error:
            position = replicator.progress.position
            replicator.fail_after(
                f"{subject}: what came back for offset {position} is not a record batch ({error}); it was not copied",
                position,
                FailureKind.CORRUPT,
            )
        return self._merge_tiny(ready, tiny) if len(tiny) >= MIN_MERGED_BATCHES else ready

    def _merge_tiny(self, ready: list[ReadyBatch], tiny: Mapping[int, BatchHeader]) -> list[ReadyBatch]:
        merged: list[ReadyBatch] = []
        run: list[ReadyBatch] = []
        size = 0
        for item in ready:
            sent = item[0]
            if sent.base_offset not in tiny or size + sent.size > MAX_MERGED_BYTES:
                merged += self._merge_run(run, tiny)
                run, size = [], 0
            if sent.base_offset in tiny:
                run.append(item)
                size += sent.size
            else:
                merged.append(item)
        return merged + self._merge_run(run, tiny)

    def _merge_run(self, run: list[ReadyBatch], tiny: Mapping[int, BatchHeader]) -> list[ReadyBatch]:
        if len(run) < MIN_MERGED_BATCHES:
            return run
        try:
            batch = memoryview(merge_batches([(tiny[sent.base_offset], batch) for sent, batch in run]))
        except MalformedBatch:
            return run  # malformed as produced: copied as it is
        first_sent, first_batch = run[0]
        readdress(batch, self.producer_id, PRODUCER_EPOCH, read_base_sequence(first_batch))
        records, newest_ms = sum(sent.records for sent, _ in run), max(sent.newest_ms for sent, _ in run)
        return [
            (
                SentBatch(
                    first_sent.base_offset,
                    records,
                    len(batch),
                    compute_batch_digest(first_sent.base_offset, batch),
                    newest_ms,
                ),
                batch,
            )
        ]

    def _rewrite_batch(
        self,
        replicator: PartitionReplicator,
        ready: list[ReadyBatch],
        header: BatchHeader,
        batch: memoryview,
        visible: bool,
    ) -> None:
        progress = replicator.progress
        chosen = choose_treatment(header, progress.position, is_visible=visible)
        if chosen is BatchTreatment.OLD_FORMAT or chosen is BatchTreatment.REENCODED:
            runs = message_v0_v1.split_message_into_runs if chosen is BatchTreatment.OLD_FORMAT else split_into_runs
            for run in runs(header, batch, progress.position):
                if run.base_offset > progress.position:
                    replicator.skip_to(run.base_offset)
                self._enqueue(replicator, ready, run.base_offset, run.records, memoryview(run.batch))
        elif chosen is not BatchTreatment.DROPPED:
            if chosen is BatchTreatment.CLEARED:
                clear_transaction_bits(batch)
            if header.base_offset > progress.position:
                replicator.skip_to(header.base_offset)
            self._enqueue(replicator, ready, header.base_offset, header.record_count, batch)
            return  # dense
        if header.next_offset > progress.position:
            replicator.skip_to(header.next_offset)

    def _enqueue(
        self,
        replicator: PartitionReplicator,
        ready: list[ReadyBatch],
        base_offset: int,
        records: int,
        batch: memoryview,
    ) -> None:
        readdress(batch, self.producer_id, PRODUCER_EPOCH, replicator.progress.sequence)
        sent = SentBatch(
            base_offset, records, len(batch), compute_batch_digest(base_offset, batch), read_max_timestamp(batch)
        )
        if replicator.enqueue(sent, batch):
            ready.append((sent, batch))


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
"""Any other time would be the newest of the segment, and lookups by time would find it instead of
later records. The price: a broker that compacts just then forgets the producer; the log end shows how far seeding is.
"""


def build_seed_batches(replicator: PartitionReplicator, producer_id: int, producer_epoch: int) -> Iterator[ReadyBatch]:
    for _ in range(MAX_SEEDS_IN_FLIGHT if replicator.progress.is_sequence_known else 1):
        base_offset, sequence, records = replicator.progress.next_seeds(MAX_SEED_OFFSETS)
        if records <= 0:
            return
        batch = memoryview(bytearray(_encode_seed_batch(records)))
        readdress(batch, producer_id, producer_epoch, sequence)
        yield SentBatch(base_offset, records, len(batch), None), batch


@lru_cache(maxsize=2)
def _encode_seed_batch(records: int) -> bytes:
    encoded_records = b"".join(encode_record(0, delta, EMPTY_CONTENT) for delta in range(records))
    return bytes(build_batch(encoded_records, records, Codec.ZSTD, _NO_TIMESTAMP, _NO_TIMESTAMP))
