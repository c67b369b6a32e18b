"""server.properties of one combined broker and controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mirrorbook_tools.sandbox.credentials import ADMIN
from mirrorbook_tools.sandbox.ports import HOST
from mirrorbook_tools.sandbox.state import ClusterState

SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def broker_properties(
    cluster: ClusterState, node: int, data_dir: Path, admin_password: str, extra: Mapping[str, str]
) -> dict[str, str]:
    """Properties of node `node` (counted from 1); `extra` wins over ours."""
    ports = cluster.nodes[node - 1]
    replicas = str(min(len(cluster.nodes), 3))
    who = f'username="{ADMIN}" password="{admin_password}"'
    ours = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "log.dirs": str(data_dir),
        "listeners": f"CLIENT://{HOST}:{ports.client},CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": f"CLIENT://{HOST}:{ports.client}",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "controller.quorum.voters": ",".join(
            f"{number}@{HOST}:{other.controller}" for number, other in enumerate(cluster.nodes, start=1)
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.client.scram-sha-512.sasl.jaas.config": f"{SCRAM_LOGIN} required {who};",
        # SCRAM needs the metadata log, which controllers are still about to read: they know each other by PLAIN.
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{PLAIN_LOGIN} required {who} user_{ADMIN}="{admin_password}";'
        ),
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.num.partitions": "5",
        "share.coordinator.state.topic.min.isr": "1",
        # Dynamic configuration is applied after the logs are loaded: only this static value keeps producer states
        # of old records over a restart, and with them the protection against appending twice.
        "producer.id.expiration.ms": "2147483647",
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "6000",
        "transaction.max.timeout.ms": "900000",
        # Otherwise a controller writes down twice a second that nothing has happened: a third of an idle broker's work.
        "metadata.max.idle.interval.ms": "60000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": "16777216",
    }
    if ports.far is not None:
        ours["listeners"] += f",LINK://{HOST}:{ports.far}"
        ours["advertised.listeners"] += f",LINK://{HOST}:{ports.link}"
        ours["listener.security.protocol.map"] += ",LINK:SASL_PLAINTEXT"
        ours["listener.name.link.scram-sha-512.sasl.jaas.config"] = f"{SCRAM_LOGIN} required;"
    return {**ours, **extra}


def to_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in properties.items())
