"""What of an earlier proof still holds, and what a comparison adds to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.clocks import TOLERATED_MS, UNKNOWN_TIME
from mirror_core.decide.parity import NOTHING_COMPARED, NOTHING_HELD
from mirror_core.decide.view import some
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity import Finding, ParityRange, ParityResult
from mirror_core.model.proof import Difference, Proof, Proved

AGAIN: Final = 1000
"""Offsets that are compared once more where nothing is new."""
SHOWN: Final = 10
"""Differences that a line names."""
FURTHER: Final = (100 * AGAIN, 10_000 * AGAIN)
"""As many where those hold no record."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What is known before a comparison begins."""

    holding: Mapping[Partition, Proved]
    epochs: Mapping[Partition, int]
    """Leader epochs of the destination, now."""
    ids: Mapping[str, str]
    """Of the destination's topics, now."""
    source_epochs: Mapping[Partition, int] = field(default_factory=dict)
    """Of the source, now, where it was asked."""
    differs: tuple[Difference, ...] = ()
    unsaid: Mapping[Partition, Proved] = field(default_factory=dict)
    """As recorded, where nobody says now whether it holds. It is compared anew, and stays recorded until then: what was
    compared with a broker that is away may never be compared again."""

    def rest(self, ranges: Sequence[ParityRange], back: int = 0) -> tuple[ParityRange, ...]:
        """What was not compared yet. Where nothing is new, the end of what was compared last: a look at nothing would
        show nothing. `back`: and so many offsets before, of what was compared last."""
        rest = [replace(r, start=self._start(r)) for r in ranges]
        if not back and not any(r.start < r.end for r in rest):
            back = AGAIN
        held = [n for n, r in enumerate(ranges) if r.start < r.end and r.partition in self.holding]
        for n in sorted(held, key=lambda n: self.holding[ranges[n].partition].at_ms, reverse=True):
            more = min(back, rest[n].start - ranges[n].start)
            rest[n], back = replace(rest[n], start=Offset(rest[n].start - more)), back - more
        return tuple(rest)

    def _start(self, wanted: ParityRange) -> Offset:
        known = self.holding.get(wanted.partition)
        return wanted.start if known is None else Offset(min(max(wanted.start, known.end), wanted.end))

    def of(self, ranges: Sequence[ParityRange]) -> int:
        """Records of these ranges' partitions that were compared before."""
        return sum(self.holding[r.partition].records for r in ranges if r.partition in self.holding)


def basis(
    proof: Proof | None, ends: Mapping[Partition, Offset], epochs: Mapping[Partition, int], ids: Mapping[str, str]
) -> Basis:
    """`ends`: where the proved epochs end on the destination, as its leaders say now; what they don't say holds no
    more: it costs another look. What none of them speaks of stays recorded."""
    rows = recorded(proof, ids)
    holding = {p: one for p, one in rows.items() if ends.get(p, -1) >= one.end}
    unsaid = {p: one for p, one in rows.items() if p not in ends}
    differs = tuple(one for one in proof.differs if ids.get(one.topic, one.id) == one.id) if proof else ()
    return Basis(holding, epochs, ids, differs=differs, unsaid=unsaid)


def differing(proof: Proof | None, partitions: Container[Partition]) -> tuple[Difference, ...]:
    """Which of these partitions are known to differ."""
    return tuple(one for one in proof.differs if one.partition in partitions) if proof else ()


def differing_in_words(found: Sequence[Difference], now_ms: int) -> str:
    """Where, and when that was seen; empty when nothing is known to differ."""
    shown = [_in_words(one, now_ms) for one in found[:SHOWN]]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{len(found)} partition(s): {'; '.join(shown)}{more}" if shown else ""


def _in_words(one: Difference, now_ms: int) -> str:
    where = "" if one.offset is None else f" from offset {one.offset} on"
    age = now_ms - one.at_ms
    when = UNKNOWN_TIME if age < -TOLERATED_MS else f"{max(0, age) / 60_000:.0f} minutes ago"
    return f"{one.partition}{where} ({one.kind}, seen {when})"


def recorded(proof: Proof | None, ids: Mapping[str, str]) -> dict[Partition, Proved]:
    """How far each partition was compared, of topics that are still the same; as recorded, nobody is asked anew."""
    return {p: one for p, topic_id, one in proof.rows() if ids.get(p.topic) == topic_id} if proof else {}


