"""The parity gate: what a run's comparisons found, and what is left to compare behind the fence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.evidence import BOTH_EMPTY_VERDICT
from mirror_core.decide.headway import count_compared, format_progress
from mirror_core.decide.parity import NOTHING_HELD, NOTHING_REASONS
from mirror_core.model.errors import Indeterminate, MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange, ParityResult, ParityVerdict
from mirror_core.parity.so_far import OnParityProgress

REPORT_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRound:
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


def check_gate(result: ParityResult, description: str, *, earlier_records: int) -> str:
    """Returns the verdict if equal.

    An empty rest passes after an earlier comparison of records. So do empty logs with equal start and end offsets.
    """
    if result.verdict is ParityVerdict.PASSED:
        return ParityVerdict.PASSED
    if result.findings or result.verdict is ParityVerdict.FAILED:
        findings_text = "; ".join(
            f"{f.partition} offset {f.offset}: {f.kind}: {f.detail}" for f in result.findings[:10]
        )
        raise GateClosed(
            f"{description} failed, {len(result.findings)} difference(s): {findings_text}. Report: {result.report or 'none'}"
        )
    if earlier_records and set(result.reasons) <= NOTHING_REASONS:
        return ParityVerdict.PASSED
    if result.reasons == (NOTHING_HELD,):
        return BOTH_EMPTY_VERDICT
    raise Indeterminate(f"{description} is indeterminate, so the run does not go on: {'; '.join(result.reasons[:10])}")


def report_compare_progress(
    ranges: Sequence[ParityRange], on_progress: OnParityProgress, print_line: Callable[[str], None]
) -> OnParityProgress:
    if offsets_left := count_compared(ranges, {})[1]:
        print_line(f"prove: {offsets_left:,} offset(s) are to be compared")
    began_s = reported = time.monotonic()

    def on_result(result: ParityResult) -> None:
        nonlocal reported
        on_progress(result)
        current_s = time.monotonic()
        if current_s - reported >= REPORT_INTERVAL_S:
            reported = current_s
            print_line(f"prove: {format_progress(*count_compared(ranges, result.verified_ends), current_s - began_s)}")

    return on_result
