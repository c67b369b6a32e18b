"""Hidden records: they take up offsets as any record does, and no consumer is ever handed one.

A Fetch answers with whole batches, so every client drops records that lie below the position that it asked for. These
carry an offset delta of -2**31, by which they lie 2**31 offsets below their own batch. Brokers count the records of an
uncompressed batch and look no closer at their deltas (of compressed ones they check them: hence uncompressed). The
batch's header is an honest one: it takes its offsets, and counts in its producer's sequence.
"""

from __future__ import annotations

from typing import Final

from mirror_core.wire.batch import CODEC_MASK, CONTROL, HEADER_SIZE, LENGTH_PREFIX, NEWEST, BatchHeader
from mirror_core.wire.encode import NOTHING, batch_of, record
from mirror_core.wire.records import Codec

HIDDEN_DELTA: Final = -(1 << 31)
"""The lowest that there is: an offset delta has 32 bits."""

RECORD: Final = record(0, HIDDEN_DELTA, NOTHING)
"""All of them are these bytes."""


def hidden_batch(count: int, time_ms: int) -> bytearray:
    """A batch that takes up `count` offsets, for `readdress` to finish. `time_ms`: see `copy.outbox`, newest_ms."""
    return batch_of(RECORD * count, count, Codec.NONE, time_ms, time_ms)


def is_hidden(header: BatchHeader, batch: memoryview) -> bool:
    """Whether this is such a batch, byte for byte: then it holds no record for anybody. Nearly always one comparison.

    Anything else with such a delta was not written by a mirror; what becomes of it, other decoders decide.
    """
    if header.length != HEADER_SIZE - LENGTH_PREFIX + len(RECORD) * header.record_count or header.magic != NEWEST:
        return False
    plain = not header.attributes & (CODEC_MASK | CONTROL)
    return plain and header.record_count > 0 and batch[HEADER_SIZE:] == RECORD * header.record_count
