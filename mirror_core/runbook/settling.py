"""Waits until an unplanned failover's destination logs are stable and on all in-sync replicas."""

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
SETTLE_S: Final = 60.0
STANDS_S: Final = 10.0
"""Unchanged this long is stable. Tells a slow writer from no writer."""
_INSYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    ends: Mapping[Partition, Offset]
    """Log ends (next offset), stable and on all in-sync replicas."""
    moving: Mapping[Partition, Ends]
    held: Mapping[Partition, HeldUp]


def come_to_rest(
    client: ClusterClient, partitions: Collection[Partition], told: Mapping[Partition, Told] | None
) -> Rest:
    """Returns at the limit at the latest. `reported`: held-up partitions confirmed to be left."""
    deadline = time.monotonic() + SETTLE_S
    since = dict[Partition, tuple[Ends, float]]()
    while True:
        ends = _ends(client, partitions)
        for p, one in ends.items():
            if p not in since or not since[p][0].same(one):
                since[p] = one, time.monotonic()
        found = restless(ends)
        replicas = dict[Partition, InSync]()
        with suppress(Unreachable):
            replicas = _replicas(client, found)
        own = _own_ends(client, replicas)
        still = {p for p, (_, at) in since.items() if time.monotonic() - at >= STANDS_S}
        found = {
            p: one
            for p, one in found.items()
            if p not in replicas
            or not replicated(one, replicas[p], own[p])
            # An unknown watermark may be a lost response, or an open transaction.
            or (one.high is None and p not in still)
        }
        held = held_up(found, replicas)
        late = time.monotonic() > deadline
        if late:  # a slow writer is not under-replication
            held = {p: one for p, one in held.items() if p in still}
        moving = {p: one for p, one in found.items() if p not in held}
        if late or not found or (told is not None and not moving and agreed(held, told)):
            rest = {p: one.end for p, one in ends.items() if p not in found and one.end is not None}
            return Rest(ends=rest, moving=moving, held=held)


def _ends(client: ClusterClient, partitions: Collection[Partition]) -> dict[Partition, Ends]:
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
    """In-sync replicas' own log ends by broker. Silent brokers are left out."""
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
