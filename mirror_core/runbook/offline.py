"""Truncation of the old source's logs at failback: strategies `offline` and `replica`.

`offline`: people cut log files of stopped brokers. A returning broker follows the others, so a cut replica would be
filled again. Each partition is reduced to one replica first, cut there, and then given back its other replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.placing import Placement, await_replicas, placements, reassign
from mirror_core.model.errors import Refused
from mirror_core.model.files import writing
from mirror_core.model.names import Offset, Partition
from mirror_core.model.text import format_address
from mirror_core.runbook.acts import Acts

FILE = "points.json"


def cut_offline(
    acts: Acts, old: ClusterClient, points: Mapping[Partition, Offset], placed: Mapping[Partition, tuple[int, ...]]
) -> dict[str, str | int]:
    """Returns if no log exceeds its point. Otherwise Refused, with instructions. Idempotent."""
    if not points:
        return {}
    now = placements(old, {p.topic for p in points})
    ends, stable = (list_offsets(old, points, where) for where in (Point.LOG_END, Point.STABLE_END))
    long = {p: end for p, end in points.items() if ends[p] > end}
    if long:
        hosts = only_one({p: now[p] for p in long})
        alone = {p: (node,) for p, node in hosts.items() if now[p].replicas != (node,)}
        if alone:
            reassign(old, alone)
            await_replicas(old, alone)
        file = _write_points(acts, old, points)
        raise Refused(_title(acts), tuple(_lines(acts, old, file, hosts)))
    open_ = [f"{p} ends at {ends[p]}, its last stable offset is {stable[p]}" for p in points if stable[p] != ends[p]]
    if open_:
        raise Refused(
            _title(acts),
            [f"cut inside of a transaction: {some(open_)}. End it with kafka-transactions.sh abort, then resume"],
        )
    back = {p: placed[p] for p in points if set(now[p].replicas) != set(placed[p])}
    if back:
        reassign(old, back)  # filled while the mirror runs
    return {"cut": some(f"{p} at {ends[p]}, at most {point}" for p, point in points.items()), "refilled": len(back)}


def only_one(now: Mapping[Partition, Placement]) -> dict[Partition, int]:
    """The broker that keeps each partition: in sync, as few as possible in all."""
    held = Counter(node for placement in now.values() for node in placement.in_sync)
    return {p: max(found.in_sync, key=lambda node: (held[node], -node)) for p, found in now.items() if found.in_sync}


def _title(acts: Acts) -> str:
    return f"failback {acts.journal.run_id}: step align waits for logs of {acts.link.source.name} to be cut"


def _lines(acts: Acts, old: ClusterClient, file: Path, hosts: Mapping[Partition, int]) -> Iterator[str]:
    yield (
        f"copy {file} to the host of each broker that is named here; it says where logs have to end. Then one broker "
        "after the other: controllers that are stopped with them must keep their majority"
    )
    addresses = old.metadata(()).brokers
    for node in sorted(set(hosts.values())):
        where = format_address(*addresses[node]) if node in addresses else "not answering now"
        mine = some(sorted(p for p, n in hosts.items() if n == node))
        yield (
            f"broker {node} ({where}), {mine}: stop it; on its host `mirrorbook log truncate --log-dir LOG_DIR "
            f"--to {FILE} --backup BACKUP_DIR` (LOG_DIR: its log.dirs; again for each); start it"
        )
    yield (
        f"then `mirrorbook failback resume {acts.link.mirror.name}`. Until then these partitions have one replica "
        "each; the run gives the others back"
    )


def _write_points(acts: Acts, old: ClusterClient, points: Mapping[Partition, Offset]) -> Path:
    view = old.metadata({p.topic for p in points})
    rows: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(points.items()):
        rows.setdefault(partition.topic, {})[str(partition.index)] = offset
    topics = {topic: {"id": view.topics[topic].id, "partitions": mine} for topic, mine in rows.items()}
    file = acts.services.run_dir(acts.journal.run_id) / FILE
    document = {"cluster_id": view.cluster_id, "run": acts.journal.run_id, "topics": topics}
    with writing("points where logs have to end", file, "make room and rights there, then resume the run"):
        file.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    return file
