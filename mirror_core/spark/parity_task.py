"""Executor side of parity. Workers import it, so it must not import Spark."""

from __future__ import annotations

import msgspec

from mirror_core.decide.parity import Row
from mirror_core.parity.certified import CertifiedTask, verify
from mirror_core.parity.compare import CompareTask, compare


def compare_json(payload: bytes) -> bytes:
    return msgspec.json.encode(compare(msgspec.json.decode(payload, type=CompareTask)))


def verify_json(payload: bytes) -> bytes:
    return msgspec.json.encode(verify(msgspec.json.decode(payload, type=CertifiedTask)))


def rows_of(result: bytes) -> tuple[Row, ...]:
    return msgspec.json.decode(result, type=tuple[Row, ...])
