"""From a Fetch answer to batches that may be sent and gaps that are to be filled: verified, re-addressed, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import xxhash

from mirror_core.copy.partition import Lane, Sent
from mirror_core.decide.passthrough import Way, way_of
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName
from mirror_core.wire import legacy
from mirror_core.wire.batch import (
    CONTROL,
    HEADER_SIZE,
    SEQUENCE_MASK,
    TRANSACTIONAL,
    BatchHeader,
    MalformedBatch,
    base_sequence,
    batches,
    clear_bits,
    crc_matches,
    max_timestamp,
    readdress,
)
from mirror_core.wire.fetch import Fetched
from mirror_core.wire.hidden import is_hidden
from mirror_core.wire.merge import merge, mergeable
from mirror_core.wire.records import is_abort_marker
from mirror_core.wire.reencode import dense_runs

PRODUCER_EPOCH: Final = 0
TINY: Final = 8
"""Records of a batch that is merged with its neighbours: below, a copier spends less on its records than on sending it,
and the destination's broker is spared far more."""
WORTH_MERGING: Final = 4
"""Tiny batches in a row."""
MERGED_BYTES: Final = 16 << 10
SURE: Final = 2
"""Empty answers that it takes to believe that nothing is left before the last stable offset."""


class Intake:
    """What one mirror makes of a source's batches."""

    def __init__(self, source: ClusterName, producer_id: int) -> None:
        self.source = source
        self.producer_id = producer_id

    def accept(self, lane: Lane, fetched: Fetched) -> list[tuple[Sent, memoryview]]:
        """Batches of one partition that may be sent at once, in place; the lane's position moves past them.

        From the first gap on everything goes into the lane's queue, batches as copies. A batch that may not cross ends
        the lane, after what came before it.
        """
        ready: list[tuple[Sent, memoryview]] = []
        tiny: dict[int, BatchHeader] = {}
        where = f"cluster {self.source}, {lane.partition}"
        transactions = Aborted(fetched.aborted)
        try:
            for header, batch in batches(fetched.records):
                if lane.finished:
                    break
                aborted = transactions.hold(header, batch)
                way = way_of(header, lane.position, aborted=aborted, hidden=is_hidden(header, batch))
                if way is Way.PAST:
                    continue
                if way is not Way.OLD_FORMAT and not crc_matches(header, batch):
                    lane.end(
                        f"{where}: the batch at offset {header.base_offset} is corrupt (its CRC-32C does not match) "
                        "and was not copied; repair the source's replica, then recover the partition",
                        header.base_offset,
                        FailureKind.CORRUPT,
                    )
                    break
                self._take(lane, ready, way, header, batch)
                if header.record_count <= TINY and header.magic == 2 and mergeable(header):
                    tiny[header.base_offset] = header
        except MalformedBatch as error:
            lane.end(
                f"{where}: what came back for offset {lane.position} is not a record batch ({error}); it was not "
                "copied",
                lane.position,
                FailureKind.CORRUPT,
            )
        return self._merged(ready, tiny) if len(tiny) >= WORTH_MERGING else ready

    def _merged(
        self, ready: list[tuple[Sent, memoryview]], tiny: Mapping[int, BatchHeader]
    ) -> list[tuple[Sent, memoryview]]:
        """The same with runs of tiny batches as one each. What is ready has no gap in it."""
        found: list[tuple[Sent, memoryview]] = []
        run: list[tuple[Sent, memoryview]] = []
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

    def _as_one(
        self, run: list[tuple[Sent, memoryview]], tiny: Mapping[int, BatchHeader]
    ) -> list[tuple[Sent, memoryview]]:
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
        payload = xxhash.xxh3_128_digest(batch[HEADER_SIZE:])
        return [(first._replace(records=sum(s.records for s, _ in run), size=len(batch), payload=payload), batch)]

    def _take(
        self, lane: Lane, ready: list[tuple[Sent, memoryview]], way: Way, header: BatchHeader, batch: memoryview
    ) -> None:
        if way is Way.OLD_FORMAT or way is Way.ENCODED:
            runs = legacy.dense_runs if way is Way.OLD_FORMAT else dense_runs
            for run in runs(header, batch, lane.position):
                if run.base_offset > lane.position:
                    lane.skip_to(run.base_offset)
                self._put(lane, ready, run.base_offset, run.records, memoryview(run.batch))
        elif way is not Way.NOTHING:
            if way is Way.CLEARED:
                clear_bits(batch)
            if header.base_offset > lane.position:
                lane.skip_to(header.base_offset)
            self._put(lane, ready, header.base_offset, header.record_count, batch)
        if header.next_offset > lane.position:
            lane.skip_to(header.next_offset)

    def _put(
        self, lane: Lane, ready: list[tuple[Sent, memoryview]], base: int, records: int, batch: memoryview
    ) -> None:
        payload = xxhash.xxh3_128_digest(batch[HEADER_SIZE:])
        readdress(batch, self.producer_id, PRODUCER_EPOCH, lane.sequence)
        sent = Sent(lane, base, records, len(batch), payload)
        lane.forgotten = False
        lane.newest_ms = max_timestamp(batch)
        lane.sequence = (lane.sequence + records) & SEQUENCE_MASK
        lane.position = base + records
        if lane.queue:
            lane.queue.append((sent, memoryview(bytearray(batch))))
            lane.queued_bytes += len(batch)
        else:
            ready.append((sent, batch))


class Aborted:
    """Which batches of an answer belong to aborted transactions (KIP-98), asked in the log's order."""

    def __init__(self, transactions: tuple[tuple[int, int], ...]) -> None:
        self._coming = sorted(transactions, key=lambda pair: pair[1], reverse=True)
        self._open: set[int] = set()

    def hold(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether this one does. Each batch must be shown, control batches too."""
        if header.magic < 2:
            return False  # such batches know no producers
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.producer_id not in self._open:
            return False
        if header.attributes & CONTROL:
            if header.record_count and is_abort_marker(header, batch):
                self._open.discard(header.producer_id)
            return False
        return bool(header.attributes & TRANSACTIONAL)


def look_again(lane: Lane, fetched: Fetched, source: ClusterName, *, honest: bool) -> bool:
    """An answer brought the lane nothing. True when it is `honest` (for this partition alone, not throttled) a second
    time, though the last stable offset is further on: then compaction has removed what was there, unless remote storage
    should have given it.

    Other answers prove nothing: the size of an answer may be used up by other partitions.
    """
    lane.suspect = lane.position < fetched.last_stable and lane.empty < SURE
    if lane.position >= fetched.last_stable:
        lane.empty = 0
    elif lane.suspect and honest and len(fetched.records):
        lane.end(
            f"cluster {source}, {lane.partition}, offset {lane.position}: an answer without a whole batch",
            lane.position,
            FailureKind.CORRUPT,
        )
    elif lane.suspect and honest:
        lane.empty += 1
        lane.suspect = lane.empty < SURE
        return not lane.suspect
    return False
