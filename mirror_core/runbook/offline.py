"""Truncation of the old source's logs at failback: strategies `offline` and `replica`.

`offline`: people cut log files of stopped brokers. A returning broker follows the others, so a cut replica would be
filled again. Each partition is reduced to one replica first, cut there, and then given back its other replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from mirror_core.decide.view import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import OffsetPoint, list_offsets
from mirror_core.kafka.placing import ReplicaPlacement, describe_placements, reassign, wait_for_replicas
from mirror_core.model.errors import Refused
from mirror_core.model.files import report_write_errors
from mirror_core.model.names import Offset, Partition
from mirror_core.model.text import format_address
from mirror_core.runbook.acts import StepContext

POINTS_FILE = "points.json"


def truncate_offline(
    context: StepContext,
    old: ClusterClient,
    points: Mapping[Partition, Offset],
    original_replicas: Mapping[Partition, tuple[int, ...]],
) -> dict[str, str | int]:
    """Returns if no log exceeds its point. Otherwise Refused, with instructions. Idempotent."""
    if not points:
        return {}
    current = describe_placements(old, {p.topic for p in points})
    ends, stable = (list_offsets(old, points, point) for point in (OffsetPoint.LOG_END, OffsetPoint.STABLE_END))
    too_long = {p: end for p, end in points.items() if ends[p] > end}
    if too_long:
        hosts = choose_remaining_brokers({p: current[p] for p in too_long})
        reduced_replicas = {p: (node,) for p, node in hosts.items() if current[p].replicas != (node,)}
        if reduced_replicas:
            reassign(old, reduced_replicas)
            wait_for_replicas(old, reduced_replicas)
        file = _write_points(context, old, points)
        raise Refused(_format_offline_title(context), tuple(_format_instructions(context, old, file, hosts)))
    open_logs = [
        f"{p} ends at {ends[p]}, its last stable offset is {stable[p]}" for p in points if stable[p] != ends[p]
    ]
    if open_logs:
        raise Refused(
            _format_offline_title(context),
            [
                f"cut inside of a transaction: {join_limited(open_logs)}. End it with kafka-transactions.sh abort, then resume"
            ],
        )
    returned_replicas = {
        p: original_replicas[p] for p in points if set(current[p].replicas) != set(original_replicas[p])
    }
    if returned_replicas:
        reassign(old, returned_replicas)  # filled while the mirror runs
    return {
        "cut": join_limited(f"{p} at {ends[p]}, at most {truncation_point}" for p, truncation_point in points.items()),
        "refilled": len(returned_replicas),
    }


def choose_remaining_brokers(current: Mapping[Partition, ReplicaPlacement]) -> dict[Partition, int]:
    """The broker that keeps each partition: in sync, as few as possible in all."""
    replica_counts = Counter(node for placement in current.values() for node in placement.in_sync)
    return {
        p: max(replicas.in_sync, key=lambda node: (replica_counts[node], -node))
        for p, replicas in current.items()
        if replicas.in_sync
    }


def _format_offline_title(context: StepContext) -> str:
    return f"failback {context.journal.run_id}: step align waits for logs of {context.link.source.name} to be cut"


def _format_instructions(
    context: StepContext, old: ClusterClient, file: Path, hosts: Mapping[Partition, int]
) -> Iterator[str]:
    yield (
        f"copy {file} to the host of each broker that is named here; it says where logs have to end. Then one broker "
        "after the other: controllers that are stopped with them must keep their majority"
    )
    addresses = old.metadata(()).brokers
    for node in sorted(set(hosts.values())):
        address = format_address(*addresses[node]) if node in addresses else "not answering now"
        broker_partitions = join_limited(sorted(p for p, n in hosts.items() if n == node))
        yield (
            f"broker {node} ({address}), {broker_partitions}: stop it; on its host `mirrorbook log truncate --log-dir LOG_DIR "
            f"--to {POINTS_FILE} --backup BACKUP_DIR` (LOG_DIR: its log.dirs; again for each); start it"
        )
    yield (
        f"then `mirrorbook failback resume {context.link.mirror.name}`. Until then these partitions have one replica "
        "each; the run gives the others back"
    )


def _write_points(context: StepContext, old: ClusterClient, points: Mapping[Partition, Offset]) -> Path:
    metadata = old.metadata({p.topic for p in points})
    rows: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(points.items()):
        rows.setdefault(partition.topic, {})[str(partition.index)] = offset
    topics = {
        topic: {"id": metadata.topics[topic].id, "partitions": topic_points} for topic, topic_points in rows.items()
    }
    file = context.services.run_dir(context.journal.run_id) / POINTS_FILE
    document = {"cluster_id": metadata.cluster_id, "run": context.journal.run_id, "topics": topics}
    with report_write_errors("points where logs have to end", file, "make room and rights there, then resume the run"):
        file.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    return file
