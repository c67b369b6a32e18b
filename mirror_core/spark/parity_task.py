"""What a Spark executor does for one parity task. No Spark in here: workers import this module, and must start fast."""

from __future__ import annotations

import msgspec

from mirror_core.decide.parity import Row
from mirror_core.parity.certified import CertifiedTask, verify
from mirror_core.parity.compare import CompareTask, compare


def compare_json(payload: bytes) -> bytes:
    """Run one `CompareTask`; the answer are its rows."""
    return msgspec.json.encode(compare(msgspec.json.decode(payload, type=CompareTask)))


def verify_json(payload: bytes) -> bytes:
    """Run one `CertifiedTask`; the answer are its rows."""
    return msgspec.json.encode(verify(msgspec.json.decode(payload, type=CertifiedTask)))


def rows_of(result: bytes) -> tuple[Row, ...]:
    """The rows in a task's answer."""
    return msgspec.json.decode(result, type=tuple[Row, ...])
