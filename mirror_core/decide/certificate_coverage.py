"""How much of what a run promoted its certificates cover.

Without the source there is nothing else to compare with. Certificates are compared with the destination after
promotion: applications write already, so a finding cannot stop the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.parity_result import ParityRow
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict
from mirror_core.model.run import StepEvidence, StepRecord

NONE_TEXT: Final = "none"
UNKNOWN_TEXT: Final = "unknown"
VERDICT_KEY: Final = "certificates"
CERTIFIED_KEY: Final = "proved_by_certificates"
UNCERTIFIED_KEY: Final = "not_proved"
REASONS_KEY: Final = "not_proved_because"
MISMATCHES_KEY: Final = "not_as_copied"
FOLDER_KEY: Final = "certificates_read_from"
REPORT_KEY: Final = "certificates_report"
COMMAND_KEY: Final = "to_prove_more"
MAX_LISTED_REASONS: Final = 5

_NO_REASONS: Final[Mapping[Partition, str]] = MappingProxyType({})

OffsetSpans = tuple[tuple[Offset, Offset], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCoverage:
    held_offsets: int
    certified_offsets: int
    uncertified: OffsetSpans


def compute_coverage(
    logs: Mapping[Partition, tuple[Offset, Offset]], rows: Iterable[ParityRow]
) -> dict[Partition, PartitionCoverage]:
    equal: dict[Partition, list[tuple[Offset, Offset]]] = {}
    for row in rows:
        if row.chunk >= 0 and row.equal:
            equal.setdefault(row.partition, []).append((row.start, row.end))
    return {
        p: _compute_partition_coverage(start, end, sorted(equal.get(p, ()))) for p, (start, end) in sorted(logs.items())
    }


def _compute_partition_coverage(
    start: Offset, end: Offset, equal: Sequence[tuple[Offset, Offset]]
) -> PartitionCoverage:
    uncertified, reached = list[tuple[Offset, Offset]](), start
    for first, next_offset in equal:
        if reached < min(first, end):
            uncertified.append((reached, min(first, end)))
        reached = max(reached, min(next_offset, end))
    if reached < end:
        uncertified.append((reached, end))
    held_offsets = max(0, end - start)
    return PartitionCoverage(
        held_offsets=held_offsets,
        certified_offsets=held_offsets - sum(next_offset - first for first, next_offset in uncertified),
        uncertified=tuple(uncertified),
    )


def build_coverage_evidence(
    coverage: Mapping[Partition, PartitionCoverage],
    result: ParityResult,
    *,
    altered: Sequence[str] = (),
    left_out: Mapping[Partition, str] = _NO_REASONS,
    without_lmo: Sequence[Partition] = (),
) -> StepEvidence:
    """`altered`: certificate files that were changed; `left_out`: not compared, and why; `without_lmo`:
    partitions without a last mirrored offset, where it is unknown which records were copied.
    """
    held_offsets, certified_offsets = (
        sum(part.held_offsets for part in coverage.values()),
        sum(part.certified_offsets for part in coverage.values()),
    )
    incomplete = {p: part for p, part in coverage.items() if part.uncertified}
    # One that is whole in what was compared is no proof of a mirror of which something was not.
    uncompared = sorted(left_out.keys() - coverage.keys())
    passed = (
        result.verdict is ParityVerdict.PASSED
        and held_offsets > 0
        and not incomplete
        and not uncompared
        and not without_lmo
    )
    failed = result.verdict is ParityVerdict.FAILED
    verdict = ParityVerdict.FAILED if failed else ParityVerdict.PASSED if passed else ParityVerdict.INDETERMINATE
    return {
        VERDICT_KEY: verdict.value,
        CERTIFIED_KEY: f"{certified_offsets} of {held_offsets} offsets",
        UNCERTIFIED_KEY: join_limited([*_format_uncertified(incomplete), *_format_unseen(uncompared, without_lmo)])
        or NONE_TEXT,
        REASONS_KEY: NONE_TEXT
        if passed
        else _join_first([*result.reasons, *(f"{p} {reason}" for p, reason in left_out.items())]) or NONE_TEXT,
        MISMATCHES_KEY: _join_first(_format_mismatches(result, altered)) or NONE_TEXT,
    }


def build_unknown_evidence(reason: str) -> StepEvidence:
    return {
        VERDICT_KEY: ParityVerdict.INDETERMINATE.value,
        CERTIFIED_KEY: UNKNOWN_TEXT,
        UNCERTIFIED_KEY: UNKNOWN_TEXT,
        REASONS_KEY: reason,
        MISMATCHES_KEY: NONE_TEXT,
    }


def is_as_copied(steps: Iterable[StepRecord]) -> bool:
    return read_coverage_evidence(steps).get(MISMATCHES_KEY, NONE_TEXT) == NONE_TEXT


def _format_uncertified(coverage: Mapping[Partition, PartitionCoverage]) -> Iterator[str]:
    for partition, part in coverage.items():
        spans = join_limited(f"[{first}, {next_offset})" for first, next_offset in part.uncertified)
        yield f"{partition}: {part.held_offsets - part.certified_offsets} of {part.held_offsets} offsets, {spans}"


def _format_unseen(uncompared: Iterable[Partition], without_lmo: Iterable[Partition]) -> Iterator[str]:
    yield from (f"{partition}: all of it" for partition in uncompared)
    yield from (f"{partition}: its last mirrored offset is not known" for partition in without_lmo)


def _format_mismatches(result: ParityResult, altered: Sequence[str]) -> Iterator[str]:
    yield from (f"{finding.partition}: {finding.detail}" for finding in result.findings)
    yield from (f"certificate {path} is not as it was written" for path in altered)


def _join_first(lines: Iterable[str]) -> str:
    listed = list(lines)
    more_text = f"; and {len(listed) - MAX_LISTED_REASONS} more" if len(listed) > MAX_LISTED_REASONS else ""
    return "; ".join(listed[:MAX_LISTED_REASONS]) + more_text


def is_fully_certified(evidence: StepEvidence) -> bool:
    return evidence.get(VERDICT_KEY) == ParityVerdict.PASSED


def read_coverage_evidence(steps: Iterable[StepRecord]) -> StepEvidence:
    return next((s.evidence for s in steps if s.step == "report" and VERDICT_KEY in s.evidence), {})


class CopyMismatch(MirrorError):
    """A run is done, and what it promoted differs from its certificates."""


def check_as_copied(*runs: tuple[str, Iterable[StepRecord]]) -> None:
    """NotAsCopied if a run's report shows a mismatch: it must not count as success."""
    evidence_by_run = {run: read_coverage_evidence(steps) for run, steps in runs}
    mismatching = {
        run: evidence
        for run, evidence in evidence_by_run.items()
        if evidence.get(MISMATCHES_KEY, NONE_TEXT) != NONE_TEXT
    }
    if mismatching:
        details = (
            f"run {run}: {evidence[MISMATCHES_KEY]}. All differences: {evidence.get(REPORT_KEY)}"
            for run, evidence in mismatching.items()
        )
        raise CopyMismatch(
            f"{'; '.join(details)}. The run is done and applications write, but what was promoted is not what its "
            "certificates say. Find out who could write there, or to the certificates, before you trust these records"
        )


def format_coverage(evidence: StepEvidence) -> str:
    if not evidence:
        return UNKNOWN_TEXT
    certified_text, uncertified_text, reasons_text = (
        evidence.get(name, UNKNOWN_TEXT) for name in (CERTIFIED_KEY, UNCERTIFIED_KEY, REASONS_KEY)
    )
    mismatches = evidence.get(MISMATCHES_KEY, NONE_TEXT)
    if mismatches != NONE_TEXT:
        return f"NOT AS IT WAS COPIED: {mismatches}. {certified_text} are as they were copied"
    if is_fully_certified(evidence):
        return f"{certified_text} are as they were copied"
    if certified_text == UNKNOWN_TEXT:
        return f"{UNKNOWN_TEXT}: {reasons_text}"
    return f"{certified_text} are as they were copied; not proved: {uncertified_text} ({reasons_text})"
