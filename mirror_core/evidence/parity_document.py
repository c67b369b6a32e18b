"""The evidence of a parity check: JSON, Parquet and one HTML page.

Pages have sizes and digests, never record contents.
"""

from __future__ import annotations

import msgspec

from mirror_core.model.documents import JsonDocument
from mirror_core.model.parity import ParityResult, ParityVerdict


class ProvenOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Compared equal up to here."""

    topic: str
    partition: int
    offset: int
    """Next offset after the last compared equal."""


class FindingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One difference."""

    topic: str
    partition: int
    offset: int | None
    kind: str
    """missing, extra, reordered, key, value, headers, timestamp, log start, log end."""
    detail: str


class ParityResultDocument(JsonDocument, frozen=True, kw_only=True):
    """Samples included. User expectations do not change `proven`."""

    verdict: ParityVerdict
    records: int
    """Compared."""
    chunks: int
    seconds: float
    proven: tuple[ProvenOffset, ...]
    findings: tuple[FindingDocument, ...]
    reasons: tuple[str, ...]
    """Why it is indeterminate."""
    unmet: tuple[str, ...]
    """User expectations that failed or are unknown."""
    report: str
    """Empty: none requested."""


def to_parity_document(result: ParityResult) -> ParityResultDocument:
    return ParityResultDocument(
        verdict=result.verdict,
        records=result.records,
        chunks=result.chunks,
        seconds=result.seconds,
        proven=tuple(
            ProvenOffset(topic=partition.topic, partition=partition.index, offset=offset)
            for partition, offset in sorted(result.verified_ends.items())
        ),
        findings=tuple(
            FindingDocument(
                topic=finding.partition.topic,
                partition=finding.partition.index,
                offset=finding.offset,
                kind=finding.kind,
                detail=finding.detail,
            )
            for finding in result.findings
        ),
        reasons=result.reasons,
        unmet=result.unmet_expectations,
        report=result.report,
    )
