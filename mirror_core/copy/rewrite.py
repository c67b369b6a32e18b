"""From a Fetch answer to batches that may be sent and gaps that are to be filled: verified, re-addressed, in order."""

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
"""Records of a batch that is merged with its neighbours: below, a copier spends less on its records than on sending it,
and the destination's broker is spared far more."""
WORTH_MERGING: Final = 4
"""Tiny batches in a row."""
MERGED_BYTES: Final = 16 << 10


class Rewriter:
    """What one mirror makes of a source's batches."""

    def __init__(self, source: ClusterName, producer_id: int) -> None:
        self.source = source
        self.producer_id = producer_id

    def accept(self, replicator: PartitionReplicator, answer: Fetched) -> list[Ready]:
        """Batches of one partition that may be sent at once, in place; its position moves past them.

        From the first gap on everything goes into the line, batches as copies. A batch that may not cross ends the
        partition, after what came before it. What comes behind a first batch that has to go alone is asked for again:
        in line it would neither be merged nor give way to what goes at once, as long as the source is the quicker one.
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
        """The same with runs of tiny batches as one each. What is ready has no gap in it."""
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
            return (
                run  # records that contradict their header, in bytes that are as they were produced: not ours to mend
            )
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
            return  # dense: nothing of it is left
        if header.next_offset > place.position:
            replicator.skip_to(header.next_offset)

    def _put(
        self, replicator: PartitionReplicator, ready: list[Ready], base: int, records: int, batch: memoryview
    ) -> None:
        readdress(batch, self.producer_id, PRODUCER_EPOCH, replicator.place.sequence)
        sent = Sent(base, records, len(batch), content(base, batch), max_timestamp(batch))
        if replicator.put(sent, batch):
            ready.append((sent, batch))
