"""Seeds an empty log up to the source's log start with placeholder records, which are deleted at once.

A batch is built once and sent many times; it takes less than a byte per offset. Seeds carry sequences like data, so
seeding may be interrupted, repeated or done twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from mirror_core.copy.outbox import Ready, Sent
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.wire.batch import readdress
from mirror_core.wire.encode import NOTHING, batch_of, record
from mirror_core.wire.records import Codec

SEED_OFFSETS: Final = 200_000
SEEDS_AHEAD: Final = 4

_NO_TIME: Final = -1
"""Any other time would be the newest of the segment, and lookups by time would find it instead of
later records. The price: a broker that compacts just then forgets the producer; the log end shows how far seeding is.
"""


def seeds(replicator: PartitionReplicator, producer_id: int, producer_epoch: int) -> Iterator[Ready]:
    for _ in range(SEEDS_AHEAD if replicator.place.proven else 1):
        base, sequence, records = replicator.place.take_seeds(SEED_OFFSETS)
        if records <= 0:
            return
        batch = memoryview(bytearray(_batch(records)))
        readdress(batch, producer_id, producer_epoch, sequence)
        yield Sent(base, records, len(batch), None), batch


@lru_cache(maxsize=2)
def _batch(records: int) -> bytes:
    plain = b"".join(record(0, delta, NOTHING) for delta in range(records))
    return bytes(batch_of(plain, records, Codec.ZSTD, _NO_TIME, _NO_TIME))
