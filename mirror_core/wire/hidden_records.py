"""Hidden records use up offsets, and no consumer receives them.

Their offset delta is -2**31, and clients drop records below the requested position. Brokers count the records of
uncompressed batches without checking deltas. The batch header is valid: it takes its offsets and sequences.
"""

from __future__ import annotations

from typing import Final

from mirror_core.wire.batch import CODEC_MASK, CONTROL, CURRENT_MAGIC, HEADER_SIZE, LENGTH_PREFIX, BatchHeader
from mirror_core.wire.batch_encoder import EMPTY_CONTENT, build_batch, encode_record
from mirror_core.wire.records import Codec

HIDDEN_DELTA: Final = -(1 << 31)

HIDDEN_RECORD: Final = encode_record(0, HIDDEN_DELTA, EMPTY_CONTENT)


def build_hidden_batch(count: int, time_ms: int) -> bytearray:
    """Finish it with `readdress`. `time_ms`: see `copy.send_queue`."""
    return build_batch(HIDDEN_RECORD * count, count, Codec.NONE, time_ms, time_ms)


def is_hidden(header: BatchHeader, batch: memoryview) -> bool:
    """Byte for byte. A mirror writes no other batches with such deltas."""
    if (
        header.length != HEADER_SIZE - LENGTH_PREFIX + len(HIDDEN_RECORD) * header.record_count
        or header.magic != CURRENT_MAGIC
    ):
        return False
    plain = not header.attributes & (CODEC_MASK | CONTROL)
    return plain and header.record_count > 0 and batch[HEADER_SIZE:] == HIDDEN_RECORD * header.record_count