@dataclass(frozen=True, slots=True)
class Since:
    """What both sides say now that could speak against an earlier proof."""

    here: Mapping[Partition, Offset]
    """Log starts on the destination, asked for before those of the source."""
    there: Mapping[Partition, Offset]
    ends: Mapping[Partition, Offset]
    """Where the proved epochs end on the source."""
    cleaned: frozenset[Partition]
    """Of topics that either side cleans by key, those in doubt: of a copy that was behind for long the source may have
    taken a tombstone, and what it deleted, below what was proved."""

    def holds(self, partition: Partition, one: Proved) -> bool | None:
        """None: nobody says so."""
        here, there, end = self.here.get(partition), self.there.get(partition), self.ends.get(partition)
        if (here is not None and there is not None and here > there) or (end is not None and end < one.end):
            return False
        return None if None in (here, there, end) or partition in self.cleaned else True


def undoubted(known: Basis, since: Since) -> Basis:
    """What still holds when the source, too, was asked: nothing was deleted on the destination that the source has, and
    the source has lost nothing (KIP-101)."""

    said = {p: since.holds(p, one) for p, one in known.holding.items()}
    holding = {p: one for p, one in known.holding.items() if said[p]}
    unsaid = {p: one for p, one in known.holding.items() if said[p] is None}
    return replace(known, holding=holding, unsaid={**known.unsaid, **unsaid})


def in_words(proof: Proof | None, positions: Mapping[Partition, Offset], ids: Mapping[str, str], now_ms: int) -> str:
    """How much of what is on the destination was compared, and how long ago; as recorded, nobody is asked anew."""
    known = recorded(proof, ids)
    ends = {p: min(known[p].end, end) if p in known else 0 for p, end in positions.items()}
    total, proved = sum(positions.values()), sum(ends.values())
    if not proved:
        return f"none of {total} offsets"
    ages = [now_ms - known[p].at_ms for p, end in ends.items() if end]
    if min(ages) < -TOLERATED_MS:
        return f"{proved} of {total} offsets, compared {UNKNOWN_TIME}"
    return f"{proved} of {total} offsets, compared {_between(max(0, min(ages)), max(0, max(ages)))}"


def _between(least_ms: int, most_ms: int) -> str:
    if most_ms < 60_000:
        return "less than a minute ago"
    least, most = f"{least_ms / 60_000:.0f}", f"{most_ms / 60_000:.0f}"
    return f"{most} minute(s) ago" if least == most else f"between {least} and {most} minutes ago"


def compared_before(known: Basis, ends: Mapping[Partition, Offset]) -> dict[str, str]:
    """Of what lies below these ends (next offsets), how much was seen to be equal, and what was not, named. What was,
    and nobody says now whether it still holds, is neither."""
    held = {p: min(known.holding[p].end, end) if p in known.holding else 0 for p, end in ends.items()}
    proved = {p: min(known.unsaid[p].end, end) if p in known.unsaid else held[p] for p, end in ends.items()}
    unsaid = [f"{p} [0, {proved[p]})" for p in sorted(ends) if p in known.unsaid and proved[p]]
    never = [f"{p} [{proved[p]}, {end})" for p, end in sorted(ends.items()) if proved[p] < end]
    return {
        "compared_before": f"{sum(held.values())} of {sum(ends.values())} offsets",
        "compared_and_not_confirmed": some(unsaid) or "none",
        "never_compared": some(never) or "none",
    }


def advanced(
    mirror: MirrorName, known: Basis, compared: Sequence[ParityRange], result: ParityResult, now_ms: int
) -> Proof:
    """What holds after these ranges were compared. One that begins anew replaces what was known of its partition; one
    in which nothing is new says that it holds still, where the source was asked and nothing speaks against it. Where
    nobody could look as far as was known before, that stays."""
    proved, doubted = {**known.unsaid, **known.holding}, _doubted(result)
    differs = tuple(_differs(known, compared, result, now_ms))
    places = {one.partition: one.offset or Offset(0) for one in differs if one not in known.differs}
    for one in compared:
        partition, before = one.partition, known.holding.get(one.partition)
        end, sampled = result.proven.get(partition, one.start), result.sampled.get(partition, 0)
        kept = proved.get(partition)
        blind = kept is not None and end < kept.end and partition in result.in_doubt - result.unlike
        if blind or partition not in known.epochs:
            if kept is not None:  # what was found below it is to be read again
                proved[partition] = _up_to(places.get(partition), kept)
            continue
        epochs = known.epochs[partition], known.source_epochs.get(partition, before.source_epoch if before else -1)
        if before and one.start == before.end:
            if end > one.start:
                proved[partition] = Proved(end, epochs[0], now_ms, before.records + sampled, epochs[1])
            elif one.end == one.start and partition in known.source_epochs and not doubted(partition):
                proved[partition] = before._replace(at_ms=now_ms)
        elif end > one.start:
            again = before is not None and end >= before.end
            records = max(sampled, before.records if before and again else 0)
            proved[partition] = Proved(end, epochs[0], now_ms, records, epochs[1])
        elif before is None and one.end == one.start and partition in known.source_epochs and not doubted(partition):
            proved[partition] = Proved(one.start, epochs[0], now_ms, 0, epochs[1])  # neither side holds anything of it
        else:
            proved.pop(partition, None)
    return Proof.of(mirror, proved, known.ids, differs)


