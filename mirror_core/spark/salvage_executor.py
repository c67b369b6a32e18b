"""Executor side of salvage. Must not import Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from mirror_core.parity.salvage import SalvageTask, read_record_batches

PAYLOAD_COLUMN: Final = "payload"


def to_row(payload: bytes) -> tuple[bytes]:
    return (payload,)


def read_task_records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for payload in batch.to_pydict()[PAYLOAD_COLUMN]:
            yield from read_record_batches(msgspec.json.decode(payload, type=SalvageTask))
