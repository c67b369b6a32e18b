"""What of an earlier comparison still holds, and what a new one adds."""

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
SHOWN: Final = 10
FURTHER: Final = (100 * AGAIN, 10_000 * AGAIN)


@dataclass(frozen=True, slots=True)
class Basis:
    holding: Mapping[Partition, Proved]
    epochs: Mapping[Partition, int]
    ids: Mapping[str, str]
    source_epochs: Mapping[Partition, int] = field(default_factory=dict)
    differs: tuple[Difference, ...] = ()
    unsaid: Mapping[Partition, Proved] = field(default_factory=dict)
    """Recorded, but no broker confirms it now. Compared anew, yet kept until then: with a broker away it
    may never be compared again.
    """

    def rest(self, ranges: Sequence[ParityRange], back: int = 0) -> tuple[ParityRange, ...]:
        """What was not compared yet. Where nothing is new, the end of the last comparison, so that records are
        read.

        `back`: and so many offsets of the last comparison.
        """
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
        return sum(self.holding[r.partition].records for r in ranges if r.partition in self.holding)


def basis(
    proof: Proof | None, ends: Mapping[Partition, Offset], epochs: Mapping[Partition, int], ids: Mapping[str, str]
) -> Basis:
    """`ends`: where the verified leader epochs end on the destination now. A shorter end voids the record;
    partitions without one stay recorded, unconfirmed.
    """
    rows = recorded(proof, ids)
    holding = {p: one for p, one in rows.items() if ends.get(p, -1) >= one.end}
    unsaid = {p: one for p, one in rows.items() if p not in ends}
    differs = tuple(one for one in proof.differs if ids.get(one.topic, one.id) == one.id) if proof else ()
    return Basis(holding, epochs, ids, differs=differs, unsaid=unsaid)


def differing(proof: Proof | None, partitions: Container[Partition]) -> tuple[Difference, ...]:
    return tuple(one for one in proof.differs if one.partition in partitions) if proof else ()


def differing_in_words(found: Sequence[Difference], now_ms: int) -> str:
    shown = [_in_words(one, now_ms) for one in found[:SHOWN]]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{len(found)} partition(s): {'; '.join(shown)}{more}" if shown else ""


def _in_words(one: Difference, now_ms: int) -> str:
    where = "" if one.offset is None else f" from offset {one.offset} on"
    age = now_ms - one.at_ms
    when = UNKNOWN_TIME if age < -TOLERATED_MS else f"{max(0, age) / 60_000:.0f} minutes ago"
    return f"{one.partition}{where} ({one.kind}, seen {when})"


def recorded(proof: Proof | None, ids: Mapping[str, str]) -> dict[Partition, Proved]:
    return {p: one for p, topic_id, one in proof.rows() if ids.get(p.topic) == topic_id} if proof else {}


@dataclass(frozen=True, slots=True)
class Since:
    """What both sides say now that may contradict an earlier comparison."""

    here: Mapping[Partition, Offset]
    there: Mapping[Partition, Offset]
    ends: Mapping[Partition, Offset]
    """Where the verified leader epochs end on the source."""
    cleaned: frozenset[Partition]
    """Compacted partitions in doubt: for a copy that lagged, the source may have removed tombstones, and
    what they deleted, below the verified end.
    """

    def holds(self, partition: Partition, one: Proved) -> bool | None:
        here, there, end = self.here.get(partition), self.there.get(partition), self.ends.get(partition)
        if (here is not None and there is not None and here > there) or (end is not None and end < one.end):
            return False
        return None if None in (here, there, end) or partition in self.cleaned else True


def undoubted(known: Basis, since: Since) -> Basis:
    """What still holds by the source too: the destination deleted nothing that the source has, and the
    source lost nothing (KIP-101).
    """

    said = {p: since.holds(p, one) for p, one in known.holding.items()}
    holding = {p: one for p, one in known.holding.items() if said[p]}
    unsaid = {p: one for p, one in known.holding.items() if said[p] is None}
    return replace(known, holding=holding, unsaid={**known.unsaid, **unsaid})


def in_words(proof: Proof | None, positions: Mapping[Partition, Offset], ids: Mapping[str, str], now_ms: int) -> str:
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
    """The verification after these ranges were compared.

    A range that begins anew replaces its partition's record. An empty range renews the time, if the source was asked
    and nothing contradicts. Where the comparison could not read as far as before, the old record stays.
    """
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
    reasons = set(result.reasons) - {NOTHING_HELD}
    if result.findings or (reasons and (not result.in_doubt or NOTHING_COMPARED in reasons)):
        return lambda partition: True
    return lambda partition: partition in result.in_doubt


@dataclass(frozen=True, slots=True)
class CertifiedRead:
    ranges: Sequence[ParityRange] = ()
    kinds: Collection[str] = ()


def noted(
    proof: Proof,
    result: ParityResult,
    ids: Mapping[str, str],
    now_ms: int,
    read: CertifiedRead = CertifiedRead(),
) -> Proof:
    theirs = {one.partition for one in proof.differs if one.kind in read.kinds}
    known = Basis({}, {}, ids, differs=proof.differs)
    found = tuple(_differs(known, [one for one in read.ranges if one.partition in theirs], result, now_ms))
    places = {one.partition: one.offset or Offset(0) for one in found if one not in proof.differs}
    others = {one.partition: one for one in proof.differs if read.ranges and one.partition not in theirs}
    differs = tuple(others.get(one.partition, one) for one in found)
    rows = {p: _up_to(places.get(p), one) for p, _, one in proof.rows()}
    return Proof.of(proof.mirror, rows, {p.topic: topic_id for p, topic_id, _ in proof.rows()}, differs)


def _up_to(place: Offset | None, one: Proved) -> Proved:
    return one if place is None or place >= one.end else one._replace(end=place, records=0)


def _differs(known: Basis, compared: Sequence[ParityRange], result: ParityResult, now_ms: int) -> Iterator[Difference]:
    """The first place of each partition, different or unreadable: found now, or earlier and still there."""
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
    if one.offset is not None and one.offset < result.held_from.get(one.partition, 0):
        return False
    if looked is None:
        return True
    proven = result.proven.get(one.partition, looked.start)
    if one.offset is None:
        return not looked.end <= proven > looked.start
    return not looked.start <= one.offset < proven
