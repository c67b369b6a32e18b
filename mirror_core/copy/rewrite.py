"""Turns a Fetch response into batches to send and gaps to fill: verified, with new producer ids and
sequences.

Also builds batches of hidden records, and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mirror_core.copy.outbox import Ready, Sent
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.decide.passthrough import Treatment, treatment
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName
from mirror_core.wire import legacy
from mirror_core.wire.batch import (
    NEWEST,
    BatchHeader,
    MalformedBatch,
    base_sequence,
    clear_bits,
    max_timestamp,
    readdress,
)
from mirror_core.wire.committed import DamagedBatch, committed
from mirror_core.wire.digest import content
from mirror_core.wire.fetch import Fetched
from mirror_core.wire.merge import merge, mergeable
from mirror_core.wire.reencode import dense_runs

PRODUCER_EPOCH: Final = 0
TINY: Final = 8
WORTH_MERGING: Final = 4
MERGED_BYTES: Final = 16 << 10


class Rewriter:
    def __init__(self, source: ClusterName, producer_id: int) -> None:
        self.source = source
        self.producer_id = producer_id

    def accept(self, replicator: PartitionReplicator, answer: Fetched) -> list[Ready]:
        """Batches of one partition that may be sent at once, in place; its position moves past them.

        From the first gap on everything is enqueued, batches as copies. A batch that may not be copied ends the
        partition, after everything before it. What follows a first batch that must go alone is fetched again later: in
        the queue it would neither be merged nor let others pass while the source is the faster side.
        """
        ready: list[Ready] = []
        tiny: dict[int, BatchHeader] = {}
        where = f"cluster {self.source}, {replicator.partition}"
        ends, place = replicator.assigned.until is not None, replicator.place
        try:
            for header, batch, visible in committed(answer, place.position):
                self._take(replicator, ready, header, batch, visible)
                if header.record_count <= TINY and header.magic == NEWEST and mergeable(header):
                    tiny[header.base_offset] = header
                if place.first_waits or (ends and replicator.finished):
                    break
        except DamagedBatch as error:
            replicator.end(
                f"{where}: the batch at offset {error.offset} is corrupt (its CRC-32C does not match) "
                "and was not copied; repair the source's replica, then recover the partition",
                error.offset,
                FailureKind.CORRUPT,
            )
        except MalformedBatch as error:
            position = replicator.place.position
            replicator.end(
                f"{where}: what came back for offset {position} is not a record batch ({error}); it was not copied",
                position,
                FailureKind.CORRUPT,
            )
        return self._merged(ready, tiny) if len(tiny) >= WORTH_MERGING else ready

    def _merged(self, ready: list[Ready], tiny: Mapping[int, BatchHeader]) -> list[Ready]:
        found: list[Ready] = []
        run: list[Ready] = []
        size = 0
        for item in ready:
            sent = item[0]
            if sent.base not in tiny or size + sent.size > MERGED_BYTES:
                found += self._as_one(run, tiny)
                run, size = [], 0
            if sent.base in tiny:
                run.append(item)
                size += sent.size
            else:
                found.append(item)
        return found + self._as_one(run, tiny)

    def _as_one(self, run: list[Ready], tiny: Mapping[int, BatchHeader]) -> list[Ready]:
        if len(run) < WORTH_MERGING:
            return run
        try:
            batch = memoryview(merge([(tiny[sent.base], batch) for sent, batch in run]))
        except MalformedBatch:
            return run  # malformed as produced: copied as it is
        first, view = run[0]
        readdress(batch, self.producer_id, PRODUCER_EPOCH, base_sequence(view))
        records, newest_ms = sum(sent.records for sent, _ in run), max(sent.newest_ms for sent, _ in run)
        return [(Sent(first.base, records, len(batch), content(first.base, batch), newest_ms), batch)]

    def _take(
        self,
        replicator: PartitionReplicator,
        ready: list[Ready],
        header: BatchHeader,
        batch: memoryview,
        visible: bool,
    ) -> None:
        place = replicator.place
        how = treatment(header, place.position, visible=visible)
        if how is Treatment.OLD_FORMAT or how is Treatment.ENCODED:
            runs = legacy.dense_runs if how is Treatment.OLD_FORMAT else dense_runs
            for run in runs(header, batch, place.position):
                if run.base_offset > place.position:
                    replicator.skip_to(run.base_offset)
                self._put(replicator, ready, run.base_offset, run.records, memoryview(run.batch))
        elif how is not Treatment.NOTHING:
            if how is Treatment.CLEARED:
                clear_bits(batch)
            if header.base_offset > place.position:
                replicator.skip_to(header.base_offset)
            self._put(replicator, ready, header.base_offset, header.record_count, batch)
            return  # dense
        if header.next_offset > place.position:
            replicator.skip_to(header.next_offset)

    def _put(
        self, replicator: PartitionReplicator, ready: list[Ready], base: int, records: int, batch: memoryview
    ) -> None:
        readdress(batch, self.producer_id, PRODUCER_EPOCH, replicator.place.sequence)
        sent = Sent(base, records, len(batch), content(base, batch), max_timestamp(batch))
        if replicator.put(sent, batch):
            ready.append((sent, batch))
