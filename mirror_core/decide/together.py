"""Topics that belong together: until when the destination has everything that the source had of all of them. Pure.

Each partition ends where its copy ended. For each it is known from the data plane's looks until when it is whole; the
earliest of these holds for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mirror_core.decide.view import DestinationView, View, some
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
    """Whose moment that is, the first; or of which it is unknown."""


def of_view(view: View) -> Iterator[tuple[str, str]]:
    """Figures of a plan without the source."""
    here = view.destination
    positions = here.positions if isinstance(here, DestinationView) else {}
    for one in together(view.together, view.statuses, view.sighting, positions):
        yield f"{COMPLETE}, {one.name}", in_words(one)


def together(
    groups: Groups,
    statuses: Mapping[Partition, PartitionStatus],
    sighting: Sighting | None,
    positions: Mapping[Partition, Offset],
) -> Iterator[Together]:
    """Each group that is named; where none is, all topics of the mirror."""
    whole = dict(_whole(sighting, positions)) if sighting else {}
    topics = sorted({p.topic for p in statuses if not p.topic.startswith(HEARTBEATS)})
    for expressions in groups or ((".*",),):
        chosen = {t for t in topics if any(re.fullmatch(e, t) for e in expressions)}
        mine = sorted(p for p in statuses if p.topic in chosen)
        name = f"topics {', '.join(expressions)} together" if groups else "all topics together"
        unknown = tuple(p for p in mine if p not in whole)
        upto = None if unknown or not mine else min(whole[p] for p in mine)
        last = unknown or tuple(p for p in mine if whole[p] == upto)
        yield Together(name=name, upto_ms=upto, last=last)


def _whole(sighting: Sighting, positions: Mapping[Partition, Offset]) -> Iterator[tuple[Partition, int]]:
    """A position that is beyond an end contains what was there when it was seen."""
    before = dict(sighting.whole())
    for partition, seen in sighting.seen():
        position = positions.get(partition)
        if position is not None and position >= seen.end:
            yield partition, seen.at_ms
        elif position is not None and partition in before:
            yield partition, before[partition]


def in_words(one: Together) -> str:
    if one.upto_ms is None:
        return f"unknown: of {some(one.last)}" if one.last else "unknown: the mirror has no such topic"
    when = datetime.fromtimestamp(one.upto_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    return f"{when.removesuffix('+00:00')} UTC; the last is {some(one.last[:3])}"
