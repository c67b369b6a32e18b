"""Seeding: an empty log is brought to where the source's begins, with records that stand for nothing and go at once.

A batch of them is built once and sent many times; it takes less than a byte an offset. They carry sequences like any
data, so seeding may be interrupted, repeated or done twice, and what is seeded is deleted as soon as it is there.
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
"""Offsets of one batch: some 166 KB compressed."""
SEEDS_AHEAD: Final = 4
"""Batches of one partition in flight; then they are deleted before the next ones are sent."""

_NO_TIME: Final = -1
"""Any other would be the newest of the segment that they begin, and lookups by time would look there for what comes
behind it. For that a broker that tidies up just then forgets the producer: the log end tells how far seeding is."""


def seeds(replicator: PartitionReplicator, producer_id: int, producer_epoch: int) -> Iterator[Ready]:
    """The next batches for a partition that is to be seeded and has nothing in flight."""
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
