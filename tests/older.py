"""A source cluster of the last Kafka 3.x, in KRaft mode, beside the newest destination.

Its jars are locked and fetched as the sandbox's are, when a test asks for such a cluster and not before.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirror_core.sandbox import formatting, grants
from mirror_core.sandbox.broker import Broker
from mirror_core.sandbox.cluster import SandboxCluster
from mirror_core.sandbox.credentials import load_passwords
from mirror_core.sandbox.jars import ensure_jars
from mirror_core.sandbox.ports import choose_ports
from mirror_core.sandbox.state import ClusterState, NodePorts, SandboxState
from tests.brokers import Pair, admin_client

LOCK: Final = Path(__file__).with_name("kafka-3.9.lock")
NAME: Final = "east"  # the name of a source in all tests; the shared pair's own east is not in this configuration


@contextmanager
def older_source(pair: Pair, folder: Path) -> Iterator[Pair]:
    """`pair` with a Kafka 3.9 broker of its own in place of the source; the destination stays the shared one."""
    jars = ensure_jars(LOCK)
    client, controller = choose_ports(2)
    ports = NodePorts(client=client, controller=controller)
    state = SandboxState(clusters={NAME: ClusterState(cluster_id="olderAAAAAAAAAAAAAAAAA", nodes=(ports,))}, extra={})
    passwords = load_passwords(pair.sandbox.dir)
    broker = Broker(cluster=NAME, node=1, folder=folder / NAME / "1", ports=ports, jars=jars)
    formatting.prepare([broker], state, passwords, lambda line: None)
    older = SandboxCluster(name=NAME, brokers=(broker,), passwords=passwords)
    process = broker.spawn()
    try:
        older.wait_ready({1: process}, whole_cluster=True)
        grants.put(admin_client(older), grants.baseline(NAME))
        config_path = folder / "mirrorbook.yaml"
        text = pair.config_path.read_text(encoding="utf-8")
        config_path.write_text(text.replace(pair.east.bootstrap, older.bootstrap), encoding="utf-8")
        yield replace(pair, east=older, config_path=config_path)
    finally:
        broker.stop(signal.SIGTERM)
