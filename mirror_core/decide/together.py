"""Topics that belong together: up to when the destination has everything that the source had of all of
them.

Each partition's copy has an end, and the data plane's observations tell up to when it is complete; the earliest of
these counts. Partitions without a copy count too, and so does the last listing of topics: later topics may hold
anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mirror_core.decide.loss import uncopied
from mirror_core.decide.view import DestinationView, View, some, without_copy
from mirror_core.model.loss import Uncopied
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.name_patterns import name_pattern
from mirror_core.model.names import HEARTBEATS, Offset, Partition
from mirror_core.model.sighting import Sighting

COMPLETE: Final = "complete up to"

Groups = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    name: str
    upto_ms: int | None
    """Everything acknowledged before this moment is there, of every partition. None: unknown."""
    last: tuple[Partition, ...]
    why: str = ""


def of_view(view: View) -> Iterator[tuple[str, str]]:
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
    without = uncopied(statuses, sighting) if without is None else without
    whole = dict(_whole(sighting, positions, without)) if sighting else {}
    listed_ms = sighting.listed_ms if sighting else None
    partitions = statuses.keys() | without.keys()
    topics = sorted({p.topic for p in partitions if not p.topic.startswith(HEARTBEATS)})
    for expressions in groups or ((".*",),):
        patterns = [name_pattern("together:", expression) for expression in expressions]
        chosen = {topic for topic in topics if any(pattern.matches(topic) for pattern in patterns)}
        mine = sorted(p for p in partitions if p.topic in chosen)
        name = f"topics {', '.join(expressions)} together" if groups else "all topics together"
        unknown = tuple(p for p in mine if p not in whole)
        upto = None if unknown or not mine or listed_ms is None else min(listed_ms, *(whole[p] for p in mine))
        last = unknown or tuple(p for p in mine if whole[p] == upto)
        yield Together(name=name, upto_ms=upto, last=last, why="" if upto is not None else _why(mine, unknown, without))


def _why(mine: Collection[Partition], unknown: Collection[Partition], without: Mapping[Partition, Uncopied]) -> str:
    if not mine:
        return "the mirror has no such topic"
    if not unknown:
        return "when the source's topics were listed is not known, so others may match"
    first = sorted(unknown, key=lambda p: (p not in without, p))
    return f"of {some(f'{p} ({without[p]})' if p in without else str(p) for p in first)}"


def _whole(
    sighting: Sighting, positions: Mapping[Partition, Offset], without: Collection[Partition]
) -> Iterator[tuple[Partition, int]]:
    """A position beyond an observed end contains what was there at that time. An empty log lacks nothing."""
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
