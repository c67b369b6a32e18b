"""Looking at the destination of an unplanned failover until it stands still, and is on all in-sync replicas."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.in_sync import InSync
from mirror_core.decide.settling import Ends, HeldUp, Told, agreed, held_up, replicated, restless
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, known_offsets, replica_ends
from mirror_core.kafka.placing import placements
from mirror_core.kafka.topics import told_configs
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Offset, Partition

STILL_S: Final = 0.2
"""Between two looks at the destination's log ends."""
SETTLE_S: Final = 60.0
"""It gets this long to come to rest: a broker that died beside the source leaves its partitions' replicas behind."""
STANDS_S: Final = 10.0
"""What has been the same for so long stands still. A writer that comes now and then is told from a log without one."""
_INSYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What was found in the end."""

    ends: Mapping[Partition, Offset]
    """Log ends (next offset to be written) that stand still and are on all in-sync replicas."""
    moving: Mapping[Partition, Ends]
    held: Mapping[Partition, HeldUp]
    """They stand still, and too few replicas are in sync."""


def come_to_rest(
    client: ClusterClient, partitions: Collection[Partition], told: Mapping[Partition, Told] | None
) -> Rest:
    """Returns when all that have a leader are at rest, or the limit is over.

    `told`: what is held up, of which a person has said that it is not waited for; None: nobody did.
    """
    deadline = time.monotonic() + SETTLE_S
    since = dict[Partition, tuple[Ends, float]]()
    while True:
        ends = _ends(client, partitions)
        for p, one in ends.items():
            if p not in since or not since[p][0].same(one):
                since[p] = one, time.monotonic()
        found = restless(ends)
        replicas = dict[Partition, InSync]()
        with suppress(Unreachable):  # looked at again
            replicas = _replicas(client, found)
        own = _own_ends(client, replicas)
        still = {p for p, (_, at) in since.items() if time.monotonic() - at >= STANDS_S}
        found = {
            p: one
            for p, one in found.items()
            if p not in replicas
            or not replicated(one, replicas[p], own[p])
            # An unknown watermark may be an answer that was lost, and a transaction may be open.
            or (one.high is None and p not in still)
        }
        held = held_up(found, replicas)
        late = time.monotonic() > deadline
        if late:  # who writes now and then is no want of replicas
            held = {p: one for p, one in held.items() if p in still}
        moving = {p: one for p, one in found.items() if p not in held}
        if late or not found or (told is not None and not moving and agreed(held, told)):
            rest = {p: one.end for p, one in ends.items() if p not in found and one.end is not None}
            return Rest(ends=rest, moving=moving, held=held)


def _ends(client: ClusterClient, partitions: Collection[Partition]) -> dict[Partition, Ends]:
    """Of all that had a leader, before or a moment later."""
    before = known_offsets(client, partitions, Point.LOG_END)
    time.sleep(STILL_S)
    ends = known_offsets(client, partitions, Point.LOG_END)
    high = known_offsets(client, ends, Point.HIGH_WATERMARK)
    stable = known_offsets(client, ends, Point.STABLE_END)
    return {
        p: Ends(before=before.get(p), end=ends.get(p), high=high.get(p), stable=stable.get(p))
        for p in before.keys() | ends.keys()
    }


def _replicas(client: ClusterClient, found: Mapping[Partition, Ends]) -> dict[Partition, InSync]:
    """Of what stands still and is not replicated, as far as the cluster tells."""
    topics = {p.topic for p, one in found.items() if one.unreplicated}
    if not topics:
        return {}
    configs, _ = told_configs(client, topics)
    asked = {name: int(one.effective[_INSYNC]) for name, one in configs.items() if _INSYNC in one.effective}
    return {
        p: InSync(replicas=one.replicas, in_sync=one.in_sync, asked=asked[p.topic])
        for p, one in placements(client, topics).items()
        if p in found and found[p].unreplicated and p.topic in asked
    }


def _own_ends(client: ClusterClient, replicas: Mapping[Partition, InSync]) -> dict[Partition, dict[int, Offset]]:
    """Where in-sync replicas' own logs end, by broker. Left out are brokers that do not answer."""
    by_broker: dict[int, list[Partition]] = {}
    for partition, one in replicas.items():
        for broker in () if one.short else one.in_sync:
            by_broker.setdefault(broker, []).append(partition)
    found: dict[Partition, dict[int, Offset]] = {p: {} for p in replicas}
    for broker, mine in by_broker.items():
        with suppress(Unreachable):
            for partition, end in replica_ends(client, broker, mine).items():
                found[partition][broker] = end
    return found
