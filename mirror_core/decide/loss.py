"""What an unplanned failover would lose, from the last observation of the source.

Three measures, each a lower bound: offsets (the source's last observed ends minus the positions), the age of that
observation, and the age of the newest heartbeat that arrived. So the bound is: at least so many offsets, plus what was
acknowledged since the observation. It grows while the source is silent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from mirror_core.decide.clocks import age_s
from mirror_core.decide.view import DestinationView, View, is_healthy, without_copy
from mirror_core.model.loss import Fate, PartitionLoss, TransactionLoss, Uncopied
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sighting import OVER, Heartbeat, Sighting, TransactionPart, TransactionSeen


class _Has(StrEnum):
    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    partitions: Mapping[Partition, PartitionLoss]
    known: int
    unknown: tuple[Partition, ...]
    """The source's end was never seen, or the position is unknown now."""
    listed_s: float | None
    """Age of the last listing of all source topics: later topics are unknown. None: never, or clocks
    differ.
    """
    silent_s: float | None
    """Age of the oldest observed end, of partitions that had a leader and are not FAILED. None: one was
    never seen, or clocks differ.
    """
    heartbeats: tuple[Heartbeat, ...]
    heartbeat_s: float | None
    """Age of the oldest of these. None: there is none, or clocks differ."""
    transactions: tuple[TransactionLoss, ...]
    """Observed ones that are not known to be complete on the destination."""
    busy: Mapping[str, tuple[Partition, ...]]
    unnamed: int

    @property
    def furthest(self) -> tuple[Partition, PartitionLoss] | None:
        copied = [(partition, one) for partition, one in self.partitions.items() if not one.failed]
        return max(copied, key=lambda row: inf if row[1].behind_s is None else row[1].behind_s, default=None)

    @property
    def uncopied(self) -> Mapping[Partition, PartitionLoss]:
        return {p: one for p, one in self.partitions.items() if one.uncopied}

    @property
    def clocks_differ(self) -> bool:
        return any(one.seen_end is not None and one.age_s is None for one in self.partitions.values())

    @property
    def cut(self) -> tuple[TransactionLoss, ...]:
        return tuple(t for t in self.transactions if t.fate is Fate.CUT)

    @property
    def bound(self) -> str:
        if self.silent_s is None and len(self.unknown) == len(self.partitions):
            return "unknown: whatever was acknowledged since the source was last looked at, and nobody knows when"
        more = f" (unknown of {len(self.unknown)} partition(s))" if self.unknown else ""
        if whole := self.uncopied:
            offsets = sum(one.missing or 0 for one in whole.values())
            more += f", {offsets:,} of them in {len(whole)} partition(s) that have no copy"
        since = (
            "since it was last looked at, and when that was is unknown"
            if self.silent_s is None
            else f"in the {self.silent_s:.1f} s since the source was last looked at"
        )
        return f"at least {self.known:,} offset(s){more}, and whatever was acknowledged {since}{self._newer}"

    @property
    def _newer(self) -> str:
        if self.listed_s is None:
            return "; topics and partitions that are not mirrored yet are not in this: when they were listed is unknown"
        if self.silent_s is None or self.listed_s <= self.silent_s:
            return ""
        return f"; topics that were created in the {self.listed_s:.1f} s since all were listed are not in this"


def loss_of(view: View) -> Loss:
    there = view.destination if isinstance(view.destination, DestinationView) else None
    return loss(
        view.statuses,
        view.sighting,
        there.positions if there else {},
        there.heartbeats if there else (),
        now_ms=view.now_ms,
        unmirrored=view.unmirrored,
        without=without_copy(view),
    )


