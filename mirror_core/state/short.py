"""Explains failed state writes by too few in-sync replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mirror_core.decide.in_sync import InSync, Short, not_written
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.placing import placements
from mirror_core.kafka.topics import told_configs
from mirror_core.model.errors import MirrorError
from mirror_core.state.records import TOPIC

_WRITTEN: Final = (TOPIC, "__transaction_state")
"""Transactions need the coordinator's topic."""
_LOOK_S: Final = 3.0


def for_want_of_replicas(cluster: ClusterConfig, timeout_s: float) -> str:
    """Empty: another reason, or unknown."""
    try:
        with ClusterClient(cluster, timeout_s=min(_LOOK_S, timeout_s)) as client:
            short = list(_short(client))
    except MirrorError:  # the caller has an error already
        return ""
    return not_written(cluster.name, cluster.control["bootstrap.servers"], short)


def _short(client: ClusterClient) -> Iterator[Short]:
    configs, _ = told_configs(client, _WRITTEN)
    for topic, found in configs.items():
        if (said := found.effective.get("min.insync.replicas")) is None or not said.isdecimal():
            continue
        asked = int(said)
        rows = placements(client, [topic]).values()
        partitions = [InSync(replicas=row.replicas, in_sync=row.in_sync, asked=asked) for row in rows]
        if few := [one for one in partitions if one.short]:
            yield Short(topic=topic, least=min(few, key=lambda one: len(one.in_sync)))
