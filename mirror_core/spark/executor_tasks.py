"""What executors run besides copying. Must not import Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from mirror_core.decide.parity_result import ParityRow
from mirror_core.parity.certificate_check import CertificateTask, verify_task
from mirror_core.parity.compare import CompareTask, compare_task
from mirror_core.parity.parity_table import build_lost_rows, compare_spans, parse_span_task
from mirror_core.parity.record_scan import RecordScan, read_record_scan
from mirror_core.parity.salvage import (
    SalvageTask,
    TailDigestScan,
    read_matched_records,
    read_record_batches,
    read_tail_digests,
)
from mirror_core.parity.salvage_replay import ReplayTask, count_selected, replay_batches

PAYLOAD_COLUMN: Final = "payload"


def to_row(payload: bytes) -> tuple[bytes]:
    return (payload,)


def read_salvage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for payload in iterate_payloads(batches):
        yield from read_record_batches(msgspec.json.decode(payload, type=SalvageTask))


def digest_tails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for payload in iterate_payloads(batches):
        yield from read_tail_digests(msgspec.json.decode(payload, type=TailDigestScan))


def read_matched_salvage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return read_matched_records(row for batch in batches for row in batch.to_pylist())


def count_saved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for count in count_selected(batches):
        yield _to_payload(msgspec.json.encode(count))


def replay_saved(task: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for report in replay_batches(msgspec.json.decode(task, type=ReplayTask), batches):
        yield _to_payload(msgspec.json.encode(report))


def _to_payload(payload: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({PAYLOAD_COLUMN: pa.array([payload], type=pa.binary())})


def compare_batches(last_attempt: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """From attempt `last_attempt` on a task compares nothing, as its workers died before. 0: no such limit."""
    from pyspark import TaskContext  # late: workers have imported it

    context = TaskContext.get()
    attempt = context.attemptNumber() if context else 0
    for payload in iterate_payloads(batches):
        task = parse_span_task(payload)
        if not 0 < last_attempt <= attempt:
            yield compare_spans(task)
        elif len(task.spans) == 1:
            yield build_lost_rows(task, f"Spark gave up: its worker ended {attempt} times before it had answered")


def read_table(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for payload in iterate_payloads(batches):
        yield from read_table_payload(payload)


def read_table_payload(payload: bytes) -> Iterator[pa.RecordBatch]:
    return read_record_scan(msgspec.json.decode(payload, type=RecordScan))


def iterate_payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        yield from batch.to_pydict()[PAYLOAD_COLUMN]


def run_compare_task(payload: bytes) -> bytes:
    return msgspec.json.encode(compare_task(msgspec.json.decode(payload, type=CompareTask)))


def run_certified_task(payload: bytes) -> bytes:
    return msgspec.json.encode(verify_task(msgspec.json.decode(payload, type=CertificateTask)))


def parse_parity_rows(result: bytes) -> tuple[ParityRow, ...]:
    return msgspec.json.decode(result, type=tuple[ParityRow, ...])