def loss(
    statuses: Mapping[Partition, PartitionStatus],
    sighting: Sighting | None,
    positions: Mapping[Partition, Offset],
    heartbeats: tuple[Heartbeat, ...],
    *,
    now_ms: int,
    unmirrored: Collection[Partition] = (),
    without: Collection[Partition] = (),
) -> Loss:
    why = uncopied(statuses, sighting, unmirrored, without)
    partitions = dict(_partitions(statuses, sighting, positions, now_ms, why))
    seen = sighting.transactions if sighting else ()
    judged = [_transaction(t, positions) for t in seen]
    return Loss(
        partitions=partitions,
        known=sum(p.missing or 0 for p in partitions.values()),
        unknown=tuple(p for p, one in partitions.items() if one.missing is None),
        listed_s=age_s(now_ms, sighting.listed_ms) if sighting and sighting.listed_ms is not None else None,
        silent_s=oldest([p.age_s for p in partitions.values() if not p.apart]),
        heartbeats=heartbeats,
        heartbeat_s=oldest([age_s(now_ms, beat.at_ms) for beat in heartbeats]),
        transactions=tuple(t for t in judged if t.fate is not Fate.THERE),
        busy={
            t.id: tuple(sorted(part.partition for part in t.parts))
            for t in sorted(seen, key=lambda t: t.id)
            if t.state != OVER
        },
        unnamed=sighting.unnamed if sighting else 0,
    )


def uncopied(
    statuses: Mapping[Partition, PartitionStatus],
    sighting: Sighting | None,
    unmirrored: Collection[Partition] = (),
    without: Collection[Partition] = (),
) -> dict[Partition, Uncopied]:
    found: dict[Partition, Uncopied] = dict.fromkeys(unmirrored, Uncopied.NOT_MIRRORED)
    if sighting is not None:
        found |= dict.fromkeys(sighting.partitions(), Uncopied.NOT_MIRRORED)
    ids = sighting.ids() if sighting else {}
    for partition, status in statuses.items():
        found.pop(partition, None)
        if ids.get(partition.topic, status.source_topic_id) != status.source_topic_id:
            found[partition] = Uncopied.RECREATED
        elif partition in without or not status.destination_topic_id:
            found[partition] = Uncopied.NO_COPY
    return found


def _partitions(
    statuses: Mapping[Partition, PartitionStatus],
    sighting: Sighting | None,
    positions: Mapping[Partition, Offset],
    now_ms: int,
    uncopied: Mapping[Partition, Uncopied],
) -> Iterator[tuple[Partition, PartitionLoss]]:
    seen = dict(sighting.seen()) if sighting else {}
    whole = dict(sighting.whole()) if sighting else {}
    leaderless = frozenset(sighting.leaderless()) if sighting else frozenset()
    starts = dict(sighting.starts()) if sighting else {}
    for partition in sorted(statuses.keys() | uncopied.keys()):
        status, last = statuses.get(partition), seen.get(partition)
        # A topic of another mirror, or of somebody else, may have its name on the destination.
        why, position = uncopied.get(partition), positions.get(partition)
        copied = position if why is None else starts.get(partition)
        yield (
            partition,
            PartitionLoss(
                position=position if why is None else None,
                seen_end=last.end if last else None,
                age_s=age_s(now_ms, last.at_ms) if last else None,
                missing=None if copied is None or last is None else max(0, last.end - copied),
                whole_s=age_s(now_ms, whole[partition]) if partition in whole else None,
                leaderless=partition in leaderless,
                failed=status is not None and not is_healthy(status),
                uncopied=why,
            ),
        )


def _transaction(seen: TransactionSeen, positions: Mapping[Partition, Offset]) -> TransactionLoss:
    found = {part.partition: _has(part, positions.get(part.partition)) for part in seen.parts}
    return TransactionLoss(
        id=seen.id,
        state=seen.state,
        fate=_fate(set(found.values())),
        copied=tuple(sorted(p for p, has in found.items() if has in (_Has.ALL, _Has.SOME))),
        not_copied=tuple(sorted(p for p, has in found.items() if has is _Has.NONE)),
    )


def _fate(found: Set[_Has | None]) -> Fate:
    if _Has.NONE in found and found & {_Has.ALL, _Has.SOME}:
        return Fate.CUT
    if None in found:
        return Fate.UNKNOWN
    if _Has.NONE in found:
        return Fate.ABSENT
    return Fate.BEGUN if _Has.SOME in found else Fate.THERE


def _has(part: TransactionPart, position: Offset | None) -> _Has | None:
    """An open transaction holds the readable end back: a position beyond its first offset was copied after
    it ended.
    """
    if position is None:
        return None
    if part.upto is not None and position >= part.upto:
        return _Has.ALL
    if part.first is None:
        return None
    return _Has.SOME if position > part.first else _Has.NONE


def oldest(ages: list[float | None]) -> float | None:
    known = [age for age in ages if age is not None]
    return max(known, default=None) if len(known) == len(ages) else None
