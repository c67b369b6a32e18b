"""Turns a Fetch response into batches to send and gaps to fill: verified, with new producer ids and
sequences.

Also builds batches of hidden records, and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mirror_core.copy.outbox import ReadyBatch, SentBatch
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.decide.passthrough import BatchTreatment, choose_treatment
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName
from mirror_core.wire import legacy
from mirror_core.wire.batch import (
    CURRENT_MAGIC,
    BatchHeader,
    MalformedBatch,
    clear_transaction_bits,
    read_base_sequence,
    read_max_timestamp,
    readdress,
)
from mirror_core.wire.committed import DamagedBatch, filter_committed
from mirror_core.wire.digest import compute_batch_digest
from mirror_core.wire.fetch import FetchedPartition
from mirror_core.wire.merge import is_mergeable, merge_batches
from mirror_core.wire.reencode import split_into_runs

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
            runs = legacy.split_message_into_runs if chosen is BatchTreatment.OLD_FORMAT else split_into_runs
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
