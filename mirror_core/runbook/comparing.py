"""The parity gate: what a run's comparisons found, and what is left to compare behind the fence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.evidence import BOTH_EMPTY
from mirror_core.decide.headway import compared, headway
from mirror_core.decide.parity import NOTHING, NOTHING_HELD
from mirror_core.model.errors import Indeterminate, MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange, ParityResult, Verdict
from mirror_core.parity.so_far import SoFar

TELL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    verdict: str
    ends: Mapping[Partition, Offset]
    """Next offset after the last one compared equal, by this and earlier rounds."""
    records: int
    records_before: int
    chunks: int
    report: str
    per_second: float | None
    """Offsets, startup included. None: too fast to measure."""


class GateClosed(MirrorError):
    """The two sides differ, so nothing is promoted. The message has the findings."""


def open_gate(result: ParityResult, what: str, *, earlier_records: int) -> str:
    """Returns the verdict if equal.

    An empty rest passes after an earlier comparison of records. So do empty logs with equal start and end offsets.
    """
    if result.verdict is Verdict.PASSED:
        return Verdict.PASSED
    if result.findings or result.verdict is Verdict.FAILED:
        shown = "; ".join(f"{f.partition} offset {f.offset}: {f.kind}: {f.detail}" for f in result.findings[:10])
        raise GateClosed(
            f"{what} failed, {len(result.findings)} difference(s): {shown}. Report: {result.report or 'none'}"
        )
    if earlier_records and set(result.reasons) <= NOTHING:
        return Verdict.PASSED
    if result.reasons == (NOTHING_HELD,):
        return BOTH_EMPTY
    raise Indeterminate(f"{what} is indeterminate, so the run does not go on: {'; '.join(result.reasons[:10])}")


def telling(ranges: Sequence[ParityRange], so_far: SoFar, say: Callable[[str], None]) -> SoFar:
    if left := compared(ranges, {})[1]:
        say(f"prove: {left:,} offset(s) are to be compared")
    began = told = time.monotonic()

    def both(result: ParityResult) -> None:
        nonlocal told
        so_far(result)
        now = time.monotonic()
        if now - told >= TELL_S:
            told = now
            say(f"prove: {headway(*compared(ranges, result.proven), now - began)}")

    return both
