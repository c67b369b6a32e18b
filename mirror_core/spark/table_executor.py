"""Executor side of what reads records into tables: salvage, and DataFrames of records. Must not import Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from mirror_core.parity.record_scan import RecordScan, read_record_scan
from mirror_core.parity.salvage import SalvageTask, read_record_batches

PAYLOAD_COLUMN: Final = "payload"


def to_row(payload: bytes) -> tuple[bytes]:
    return (payload,)


def read_salvage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for payload in _iter_payloads(batches):
        yield from read_record_batches(msgspec.json.decode(payload, type=SalvageTask))


def read_table(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for payload in _iter_payloads(batches):
        yield from read_table_payload(payload)


def read_table_payload(payload: bytes) -> Iterator[pa.RecordBatch]:
    return read_record_scan(msgspec.json.decode(payload, type=RecordScan))


def _iter_payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        yield from batch.to_pydict()[PAYLOAD_COLUMN]
