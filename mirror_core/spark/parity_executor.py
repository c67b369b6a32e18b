"""Executor side of parity. Workers import it, so it must not import Spark."""

from __future__ import annotations

import msgspec

from mirror_core.decide.parity_result import ParityRow
from mirror_core.parity.certificate_check import CertificateTask, verify_task
from mirror_core.parity.compare import CompareTask, compare_task


def run_compare_task(payload: bytes) -> bytes:
    return msgspec.json.encode(compare_task(msgspec.json.decode(payload, type=CompareTask)))


def run_certified_task(payload: bytes) -> bytes:
    return msgspec.json.encode(verify_task(msgspec.json.decode(payload, type=CertificateTask)))


def parse_parity_rows(result: bytes) -> tuple[ParityRow, ...]:
    return msgspec.json.decode(result, type=tuple[ParityRow, ...])
