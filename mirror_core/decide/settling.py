"""Whether the destination of an unplanned failover is quiescent, and which partitions may be left
behind.

A log that still moves is being written: always refused. One that stands still and lacks only in-sync replicas may be
promoted up to its high watermark, if a person who was told confirms it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirror_core.decide.in_sync import InSync, lowering
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition

_LINES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """One partition's log end, read twice. None: its leader does not tell."""

    before: Offset | None
    end: Offset | None
    high: Offset | None
    """High watermark. A new leader does not know it while too few replicas are in sync (KIP-207)."""
    stable: Offset | None

    @property
    def at_rest(self) -> bool:
        return self.before == self.end == self.high == self.stable

    @property
    def unreplicated(self) -> bool:
        """It stands still and lacks only replicas: no transaction is open."""
        return (
            self.end is not None
            and self.before == self.end
            and self.stable == self.high
            and (self.high is None or self.high < self.end)
        )

    def same(self, later: Ends) -> bool:
        return (self.end, self.high, self.stable) == (later.end, later.high, later.stable) and later.before == later.end

    def __str__(self) -> str:
        return (
            f"log end {_told(self.before)}, then {_told(self.end)}; high watermark {_told(self.high)}, last stable "
            f"{_told(self.stable)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    end: Offset
    high: Offset | None
    replicas: InSync

    def __str__(self) -> str:
        return f"log end {self.end}, high watermark {_told(self.high)}; {self.replicas}"


def restless(ends: Mapping[Partition, Ends]) -> dict[Partition, Ends]:
    return {p: one for p, one in sorted(ends.items()) if not one.at_rest}


def replicated(one: Ends, replicas: InSync, own: Mapping[int, Offset]) -> bool:
    """Whether enough replicas are in sync and each reports the whole log (`own`).

    A leader updates its high watermark on appends and ISR changes, not when min.insync.replicas is lowered.
    """
    return one.unreplicated and not replicas.short and all(own.get(broker) == one.end for broker in replicas.in_sync)


def held_up(found: Mapping[Partition, Ends], replicas: Mapping[Partition, InSync]) -> dict[Partition, HeldUp]:
    return {
        p: HeldUp(end=one.end, high=one.high, replicas=replicas[p])
        for p, one in found.items()
        if one.unreplicated and one.end is not None and p in replicas and replicas[p].short
    }


class Told(NamedTuple):
    end: Offset
    high: Offset | None

    def holds(self, now: HeldUp) -> bool:
        return self.end == now.end and (self.high is None or (now.high is not None and self.high <= now.high))


def agreed(held: Mapping[Partition, HeldUp], told: Mapping[Partition, Told]) -> bool:
    return all(p in told and told[p].holds(one) for p, one in held.items())


def ways_on(
    cluster: ClusterName, bootstrap: str, mirror: MirrorName, held: Mapping[Partition, HeldUp]
) -> Iterator[str]:
    fewest = dict[str, int]()
    for p, one in held.items():
        fewest[p.topic] = min(fewest.get(p.topic, len(one.replicas.in_sync)), len(one.replicas.in_sync))
    away = sorted({broker for one in held.values() for broker in one.replicas.away})
    resume = f"`mirrorbook failover resume {mirror}`"
    yield f"start a broker of {cluster} that has them ({', '.join(map(str, away))}), then {resume}"
    lines = "; ".join(f"`{lowering(bootstrap, topic, least)}`" for topic, least in list(fewest.items())[:_LINES])
    more = f"; and so for {len(fewest) - _LINES} more topics" if len(fewest) > _LINES else ""
    yield (
        f"or have {cluster} do with the replicas that there are, so that a record may be lost with a single broker, "
        f"then {resume}: {lines}{more}"
    )
    yield (
        f"or `mirrorbook failover resume {mirror} --leave-behind`: each is promoted up to its high watermark only. "
        "What its leader has beyond that may be lost with that broker, and counts as not copied"
    )


def _told(offset: Offset | None) -> str:
    return "unknown" if offset is None else str(offset)
