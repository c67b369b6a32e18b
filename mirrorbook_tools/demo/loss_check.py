"""What the plan says may be lost, and which of the orders that are missing on west it covers. Pure.

The verdict: from both clusters' logs, the producer's acknowledgements and what the consumer has handled. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any

from mirror_core.model.errors import Indeterminate
from mirror_core.model.figures import FigureKey
from mirrorbook_tools.demo.logs import Entry, Event, value_of


@dataclass(frozen=True, slots=True)
class Bound:
    """The loss that a plan foretells."""

    known: int
    """Offsets that were seen on the source and not copied."""
    looked_ms: int
    """When the source was last looked at, no later than this is true: what was acknowledged after it may be missing."""


def bound_of(figures: Mapping[str, Any], asked_ms: int) -> Bound:
    """By the figures of a plan. `asked_ms`: when it was asked for, by the wall clock. Indeterminate when the plan
    cannot bound the loss."""
    known, age_s = (figures[key]["value"] for key in (FigureKey.LOST_OFFSETS, FigureKey.SOURCE_SEEN_S))
    if known is None or age_s is None or FigureKey.LOST_UNKNOWN_PARTITIONS in figures:
        raise Indeterminate("the plan does not bound what may be lost, so nothing can be judged by it")
    return Bound(known, asked_ms - round(age_s * 1000))


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
    """This place with what the producer had written: its number says all of it."""
    timestamp = entry.content[:1]
    return replace(entry, content=(*timestamp, str(entry.number).encode(), value_of(entry.number), ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Counts of orders. A good demo has only zeroes from `lost` on, but for `read_again`."""

    acknowledged: int
    consumed: int
    given_up: int
    """Acknowledged by the cluster that died, not copied in time, and saved to a file before its log was cut."""
    lost: int
    """Acknowledged, missing in either log, and not saved."""
    skipped: int
    """Acknowledged, and never handled by the consumer group."""
    duplicated: int
    """Places in either log that hold an order which the same log has already held."""
    out_of_order: int
    """Places in either log that hold an order with a smaller number than one before it in the partition."""
    shifted: int
    """Places that differ between the logs, or from what the producer was told at its acknowledgement."""
    read_again: int
    """Orders that the group handled more than once: allowed (at least once), and counted."""
    seconds_without_writes: tuple[tuple[str, str, str, float], ...]
    """For each switch: from where, to where, by whom, seconds from the last write accepted there to the first here."""

    @property
    def exit_code(self) -> int:
        """0 only when nothing was lost, doubled or moved; 4 when there was nothing to judge."""
        if not self.acknowledged:
            return 4
        return int(any((self.lost, self.skipped, self.duplicated, self.out_of_order, self.shifted)))

    def lines(self) -> list[str]:
        """For people and for scripts: each number on a line of its own."""
        gaps = [
            f"seconds without accepted writes, {source} to {destination}, by {conductor}: {seconds:.1f}"
            for source, destination, conductor, seconds in self.seconds_without_writes
        ]
        return [
            f"acknowledged: {self.acknowledged}",
            f"consumed: {self.consumed}",
            f"given up with the dead cluster, and saved to files: {self.given_up}",
            f"lost: {self.lost}",
            f"skipped by the consumer group: {self.skipped}",
            f"duplicated: {self.duplicated}",
            f"out of order: {self.out_of_order}",
            f"offsets equal: {'yes' if not self.shifted else f'no, {self.shifted} differ'}",
            f"handled twice by the consumer group: {self.read_again}",
            *gaps,
        ]


def judge(
    *,
    east: Iterable[Entry],
    west: Iterable[Entry],
    acknowledged: Sequence[Event],
    handled: Sequence[Event],
    saved: Collection[int] = (),
    switched_by: Sequence[str] = (),
) -> Verdict:
    """Compare everything with everything. The logs are whole, from their beginning to the same moment's end.

    `saved`: numbers of orders in the files that a failback has salvaged. `switched_by`: who told the applications to
    move, each time.
    """
    logs = [sorted(east), sorted(west)]
    places = [{(entry.partition, entry.offset): entry for entry in log} for log in logs]
    written = [{entry.number for entry in log} for log in logs]
    everywhere = written[0] & written[1]
    given_up = {event.number for event in acknowledged if event.number in saved} - everywhere
    kept = [event for event in acknowledged if event.number not in given_up]
    wanted = {event.number for event in kept}
    seen = [event.number for event in handled]
    moved = {place for place in places[0].keys() | places[1].keys() if places[0].get(place) != places[1].get(place)}
    for event in kept:
        place = (event.partition, event.offset)
        if any((found := side.get(place)) is None or found.number != event.number for side in places):
            moved.add(place)
    return Verdict(
        acknowledged=len(wanted | given_up),
        consumed=len(set(seen)),
        given_up=len(given_up),
        lost=len(wanted - everywhere),
        skipped=len(wanted - set(seen)),
        duplicated=len(_repeats(logs[0]) | _repeats(logs[1])),
        out_of_order=len(_backward(logs[0]) | _backward(logs[1])),
        shifted=len(moved),
        read_again=len(seen) - len(set(seen)),
        seconds_without_writes=tuple(switches(acknowledged, switched_by)),
    )


def _repeats(log: Sequence[Entry]) -> set[tuple[int, int]]:
    seen: set[int] = set()
    repeats = set()
    for entry in log:
        if entry.number in seen:
            repeats.add((entry.partition, entry.offset))
        seen.add(entry.number)
    return repeats


def _backward(log: Sequence[Entry]) -> set[tuple[int, int]]:
    highest: dict[int, int] = {}
    backward = set()
    for entry in log:
        if entry.number < highest.get(entry.partition, -1):
            backward.add((entry.partition, entry.offset))
        highest[entry.partition] = max(entry.number, highest.get(entry.partition, -1))
    return backward


def switches(acknowledged: Sequence[Event], by: Sequence[str]) -> Iterable[tuple[str, str, str, float]]:
    """From where, to where, by whom, seconds from the last write accepted there to the first here."""
    answered = sorted((event for event in acknowledged if event.answered), key=lambda event: event.ms)
    moves = [(before, after) for before, after in pairwise(answered) if before.cluster != after.cluster]
    for number, (before, after) in enumerate(moves):
        conductor = by[number] if number < len(by) else "nobody known"
        yield before.cluster, after.cluster, conductor, (after.ms - before.ms) / 1000
