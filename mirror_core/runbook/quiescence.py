"""Waits until an unplanned failover's logs are stable and on all in-sync replicas."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.quiescence_check import (
    ConfirmedEnd,
    IsrStatus,
    LogEndSample,
    UnreplicatedPartition,
    find_unquiescent,
    find_unreplicated,
    has_confirmed_all,
    is_fully_replicated,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets, list_replica_ends
from mirror_core.kafka.reassignment import describe_placements
from mirror_core.kafka.topics import describe_available_configs
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Offset, Partition

STILL_INTERVAL_S: Final = 0.2
QUIESCENCE_LIMIT_S: Final = 60.0
STABLE_AFTER_S: Final = 10.0
"""Tells a slow writer from no writer."""
_MIN_ISR_CONFIG: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuiescenceResult:
    ends: Mapping[Partition, Offset]
    """Next offsets, stable and on all in-sync replicas."""
    moving: Mapping[Partition, LogEndSample]
    held_up: Mapping[Partition, UnreplicatedPartition]


def wait_for_quiescence(
    client: ClusterClient, partitions: Collection[Partition], reported: Mapping[Partition, ConfirmedEnd] | None
) -> QuiescenceResult:
    """Returns at the limit at the latest. `reported`: held-up partitions confirmed to be left."""
    deadline = time.monotonic() + QUIESCENCE_LIMIT_S
    since = dict[Partition, tuple[LogEndSample, float]]()
    while True:
        ends = _read_log_ends(client, partitions)
        for p, log in ends.items():
            if p not in since or not since[p][0].is_same_as(log):
                since[p] = log, time.monotonic()
        unstable = find_unquiescent(ends)
        replicas = dict[Partition, IsrStatus]()
        with suppress(Unreachable):
            replicas = _read_replicas(client, unstable)
        replica_ends_by_broker = _read_replica_ends(client, replicas)
        stable_partitions = {p for p, (_, at) in since.items() if time.monotonic() - at >= STABLE_AFTER_S}
        unstable = {
            p: log
            for p, log in unstable.items()
            if p not in replicas
            or not is_fully_replicated(log, replicas[p], replica_ends_by_broker[p])
            # An unknown watermark may be a lost response, or an open transaction.
            or (log.high_watermark is None and p not in stable_partitions)
        }
        held_up_logs = find_unreplicated(unstable, replicas)
        is_late = time.monotonic() > deadline
        if is_late:  # a slow writer is not under-replication
            held_up_logs = {p: log for p, log in held_up_logs.items() if p in stable_partitions}
        moving = {p: log for p, log in unstable.items() if p not in held_up_logs}
        if (
            is_late
            or not unstable
            or (reported is not None and not moving and has_confirmed_all(held_up_logs, reported))
        ):
            stable_ends = {p: log.end for p, log in ends.items() if p not in unstable and log.end is not None}
            return QuiescenceResult(ends=stable_ends, moving=moving, held_up=held_up_logs)


def _read_log_ends(client: ClusterClient, partitions: Collection[Partition]) -> dict[Partition, LogEndSample]:
    earlier_ends = list_known_offsets(client, partitions, OffsetPoint.LOG_END)
    time.sleep(STILL_INTERVAL_S)
    ends = list_known_offsets(client, partitions, OffsetPoint.LOG_END)
    high = list_known_offsets(client, ends, OffsetPoint.HIGH_WATERMARK)
    stable = list_known_offsets(client, ends, OffsetPoint.STABLE_END)
    return {
        p: LogEndSample(
            first_end=earlier_ends.get(p), end=ends.get(p), high_watermark=high.get(p), last_stable_offset=stable.get(p)
        )
        for p in earlier_ends.keys() | ends.keys()
    }


def _read_replicas(client: ClusterClient, unstable: Mapping[Partition, LogEndSample]) -> dict[Partition, IsrStatus]:
    topics = {p.topic for p, item in unstable.items() if item.is_unreplicated}
    if not topics:
        return {}
    configs, _ = describe_available_configs(client, topics)
    min_isr = {
        name: int(item.effective[_MIN_ISR_CONFIG])
        for name, item in configs.items()
        if _MIN_ISR_CONFIG in item.effective
    }
    return {
        p: IsrStatus(replicas=item.replicas, in_sync=item.in_sync, min_insync_replicas=min_isr[p.topic])
        for p, item in describe_placements(client, topics).items()
        if p in unstable and unstable[p].is_unreplicated and p.topic in min_isr
    }


def _read_replica_ends(
    client: ClusterClient, replicas: Mapping[Partition, IsrStatus]
) -> dict[Partition, dict[int, Offset]]:
    """Silent brokers are left out."""
    by_broker: dict[int, list[Partition]] = {}
    for partition, replica_set in replicas.items():
        for broker in () if replica_set.is_under_min_isr else replica_set.in_sync:
            by_broker.setdefault(broker, []).append(partition)
    ends_by_broker: dict[Partition, dict[int, Offset]] = {p: {} for p in replicas}
    for broker, broker_partitions in by_broker.items():
        with suppress(Unreachable):
            for partition, end in list_replica_ends(client, broker, broker_partitions).items():
                ends_by_broker[partition][broker] = end
    return ends_by_broker
