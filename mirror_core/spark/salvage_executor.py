"""Executor side of salvage. Must not import Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from mirror_core.parity.salvage import SalvageTask, read_record_batches


def read_task_records(payloads: Sequence[bytes], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.to_pydict()["id"]:
            yield from read_record_batches(msgspec.json.decode(payloads[number], type=SalvageTask))