def _doubted(result: ParityResult) -> Callable[[Partition], bool]:
    """Whether a comparison says nothing of a partition in which nothing was new. Logs that hold no record anywhere, and
    begin and end alike, were seen to."""
    reasons = set(result.reasons) - {NOTHING_HELD}
    if result.findings or (reasons and (not result.in_doubt or NOTHING_COMPARED in reasons)):
        return lambda partition: True
    return lambda partition: partition in result.in_doubt


@dataclass(frozen=True, slots=True)
class CertifiedRead:
    """What a comparison with certificates has read. Those don't tell what the source holds, so only what such a
    comparison may have found is cleared by the next one, or takes the place of another."""

    ranges: Sequence[ParityRange] = ()
    kinds: Collection[str] = ()
    """Of differences that it may find."""


def noted(
    proof: Proof,
    result: ParityResult,
    ids: Mapping[str, str],
    now_ms: int,
    read: CertifiedRead = CertifiedRead(),
) -> Proof:
    """The same, and what this comparison found to differ: from there on the next one compares again. It proves nothing:
    others go by what it began with. `read`: where it was one with certificates."""
    theirs = {one.partition for one in proof.differs if one.kind in read.kinds}
    known = Basis({}, {}, ids, differs=proof.differs)
    found = tuple(_differs(known, [one for one in read.ranges if one.partition in theirs], result, now_ms))
    places = {one.partition: one.offset or Offset(0) for one in found if one not in proof.differs}
    others = {one.partition: one for one in proof.differs if read.ranges and one.partition not in theirs}
    differs = tuple(others.get(one.partition, one) for one in found)
    rows = {p: _up_to(places.get(p), one) for p, _, one in proof.rows()}
    return Proof.of(proof.mirror, rows, {p.topic: topic_id for p, topic_id, _ in proof.rows()}, differs)


def _up_to(place: Offset | None, one: Proved) -> Proved:
    """How many of its records lie below that place nobody knows: none is claimed."""
    return one if place is None or place >= one.end else one._replace(end=place, records=0)


def _differs(known: Basis, compared: Sequence[ParityRange], result: ParityResult, now_ms: int) -> Iterator[Difference]:
    """The first place of each partition, be it unlike or unreadable: found now; or before, if that is known still."""
    places = dict[Partition, Finding]()
    for found in sorted((*result.findings, *result.damaged), key=lambda one: (one.partition, one.offset or 0)):
        places.setdefault(found.partition, found)
    looked = {one.partition: one for one in compared}
    before = {one.partition: one for one in known.differs if _stays(one, looked.get(one.partition), result)}
    for partition in sorted(before.keys() | places.keys()):
        old, place = before.get(partition), places.get(partition)
        if place is None or (old is not None and (old.offset or 0) < (place.offset or 0)):
            yield before[partition]
        else:
            yield Difference(
                topic=partition.topic,
                index=partition.index,
                id=known.ids.get(partition.topic, ""),
                offset=place.offset,
                kind=place.kind,
                at_ms=now_ms,
            )


def _stays(one: Difference, looked: ParityRange | None, result: ParityResult) -> bool:
    """Whether either side holds that place, and it was not seen to be equal."""
    if one.offset is not None and one.offset < result.held_from.get(one.partition, 0):
        return False
    if looked is None:
        return True
    proven = result.proven.get(one.partition, looked.start)
    if one.offset is None:
        return not looked.end <= proven > looked.start
    return not looked.start <= one.offset < proven
