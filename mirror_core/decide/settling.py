"""Whether the destination of an unplanned failover has come to rest, and which partitions may be left behind. Pure.

A log that still moves is written by somebody: that is refused, whatever anybody says. One that stands still and is held
up by its replicas alone is promoted up to its high watermark, if a person says so who was told of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirror_core.decide.in_sync import InSync, lowering
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition

_LINES: Final = 5
"""Topics for which the line is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Where one partition's log ends, looked at twice. None: its leader does not tell."""

    before: Offset | None
    end: Offset | None
    """A moment later."""
    high: Offset | None
    """High watermark. A new leader does not know it while too few replicas are in sync (KIP-207)."""
    stable: Offset | None

    @property
    def at_rest(self) -> bool:
        return self.before == self.end == self.high == self.stable

    @property
    def unreplicated(self) -> bool:
        """It stands still, and nothing but its replicas is missing: no transaction is open."""
        return (
            self.end is not None
            and self.before == self.end
            and self.stable == self.high
            and (self.high is None or self.high < self.end)
        )

    def same(self, later: Ends) -> bool:
        """Nothing has changed since, nor between that one's two looks."""
        return (self.end, self.high, self.stable) == (later.end, later.high, later.stable) and later.before == later.end

    def __str__(self) -> str:
        return (
            f"log end {_told(self.before)}, then {_told(self.end)}; high watermark {_told(self.high)}, last stable "
            f"{_told(self.stable)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """A partition whose log stands still, and whose high watermark cannot follow."""

    end: Offset
    high: Offset | None
    replicas: InSync

    def __str__(self) -> str:
        return f"log end {self.end}, high watermark {_told(self.high)}; {self.replicas}"


def restless(ends: Mapping[Partition, Ends]) -> dict[Partition, Ends]:
    """What has moved, has just lost or found its leader, or is not replicated."""
    return {p: one for p, one in sorted(ends.items()) if not one.at_rest}


def replicated(one: Ends, replicas: InSync, own: Mapping[int, Offset]) -> bool:
    """Whether enough replicas are in sync, and each has the whole log by its own broker's word (`own`).

    A leader looks at its high watermark when something is appended, or a replica comes or goes: not when its topic asks
    for fewer replicas than before.
    """
    return one.unreplicated and not replicas.short and all(own.get(broker) == one.end for broker in replicas.in_sync)


def held_up(found: Mapping[Partition, Ends], replicas: Mapping[Partition, InSync]) -> dict[Partition, HeldUp]:
    """Of what is restless: what only too few replicas hold up."""
    return {
        p: HeldUp(end=one.end, high=one.high, replicas=replicas[p])
        for p, one in found.items()
        if one.unreplicated and one.end is not None and p in replicas and replicas[p].short
    }


class Told(NamedTuple):
    """What a person was told of a partition that is held up."""

    end: Offset
    high: Offset | None

    def holds(self, now: HeldUp) -> bool:
        """Nothing was written since, and its mirroring would count as done no further down."""
        return self.end == now.end and (self.high is None or (now.high is not None and self.high <= now.high))


def agreed(held: Mapping[Partition, HeldUp], told: Mapping[Partition, Told]) -> bool:
    """Whether all of these were told to the person who leaves them behind."""
    return all(p in told and told[p].holds(one) for p, one in held.items())


def ways_on(
    cluster: ClusterName, bootstrap: str, mirror: MirrorName, held: Mapping[Partition, HeldUp]
) -> Iterator[str]:
    """What people can do about them."""
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
