"""Source batches, shared by tests."""

from __future__ import annotations

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from mirror_core.model.names import Partition
from mirror_core.wire.fetch import FetchedPartition

PARTITION = Partition("orders", 0)


def batch(base: int, records: int, **options: int) -> bytes:
    """A batch of magic 2 at this offset; `producer_id` of a transaction, if any."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int("producer_id" in options),
        producer_id=options.get("producer_id", -1),
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for number in range(records):
        assert builder.append(number, timestamp=1_000, key=b"k%d" % number, value=b"v", headers=[])
    return base.to_bytes(8, "big") + bytes(builder.build())[8:]


def fetched(*parts: bytes, stable: int = 1_000, aborted: tuple[tuple[int, int], ...] = ()) -> FetchedPartition:
    return FetchedPartition(PARTITION, 0, stable, stable, 0, aborted, memoryview(bytearray(b"".join(parts))))
