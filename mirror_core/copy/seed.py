"""Seeds an empty log up to the source's log start with placeholder records, which are deleted at once.

A batch is built once and sent many times; it takes less than a byte per offset. Seeds carry sequences like data, so
seeding may be interrupted, repeated or done twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from mirror_core.copy.outbox import ReadyBatch, SentBatch
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.wire.batch import readdress
from mirror_core.wire.encode import EMPTY_CONTENT, build_batch, encode_record
from mirror_core.wire.records import Codec

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
