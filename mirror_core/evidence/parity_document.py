"""The evidence of a parity check: JSON, Parquet and one HTML page.

Pages have sizes and digests, never record contents.
"""

from __future__ import annotations

import msgspec

from mirror_core.model.documents import Document
from mirror_core.model.parity import ParityResult, Verdict


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


class ResultDocument(Document, frozen=True, kw_only=True):
    """Samples included. User expectations do not change `proven`."""

    verdict: Verdict
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


def result_document(result: ParityResult) -> ResultDocument:
    return ResultDocument(
        verdict=result.verdict,
        records=result.records,
        chunks=result.chunks,
        seconds=result.seconds,
        proven=tuple(
            ProvenOffset(topic=partition.topic, partition=partition.index, offset=offset)
            for partition, offset in sorted(result.proven.items())
        ),
        findings=tuple(
            FindingDocument(
                topic=found.partition.topic,
                partition=found.partition.index,
                offset=found.offset,
                kind=found.kind,
                detail=found.detail,
            )
            for found in result.findings
        ),
        reasons=result.reasons,
        unmet=result.unmet,
        report=result.report,
    )
