"""How much of what a run promoted its certificates cover.

They are compared after promotion: applications write already, so a finding cannot stop the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.parity_result import ParityRow
from mirror_core.model.errors import MirrorError
from mirror_core.model.figures import UNKNOWN_TEXT, FigureKey, format_share, format_value, limit_names, list_values
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict
from mirror_core.model.run import StepEvidence, StepRecord

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
    """`altered`: changed certificate files; `left_out`: not compared, and why; `without_lmo`: what was copied is
    unknown.
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
        FigureKey.CERTIFICATES_VERDICT: verdict.value,
        FigureKey.CERTIFIED_OFFSETS: certified_offsets,
        FigureKey.CERTIFIABLE_OFFSETS: held_offsets,
        FigureKey.NOT_PROVED: limit_names([*_format_uncertified(incomplete), *_format_unseen(uncompared, without_lmo)]),
        FigureKey.NOT_PROVED_BECAUSE: ()
        if passed
        else limit_names([*result.reasons, *(f"{p} {reason}" for p, reason in left_out.items())], MAX_LISTED_REASONS),
        FigureKey.NOT_AS_COPIED: limit_names(_format_mismatches(result, altered), MAX_LISTED_REASONS),
    }


def build_unknown_evidence(reason: str) -> StepEvidence:
    return {
        FigureKey.CERTIFICATES_VERDICT: ParityVerdict.INDETERMINATE.value,
        FigureKey.CERTIFIED_OFFSETS: None,
        FigureKey.NOT_PROVED: None,
        FigureKey.NOT_PROVED_BECAUSE: (reason,),
        FigureKey.NOT_AS_COPIED: (),
    }


def is_as_copied(steps: Iterable[StepRecord]) -> bool:
    return not list_values(read_coverage_evidence(steps), FigureKey.NOT_AS_COPIED)


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


def is_fully_certified(evidence: StepEvidence) -> bool:
    return evidence.get(FigureKey.CERTIFICATES_VERDICT) == ParityVerdict.PASSED


def read_coverage_evidence(steps: Iterable[StepRecord]) -> StepEvidence:
    return next((s.evidence for s in steps if s.step == "report" and FigureKey.CERTIFICATES_VERDICT in s.evidence), {})


class CopyMismatch(MirrorError):
    """A run is done, and what it promoted differs from its certificates."""


def check_as_copied(*runs: tuple[str, Iterable[StepRecord]]) -> None:
    """Raises CopyMismatch: such a run must not count as success."""
    evidence_by_run = {run: read_coverage_evidence(steps) for run, steps in runs}
    mismatching = {
        run: mismatches
        for run, evidence in evidence_by_run.items()
        if (mismatches := list_values(evidence, FigureKey.NOT_AS_COPIED))
    }
    if mismatching:
        details = (
            f"run {run}: {'; '.join(mismatches)}. All differences:"
            f" {evidence_by_run[run].get(FigureKey.CERTIFICATES_REPORT)}"
            for run, mismatches in mismatching.items()
        )
        raise CopyMismatch(
            f"{'; '.join(details)}. The run is done and applications write, but what was promoted is not what its "
            "certificates say. Find out who could write there, or to the certificates, before you trust these records"
        )


def format_certified(evidence: StepEvidence) -> str:
    return format_share(evidence, FigureKey.CERTIFIED_OFFSETS, FigureKey.CERTIFIABLE_OFFSETS)


def format_coverage(evidence: StepEvidence) -> str:
    summary = summarize_coverage(evidence)
    if not has_uncertified(evidence):
        return summary
    uncertified_text, reasons_text = (
        format_value(key, evidence.get(key)) for key in (FigureKey.NOT_PROVED, FigureKey.NOT_PROVED_BECAUSE)
    )
    return f"{summary}: {uncertified_text} ({reasons_text})"


def summarize_coverage(evidence: StepEvidence) -> str:
    """Without names of what is not proved, which may be long."""
    if not evidence:
        return UNKNOWN_TEXT
    certified_text = format_certified(evidence)
    if mismatches := list_values(evidence, FigureKey.NOT_AS_COPIED):
        return f"NOT AS IT WAS COPIED: {'; '.join(mismatches)}. {certified_text} are as they were copied"
    if has_uncertified(evidence):
        return f"{certified_text} are as they were copied, the others are not proved"
    if is_fully_certified(evidence):
        return f"{certified_text} are as they were copied"
    return f"{UNKNOWN_TEXT}: {format_value(FigureKey.NOT_PROVED_BECAUSE, evidence.get(FigureKey.NOT_PROVED_BECAUSE))}"


def has_uncertified(evidence: StepEvidence) -> bool:
    """And nothing that is known to be wrong."""
    is_counted = evidence.get(FigureKey.CERTIFIED_OFFSETS) is not None
    return is_counted and not is_fully_certified(evidence) and not list_values(evidence, FigureKey.NOT_AS_COPIED)
