"""Topics that belong together: until when the destination has everything that the source had of all of them. Pure.

Each partition ends where its copy ended. For each it is known from the data plane's looks until when it is whole; the
earliest of these holds for all. A partition that has no copy counts as well, and so does the moment when the source's
topics were listed: later ones may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mirror_core.decide.loss import uncopied
from mirror_core.decide.view import DestinationView, View, some, without_copy
from mirror_core.model.loss import Uncopied
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import HEARTBEATS, Offset, Partition
from mirror_core.model.sighting import Sighting

COMPLETE: Final = "complete up to"

Groups = Sequence[tuple[str, ...]]
"""Regular expressions over whole names of topics, by group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """One group."""

    name: str
    upto_ms: int | None
    """Everything that the source had acknowledged before this moment is there, of every partition. None: unknown."""
    last: tuple[Partition, ...]
    """Whose moment that is, the first; or of which it is unknown. Empty: the listing of topics is older."""
    why: str = ""
    """Why it is unknown; empty: it is known."""


def of_view(view: View) -> Iterator[tuple[str, str]]:
    """Figures of a plan without the source."""
    here = view.destination
    positions = here.positions if isinstance(here, DestinationView) else {}
    found = uncopied(view.statuses, view.sighting, view.unmirrored, without_copy(view))
    for one in together(view.together, view.statuses, view.sighting, positions, found):
        yield f"{COMPLETE}, {one.name}", in_words(one)


def together(
    groups: Groups,
    statuses: Mapping[Partition, PartitionStatus],
    sighting: Sighting | None,
    positions: Mapping[Partition, Offset],
    without: Mapping[Partition, Uncopied] | None = None,
) -> Iterator[Together]:
    """Each group that is named; where none is, all topics of the mirror. `without`: what has no copy, where more is
    known of that than the sighting says."""
    without = uncopied(statuses, sighting) if without is None else without
    whole = dict(_whole(sighting, positions, without)) if sighting else {}
    listed_ms = sighting.listed_ms if sighting else None
    partitions = statuses.keys() | without.keys()
    topics = sorted({p.topic for p in partitions if not p.topic.startswith(HEARTBEATS)})
    for expressions in groups or ((".*",),):
        chosen = {t for t in topics if any(re.fullmatch(e, t) for e in expressions)}
        mine = sorted(p for p in partitions if p.topic in chosen)
        name = f"topics {', '.join(expressions)} together" if groups else "all topics together"
        unknown = tuple(p for p in mine if p not in whole)
        upto = None if unknown or not mine or listed_ms is None else min(listed_ms, *(whole[p] for p in mine))
        last = unknown or tuple(p for p in mine if whole[p] == upto)
        yield Together(name=name, upto_ms=upto, last=last, why="" if upto is not None else _why(mine, unknown, without))


def _why(mine: Collection[Partition], unknown: Collection[Partition], without: Mapping[Partition, Uncopied]) -> str:
    """Partitions that have no copy first."""
    if not mine:
        return "the mirror has no such topic"
    if not unknown:
        return "when the source's topics were listed is not known, so others may match"
    first = sorted(unknown, key=lambda p: (p not in without, p))
    return f"of {some(f'{p} ({without[p]})' if p in without else str(p) for p in first)}"


def _whole(
    sighting: Sighting, positions: Mapping[Partition, Offset], without: Collection[Partition]
) -> Iterator[tuple[Partition, int]]:
    """A position that is beyond an end contains what was there when it was seen. Of an empty log nothing is missing."""
    before, starts = dict(sighting.whole()), dict(sighting.starts())
    for partition, seen in sighting.seen():
        position = starts.get(partition) if partition in without else positions.get(partition)
        if position is not None and position >= seen.end:
            yield partition, seen.at_ms
        elif position is not None and partition in before and partition not in without:
            yield partition, before[partition]


def in_words(one: Together) -> str:
    if one.upto_ms is None:
        return f"unknown: {one.why}"
    when = datetime.fromtimestamp(one.upto_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    last = f"the last is {some(one.last[:3])}" if one.last else "the source's topics were listed then"
    return f"{when.removesuffix('+00:00')} UTC; {last}"
