"""Parity rows, shared by tests."""

from __future__ import annotations

from typing import Any

from mirror_core.decide.parity_result import (
    LEVEL_DIGEST,
    ParityLogBounds,
    ParityRow,
    compare_log_bounds,
)
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, ParityRange

SIZE = 10


def partition(number: int) -> Partition:
    return Partition("orders", number)


def wanted(number: int, end: int) -> ParityRange:
    return ParityRange(partition=partition(number), start=Offset(0), end=Offset(end))


def chunk(number: int, at: int, **more: Any) -> ParityRow:
    digest = f"{number * 1000 + at:032x}"
    facts: dict[str, Any] = {"level": LEVEL_DIGEST, "src_count": SIZE, "dst_count": SIZE, "src_digest": digest, **more}
    return ParityRow(
        partition=partition(number),
        chunk=at,
        start=Offset(at * SIZE),
        end=Offset((at + 1) * SIZE),
        **{"dst_digest": facts["src_digest"], **facts},
    )


def ends(number: int, chunks: int) -> list[ParityRow]:
    both = ParityLogBounds(start=Offset(0), end=Offset(chunks * SIZE))
    return list(compare_log_bounds(wanted(number, chunks * SIZE), both, both)[0])


def finding(number: int, offset: int) -> ParityFinding:
    return ParityFinding(partition=partition(number), offset=Offset(offset), kind="value", detail=f"{number} {offset}")
