"""A cluster of its own beside the shared pair, in place of one of the two: other jars, other settings."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mirrorbook_tools.sandbox import grants, storage_format
from mirrorbook_tools.sandbox.broker import Broker
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import load_passwords
from mirrorbook_tools.sandbox.ports import choose_ports
from mirrorbook_tools.sandbox.state import ClusterState, NodePorts, SandboxState
from tests.support.kafka_clients import Pair, admin_client


@contextmanager
def in_place_of(
    pair: Pair, name: str, folder: Path, jars: Path, extra: Mapping[str, str] | None = None, *, nodes: int = 1
) -> Iterator[Pair]:
    """`pair` with a new cluster as its `name` (east or west), with these jars and `extra` broker properties."""
    numbers = choose_ports(2 * nodes)
    ports = [NodePorts(client=client, controller=c) for client, c in zip(numbers[::2], numbers[1::2], strict=True)]
    clusters = {name: ClusterState(cluster_id="asideAAAAAAAAAAAAAAAAA", nodes=tuple(ports))}
    passwords = load_passwords(pair.sandbox.dir)
    brokers = tuple(
        Broker(cluster=name, node=node, folder=folder / name / str(node), ports=its, jars=jars)
        for node, its in enumerate(ports, start=1)
    )
    storage_format.prepare(
        brokers, SandboxState(clusters=clusters, extra=dict(extra or {})), passwords, lambda line: None
    )
    aside = SandboxCluster(name=name, brokers=brokers, passwords=passwords)
    try:
        aside.wait_ready({broker.node: broker.spawn() for broker in brokers}, whole_cluster=True)
        grants.put(admin_client(aside), grants.baseline(name))
        shared = {"east": pair.east, "west": pair.west}[name]
        text = pair.config_path.read_text(encoding="utf-8")
        config_path = folder / "mirrorbook.yaml"
        config_path.write_text(text.replace(shared.bootstrap, aside.bootstrap), encoding="utf-8")
        yield replace(
            pair,
            east=aside if name == "east" else pair.east,
            west=aside if name == "west" else pair.west,
            config_path=config_path,
        )
    finally:
        for broker in brokers:  # the last of several would wait for a quorum
            broker.stop(signal.SIGTERM if nodes == 1 else signal.SIGKILL)
