"""The question and the answer of a parity check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mirror_core.model.names import ClusterName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRange:
    """Offsets of one partition to compare: [start, end)."""

    partition: Partition
    start: Offset
    end: Offset
    stopped_at: Offset | None = None
    """Mirroring has ended there (the LMO): what either log holds from there on is its own, and no difference."""
    compacted: bool = False
    """The topic is cleaned by key, on each cluster at its own times: a record may be on one side only, if something
    newer of its key has replaced it, or if it is a tombstone."""
    unkeyed_go: bool = False
    """Both clusters clean it so. Their cleaners take all records without a key, from before it was cleaned by key."""
    unseen: str = ""
    """Why nobody could say what there is to compare: nothing of it is compared, and that makes the answer
    indeterminate."""


class Verdict(StrEnum):
    PASSED = "passed"
    """All in scope compared equal up to a named offset per partition, and at least one record was compared."""
    FAILED = "failed"
    INDETERMINATE = "indeterminate"
    """Something could not be compared, or nothing was there to compare."""


ALTERED: Final = "altered"
"""The kind of a finding of a comparison with certificates: the copy does not hold what was copied."""
UNREADABLE: Final = "unreadable"
"""So begins the kind of what a log holds and nobody can read; it goes on with the cluster's name."""


def unreadable_on(cluster: ClusterName) -> str:
    """The kind of a finding."""
    return f"{UNREADABLE} on {cluster}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference."""

    partition: Partition
    offset: Offset | None
    kind: str
    """missing, extra, reordered, key, value, headers, timestamp, log start, log end; altered, by certificates."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityResult:
    """The answer, with its sample. `proven` is so whatever the user expects beside it."""

    verdict: Verdict
    records: int
    """Records compared."""
    chunks: int
    proven: Mapping[Partition, Offset] = field(default_factory=dict)
    """Next offset after the last compared equal, per partition."""
    sampled: Mapping[Partition, int] = field(default_factory=dict)
    """Records compared, per partition."""
    held_from: Mapping[Partition, Offset] = field(default_factory=dict)
    """Below it neither side holds an offset, per partition: its retention has removed them on both."""
    findings: tuple[Finding, ...] = ()
    damaged: tuple[Finding, ...] = ()
    """Where a log holds what is no record batch, or not the one that was written; the reasons say so, too."""
    reasons: tuple[str, ...] = ()
    """Why it is indeterminate."""
    in_doubt: frozenset[Partition] = frozenset()
    """Of which something could not be compared."""
    unlike: frozenset[Partition] = frozenset()
    """Of which something was compared and is not equal, or may not be; or is damaged."""
    unmet: tuple[str, ...] = ()
    """What the user expects beyond all of this, and was not so, or is not known."""
    report: str = ""
    """Path of the static report; empty when none was asked for."""
    seconds: float = 0.0


class Fate(StrEnum):
    """What the other cluster holds of a record of a divergent tail."""

    MISSING = "missing"
    """No record of its key since the logs parted."""
    THERE = "there too"
    """A record of its key and its value."""
    CONFLICTING = "conflicting"
    """Records of its key, written since the logs parted, none of them with its value."""
    UNKEYED = "without a key"
    """It has no key to look for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One partition of a salvage."""

    wanted: ParityRange
    log_start: Offset
    """First offset that the log still had; what was asked for below it was gone already."""
    records: int
    fates: Mapping[str, int] = field(default_factory=dict)
    """Records by what the other cluster has of them; empty where none was asked."""
    first: Mapping[str, tuple[Offset, ...]] = field(default_factory=dict)
    """The first offsets of each fate."""
