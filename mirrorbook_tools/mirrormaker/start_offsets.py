"""Where a reader of MirrorMaker's copy begins in the copy that has the source's offsets.

Records of both are compared by content, in order, from a place that is the same in both. The new copy's position moves
on only over a record that equals one of the old copy below the reader's offset: so whatever is skipped has been read.
What has no pair is read again, never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from typing import Final

from mirror_core.model.findings import Finding
from mirror_core.model.names import Offset

MAX_AHEAD_RECORDS: Final = 1_000
"""Behind the reader's place."""
MAX_COMPARED_RECORDS: Final = 500_000
"""In one partition, for one group. MirrorMaker tells a place every hundred records."""


class StartCertainty(StrEnum):
    EXACT = "exact"
    """All before it was read, and nothing behind it."""
    CLAMPED = "clamped"
    """Earlier than the reader was: nothing is skipped, some is read again."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ComparedRecord:
    offset: int
    content: bytes
    """Digest of what both copies have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOffset:
    certainty: StartCertainty
    offset: Offset | None
    """In the new copy: next to be read."""
    repeats: int | None
    """Records that the reader gets again, at most."""
    reason: Finding | None
    """Why it is not exact."""


def make_unknown(reason: Finding) -> StartOffset:
    return StartOffset(certainty=StartCertainty.UNKNOWN, offset=None, repeats=None, reason=reason)


def find_start_offset(
    old_copy: Iterator[ComparedRecord], new_copy: Iterator[ComparedRecord], committed: int, begin: Offset, subject: str
) -> StartOffset:
    """Both begin at the same record. `committed`: in the old copy, next to be read. `begin`: in the new copy.

    `subject`: the new copy's partition.
    """
    start, paired = begin, set[bytes]()
    pending, foreign = set[bytes](), set[bytes]()
    """Read in the old copy without a pair, since the last pair and before it: aborted records have none."""
    upcoming = next(new_copy, None)
    for count, record in enumerate(old_copy):
        if count >= MAX_COMPARED_RECORDS:
            return make_unknown(Finding("mm2_too_far", subject, count=count))
        if record.offset >= committed:
            old_copy = chain((record,), old_copy)
            break
        if upcoming is not None and record.content == upcoming.content:
            paired.add(record.content)
            foreign |= pending
            pending.clear()
            start, upcoming = Offset(upcoming.offset + 1), next(new_copy, None)
        elif record.content not in paired:  # else MirrorMaker has copied it twice
            pending.add(record.content)
    ahead = {record.content for record in islice(old_copy, MAX_AHEAD_RECORDS)}
    has_same_next = upcoming is not None and upcoming.content in ahead
    # What is due in the new copy comes behind `pending` in the old one, so nothing of that can follow.
    may_follow = set[bytes]() if has_same_next else pending
    repeats = _count_repeats(upcoming, new_copy, pending | foreign, may_follow)
    if not repeats and (has_same_next or not ahead):
        return StartOffset(certainty=StartCertainty.EXACT, offset=start, repeats=0, reason=None)
    reason = (
        Finding("mm2_record_differs", subject, offset=upcoming.offset)
        if upcoming
        else Finding("mm2_not_copied_yet", subject, offset=start)
    )
    return StartOffset(certainty=StartCertainty.CLAMPED, offset=start, repeats=repeats, reason=reason)


def _count_repeats(
    upcoming: ComparedRecord | None, new_copy: Iterator[ComparedRecord], read: set[bytes], may_follow: set[bytes]
) -> int:
    """Records of the new copy that were `read` in the old one, and those that `may_follow` when more is copied."""
    if not read:
        return 0
    limit = len(read) + MAX_AHEAD_RECORDS
    rest = [record.content for record in islice(chain((upcoming,) if upcoming else (), new_copy), limit)]
    repeats = sum(content in read for content in rest)
    return repeats if len(rest) == limit else repeats + len(may_follow.difference(rest))
