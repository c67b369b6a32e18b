"""Truncated replicas, shared by tests."""

from __future__ import annotations

import secrets

from mirror_core.kafka.topics import NewTopic, create_topics
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cli_process import mirrorbook
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import TIMEOUT_S, admin_client
from tests.support.log_truncation import stored
from tests.support.waiting import wait_until


def placed(cluster: SandboxCluster, *replicas: int) -> str:
    """A topic of one partition on these brokers."""
    name = "t-" + secrets.token_hex(5)
    with as_admin(cluster) as client:
        wanted = NewTopic(name=name, partitions=1, replication_factor=len(replicas), assignments=(replicas,))
        create_topics(client, [wanted])
    await_in_sync(cluster, name, set(replicas))
    return name


def await_in_sync(cluster: SandboxCluster, topic: str, replicas: set[int]) -> None:
    def seen() -> bool:
        partitions = admin_client(cluster).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        return bool(partitions) and set(partitions[0].isrs) == replicas

    wait_until(seen, timeout_s=TIMEOUT_S, why=f"{topic}: {replicas} are in sync")


def truncate(cluster: SandboxCluster, node: int, *where: str) -> str:
    said = mirrorbook("log", "truncate", "--log-dir", str(cluster.log_dir(node)), *where, "--yes")
    assert said.returncode == 0, said.stderr
    return said.stdout


def same_logs(cluster: SandboxCluster, topic: str, replicas: set[int], partition: int = 0) -> bool:
    logs = [stored(cluster.log_dir(node) / f"{topic}-{partition}") for node in replicas]
    return all(log == logs[0] for log in logs)
