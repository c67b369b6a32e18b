"""The parity gate: what comparisons found, and what is left to compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.audit_log_check import BOTH_EMPTY_VERDICT
from mirror_core.decide.copy_estimate import count_compared, format_progress
from mirror_core.decide.parity_result import NOTHING_HELD, NOTHING_REASONS
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points
from mirror_core.kafka.log_snapshot import fetch_log_sizes
from mirror_core.model.errors import Indeterminate, MirrorError, Refused, RemoteFault
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult, ParityVerdict
from mirror_core.model.text import format_count
from mirror_core.model.timing import TIMEOUTS
from mirror_core.parity.check import OnParityProgress
from mirror_core.state.mirror_link import MirrorLink

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
            f"{description} failed, {format_count(len(result.findings), 'difference')}: {findings_text}. Report:"
            f" {result.report or 'none'}"
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
        print_line(f"prove: {format_count(offsets_left, 'offset')} to compare")
    began_s = reported = time.monotonic()

    def on_result(result: ParityResult) -> None:
        nonlocal reported
        on_progress(result)
        current_s = time.monotonic()
        if current_s - reported >= REPORT_INTERVAL_S:
            reported = current_s
            print_line(f"prove: {format_progress(*count_compared(ranges, result.verified_ends), current_s - began_s)}")

    return on_result


LITTLE_OFFSETS: Final = 20_000
LITTLE_BYTES: Final = 64_000_000
"""Another round would gain nothing."""
SPARK_MIN_OFFSETS: Final = 10_000_000
MAX_ROUNDS: Final = 20
MAX_REMAINING_RATIO: Final = 0.7
"""A round that leaves more than this part is the last."""
ASSUMED_OFFSETS_PER_S: Final = 1_000.0


@dataclass(frozen=True, slots=True)
class RemainingCompare:
    """Source offsets not yet compared equal. Estimates err high."""

    offsets: int
    size_bytes: int | None
    """By each log's mean."""
    seconds: float

    @property
    def is_little(self) -> bool:
        return self.offsets <= LITTLE_OFFSETS and (self.size_bytes or 0) <= LITTLE_BYTES

    def __str__(self) -> str:
        size = "" if self.size_bytes is None else f", about {self.size_bytes / 1e6:,.1f} MB"
        return f"{self.offsets:,} offsets{size}, about {self.seconds:.1f} s"


def estimate_remaining(
    link: MirrorLink, partitions: Iterable[Partition], proven: Mapping[Partition, Offset], per_second: float | None
) -> RemainingCompare:
    """`proven`: next offset after the last one compared."""
    partition_list = list(partitions)
    with ClusterClient(link.source, timeout_s=TIMEOUTS.plan_response_s) as source:
        points = list_offset_points(source, partition_list, [OffsetPoint.START, OffsetPoint.LOG_END])
        starts, ends = points.values()
        offsets_left = {p: ends[p] - max(starts[p], proven.get(p, Offset(0))) for p in partition_list}
        offsets_left = {p: offsets for p, offsets in offsets_left.items() if offsets > 0}
        try:
            sizes = fetch_log_sizes(source, offsets_left)
        except RemoteFault:  # a hanging broker may lead nothing of ours
            sizes = {}
    offsets = sum(offsets_left.values())
    size = None
    if sizes.keys() >= offsets_left.keys():
        size = round(sum(sizes[p] * count / (ends[p] - starts[p]) for p, count in offsets_left.items()))
    return RemainingCompare(offsets, size, offsets / (per_second or ASSUMED_OFFSETS_PER_S))


def refuse_above_limit(remaining: RemainingCompare, limit_s: float | None, run_id: str, mirror: str) -> None:
    if limit_s is None or remaining.seconds <= limit_s:
        return
    raise Refused(
        f"run {run_id}: fence",
        [
            (
                f"the gate would still have to read {remaining}: more than the {limit_s:g} s that were allowed"
                " (--gate-limit, gate_limit_s). Nothing is fenced, and applications go on"
            ),
            (
                f"`mirrorbook failover resume {mirror} --gate-limit {limit_s:g}` compares what came since, and looks"
                " again (without the option there is no limit); a data plane that lags has to catch up first; or allow"
                " more, or abort the run"
            ),
        ],
        reason_code="gate_too_long",
    )
