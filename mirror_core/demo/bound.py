"""What the plan says may be lost, and which of the orders that are missing on west it covers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from mirror_core.demo.logs import Entry, Event, value_of
from mirror_core.model.errors import Indeterminate

LOOK_ROUNDED_MS: Final = 50
"""A plan tells the age of the last look at the source in tenths of a second."""
_WORDS: Final = re.compile(
    r"at least ([\d,]+) offset\(s\), and whatever was acknowledged "
    r"in the ([\d.]+) s since the source was last looked at(?:; topics .*)?"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """The loss that a plan foretells."""

    known: int
    """Offsets that were seen on the source and not copied."""
    looked_ms: int
    """When the source was last looked at, no later than this is true: what was acknowledged after it may be missing."""


def bound_of(loss: str, asked_ms: int) -> Bound:
    """The plan's figure `loss` as numbers. `asked_ms`: when it was asked for, by the wall clock. Indeterminate when the
    plan cannot bound the loss."""
    found = _WORDS.fullmatch(loss)
    if found is None:
        raise Indeterminate(f"the plan does not bound what may be lost, so nothing can be judged by it: {loss}")
    age_ms = round(float(found[2]) * 1000)
    return Bound(int(found[1].replace(",", "")), asked_ms - age_ms - LOOK_ROUNDED_MS)


def covered(acknowledged: Sequence[Event], west: Iterable[Entry], bound: Bound, source: str = "east") -> frozenset[int]:
    """Numbers of orders that the source had acknowledged, that west lacks, and that the plan said may be missing.

    Only what lies behind all that was copied of a partition can be one of them: a hole is not covered. Nor is more from
    before the last look than the plan knew to be missing.
    """
    there = {entry.number for entry in west}
    mine = [event for event in acknowledged if event.cluster == source]
    copied: dict[int, int] = {}
    for event in (*mine, *_found(acknowledged, source)):
        if event.number in there:
            copied[event.partition] = max(event.offset, copied.get(event.partition, -1))
    missing = [e for e in mine if e.number not in there and e.offset > copied.get(e.partition, -1)]
    seen = sorted((e for e in missing if e.ms < bound.looked_ms), key=lambda e: e.ms)
    newer = [e for e in missing if e.ms >= bound.looked_ms]
    return frozenset(e.number for e in (*seen[len(seen) - min(len(seen), bound.known) :], *newer))


def _found(acknowledged: Sequence[Event], source: str) -> Iterable[Event]:
    """Orders that the source took and did not answer: the producer found them on west before it wrote there."""
    after = (event for event in acknowledged if event.cluster != source)
    return takewhile(lambda event: not event.answered, after)


def as_written(entry: Entry) -> Entry:
    """The same place with what the producer had written: its number says all of it."""
    timestamp = entry.content[:1]
    return replace(entry, content=(*timestamp, str(entry.number).encode(), value_of(entry.number), ()))
